"""Where a federation runs: the only room that touches the insides of Flower and Ray."""
