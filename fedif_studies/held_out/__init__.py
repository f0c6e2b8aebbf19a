"""What wrong held-out labels and missing classes do to ranks and to pay, and what helps."""
