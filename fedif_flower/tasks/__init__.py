"""The task that a federation learns: data, model, loss and metrics; the built-in one of images."""
