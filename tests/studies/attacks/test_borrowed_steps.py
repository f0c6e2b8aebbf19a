"""Members that send what everybody has, the last global step: three rounds by hand."""

from __future__ import annotations

import pytest
import torch

from fedif_flower.attacks import Behaviour, ClientRound
from fedif_studies.attacks.borrowed_steps import (
    AlternatingStep,
    BorrowedStep,
    NoisyStep,
    OlderStep,
    SharedNoise,
    UndoneStep,
)

MODELS = ([0.0, 0.0], [1.0, 0.0], [1.0, 2.0])  # Steps: (1, 0), (0, 2).


def sent(acting: Behaviour, models=MODELS) -> list[list[float]]:
    """Return the updates of a round for each model; the honest one is (0, 1)."""
    memory: dict[str, torch.Tensor] = {}
    found = []
    for server_round, model in enumerate(models, start=1):
        received = torch.tensor(model)
        own = ClientRound(
            received=received,
            trained=received + torch.tensor([0.0, 1.0]),
            server_round=server_round,
            generator=torch.Generator().manual_seed(server_round),
            memory=memory,
        )
        found.append((acting.poison_update(own) - received).tolist())
    return found


@pytest.mark.parametrize(
    ("acting", "updates"),
    [
        (BorrowedStep(2.0), [[0, 2], [2, 2], [0, 6]]),
        (AlternatingStep(4.0), [[0, 0], [0, 1], [0, 8]]),
        (UndoneStep(3.0), [[0, 0], [0, 0], [0, -6]]),
        (OlderStep(2.0), [[0, 0], [0, 0], [2, 0]]),
    ],
)
def test_three_rounds(acting, updates):
    assert sent(acting) == updates


def test_a_step_of_three_rounds_before():
    models = ([0.0, 0.0], [1.0, 0.0], [1.0, 2.0], [1.0, 5.0], [1.0, 9.0])
    updates = sent(OlderStep(1.0, back=3), models)
    assert updates == [[0, 0], [0, 0], [0, 0], [1, 0], [0, 2]]


def test_noise_is_as_long_as_the_step():
    _, second, third = (torch.tensor(update) for update in sent(NoisyStep(2.0)))
    assert float((second - torch.tensor([2.0, 0.0])).norm()) == pytest.approx(2.0, rel=1e-5)
    assert float((third - torch.tensor([0.0, 4.0])).norm()) == pytest.approx(4.0, rel=1e-5)


def test_shared_noise_is_the_same_for_all():
    acting, updates = SharedNoise(), torch.ones(3, 2)
    draw = torch.Generator().manual_seed(0)
    assert acting.collude(torch.zeros(2), updates, draw).tolist() == [[0.0, 0.0]] * 3
    first, *others = acting.collude(torch.tensor([3.0, 0.0]), updates, draw)
    assert all(torch.equal(first, other) for other in others)
    assert float((first - torch.tensor([3.0, 0.0])).norm()) == pytest.approx(3.0, rel=1e-5)
