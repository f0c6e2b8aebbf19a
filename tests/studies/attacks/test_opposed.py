"""Members in league whose updates cancel: by hand."""

from __future__ import annotations

import torch

from fedif_studies.attacks.opposed import OpposedSteps, OpposedUpdates

UPDATES = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 2.0]])
AT_ZERO, DRAW = torch.zeros(2), torch.Generator()


def test_a_pair_adds_and_takes_away_the_first_ones_update():
    sent = OpposedUpdates(10.0).collude(AT_ZERO, UPDATES[:2], DRAW)
    assert sent.tolist() == [[11.0, 0.0], [-10.0, 1.0]]


def test_three_share_what_one_adds():
    sent = OpposedUpdates(4.0).collude(AT_ZERO, UPDATES, DRAW)
    assert sent.tolist() == [[5.0, 0.0], [-2.0, 1.0], [-2.0, 2.0]]
    assert sent.sum(dim=0).tolist() == UPDATES.sum(dim=0).tolist()


def test_they_are_honest_in_other_rounds_and_alone():
    acting = OpposedUpdates(10.0, every=2)
    assert torch.equal(acting.collude(AT_ZERO, UPDATES, DRAW), UPDATES)
    assert not torch.equal(acting.collude(AT_ZERO, UPDATES, DRAW), UPDATES)
    assert torch.equal(OpposedUpdates(10.0).collude(AT_ZERO, UPDATES[:1], DRAW), UPDATES[:1])


def test_steps_are_the_last_global_one():
    acting = OpposedSteps(2.0)
    assert torch.equal(acting.collude(AT_ZERO, UPDATES[:2], DRAW), UPDATES[:2])
    sent = acting.collude(torch.tensor([0.0, 3.0]), UPDATES[:2], DRAW)
    assert sent.tolist() == [[1.0, 6.0], [0.0, -5.0]]
