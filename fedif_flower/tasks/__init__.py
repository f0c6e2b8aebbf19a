"""What a federation is about: data sets and models."""
