"""The guarded SuperLink: what a SuperNode sends is bounded, and counts for itself alone."""
