"""One client's side of a round: its data, its behaviour, its training."""
