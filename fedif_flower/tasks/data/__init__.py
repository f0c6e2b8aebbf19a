"""Image data: data sets by name in a shared cache, clients' partitions, and the server's split."""
