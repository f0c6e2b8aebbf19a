"""A run as an operator watches it: its records, what they say, the page, and a server of it."""
