"""Backdoors: a screen that inverts triggers, unlearning, and what else was tried beside them."""
