"""Scores and sums of updates that nobody sees: a ring, masks, sketches, and the keeper of masks.

A member adds a random mask to its update and sends the sum to the server; the mask's seed goes to a
*keeper*, sealed. What is linear in an update can then be computed on both halves and put together:
influences, contributions, the step, and sketches that tell lengths. See
``docs/methods/masked-rounds.md`` for the protocol and what each party learns.
"""
