"""The client's side of a round: its data, its behaviour and its training."""
