"""What server and clients send each other, and how the server screens it."""
