"""One federation, from its settings to its report."""
