"""The guarded SuperLink: each SuperNode answers only for itself, and its replies are bounded."""
