"""Theorem 1: its bound is kept, and says nothing of descent."""

from __future__ import annotations

import pytest
import torch

from fedif_studies.theorem import play, smoothness


def test_smoothness_by_hand():
    # The mean of x x^T of (2, 0) and (0, 1) is diag(2, .5).
    assert smoothness(torch.tensor([[2.0, 0.0], [0.0, 1.0]])) == pytest.approx(1.0)


@pytest.mark.parametrize("noisy", [False, True])
def test_the_bound_holds_and_exceeds_the_loss_before(noisy):
    generator = torch.Generator().manual_seed(1)
    parts = [
        (torch.rand(12, 3, generator=generator).double(), torch.arange(12) % (2 + i))
        for i in range(5)
    ]
    for change, theorem, lemma in play(parts, 0.1, noisy=noisy, fedif=True, seed=0):
        assert change <= lemma + 1e-9 <= theorem + 2e-9
        assert theorem > 0
