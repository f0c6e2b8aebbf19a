"""Benchmarks of speed and memory beside peers, a script for each."""
