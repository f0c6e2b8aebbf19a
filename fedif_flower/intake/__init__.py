"""Intakes: they send a round's messages and read the replies; each feature wraps the plain one."""
