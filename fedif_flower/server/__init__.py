"""The server's half of a round: its loop, its members, its model and its record."""
