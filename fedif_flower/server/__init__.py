"""Who plays a round: its loop, its members, its model and its record."""
