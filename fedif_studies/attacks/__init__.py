"""Attacks that exist to play against this package's own credit and memory, by import string."""
