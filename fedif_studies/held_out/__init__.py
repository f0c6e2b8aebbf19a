"""Study of how wrong held-out labels and missing classes change scores and pay, and what helps."""
