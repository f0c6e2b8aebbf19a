"""The statement of a run: what each member contributed, signed, and checkable by others."""
