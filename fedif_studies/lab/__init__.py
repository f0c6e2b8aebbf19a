"""Many federations: cells, one engine for them, tables and plots of the results."""
