"""Data: sets by name in a shared cache, partitions, the server's split, and pixels."""
