from __future__ import annotations

import pytest
import torch

from fedif_flower.attacks.alie import Alie, largest_shift

UPDATES = torch.tensor([[0.0, 1.0], [2.0, 1.0], [4.0, 4.0]])  # mean [2, 2], std [1.633, 1.414]


def test_all_send_the_shifted_mean():
    sent = Alie(0.4, z=2.0).collude(torch.zeros(2), UPDATES, torch.Generator())
    expected = [2 - 2 * (8 / 3) ** 0.5, 2 - 2 * 2**0.5]
    assert sent.tolist() == [pytest.approx(expected)] * 3


def test_the_shift_leaves_a_majority_further_out():
    # The paper's example: 24 of 50 need s = 26 - 24 = 2 of 26 honest ones; Phi(z) = 24 / 26.
    assert largest_shift(50, 24) == pytest.approx(1.4260769, abs=1e-6)
    # 10 of 50: s = 16, (40 - 16) / 40 = 0.6.
    assert largest_shift(50, 10) == pytest.approx(0.2533471, abs=1e-6)
    assert largest_shift(10, 2) == 0  # half of the honest ones are asked for
    assert largest_shift(4, 3) == 0  # a majority already, and one honest client


def test_without_a_given_one_it_follows_from_the_share():
    # Of a large federation: Phi(z) = 0.5 / (1 - share).
    assert Alie(0.2).z == pytest.approx(0.31864, abs=1e-3)
    assert Alie(0.4).z == pytest.approx(0.96742, abs=1e-3)
    assert Alie(1.0).z >= 0


def test_alone_it_is_honest():
    assert torch.equal(
        Alie(0.4).collude(torch.zeros(2), UPDATES[:1], torch.Generator()), UPDATES[:1]
    )
