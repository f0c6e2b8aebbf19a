"""What travels between server and clients, and how far it is believed."""
