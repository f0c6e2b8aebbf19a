"""Grids of many federations: their cells, what runs them, and tables and plots of the results."""
