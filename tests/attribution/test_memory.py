"""What attribution remembers from one round to the next, and what it lets go."""

from __future__ import annotations

import weakref

import torch

from fedif_flower.attribution.credit import CreditBounds
from fedif_flower.attribution.memory import AttributionMemory


def test_the_past_of_two_rounds_and_no_more_is_kept():
    """Each has three steps and a basis of them: as long as six models."""
    memory = AttributionMemory(CreditBounds())
    pasts = []
    for server_round in range(1, 5):
        before = torch.zeros(12)
        after = torch.zeros(12)
        after[server_round] = 1.0
        memory.note_step(before, after, carried=None)
        memory.keep(server_round, last_step=server_round)
        pasts.append(weakref.ref(memory.handed_on.past))
    are_there = [past() is not None for past in pasts]
    assert are_there == [False, False, True, True]
