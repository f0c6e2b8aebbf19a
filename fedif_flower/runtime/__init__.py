"""Where a federation runs: the only package that uses the internals of Flower and Ray."""
