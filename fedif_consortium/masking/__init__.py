"""Masked rounds: the server scores and sums updates that it does not see.

A member adds a random mask to its update and sends the sum to the server. The seed of the mask goes
to another party, the *keeper*, in a sealed box. Influences, contributions, the step, and sketches
that tell lengths are linear in an update. So the server computes them on the masked updates, the
keeper computes them on the masks, and the server takes the difference. See
``docs/methods/masked-rounds.md`` for the protocol and what each party learns.
"""
