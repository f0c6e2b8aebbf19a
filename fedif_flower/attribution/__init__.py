"""What each client contributed: from a round's step to a line of ``attribution.csv``."""
