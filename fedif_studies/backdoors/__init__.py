"""Against backdoors: inversion of triggers, a screen that uses it, and unlearning."""
