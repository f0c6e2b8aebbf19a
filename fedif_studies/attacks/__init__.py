"""Attacks on this project's own credit and weights; a run config names them by import string."""
