"""Studies with the library: which valuations are right, and which strategies resist attacks."""
