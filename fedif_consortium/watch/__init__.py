"""What an operator sees of a run: its state, remarks on it, a page, and figures for Prometheus."""
