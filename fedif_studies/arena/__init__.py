"""The arena: every strategy under every attack, and tables of the results."""
