"""Attacks on one's own credit: what is sent, round by round, worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from fedif_flower.attacks import Behaviour, ClientRound
from fedif_studies.attacks.borrowed_steps import (
    AlternatingStep,
    BorrowedStep,
    GradientAndLastStep,
    OlderStep,
    SharedNoise,
    UndoneStep,
)
from fedif_studies.attacks.harm_and_repair import HarmAndRepair, HarmForRepair
from fedif_studies.attacks.opposed import OpposedSteps, OpposedUpdates
from fedif_studies.attacks.predicted_step import PredictedStep, curvature_product
from fedif_studies.attacks.trust_then_harm import TrustThenHarm
from fedif_studies.audit.cases import NoisyUpdate

UPDATES = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 2.0]])
AT_ZERO, DRAW = torch.zeros(2), torch.Generator()


def sent(
    acting: Behaviour, models: list[list[float]], update: list[float], every: int = 1
) -> list[list[float]]:
    """Return what is sent after each model; an honest member always sends the same update."""
    memory: dict[str, torch.Tensor] = {}
    found = []
    for index, model in enumerate(models):
        received = torch.tensor(model)
        own = ClientRound(
            received=received,
            trained=received + torch.tensor(update),
            server_round=1 + every * index,
            generator=torch.Generator().manual_seed(index),
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
        (HarmAndRepair(4.0), [[0, -4], [0, 4], [0, -4]]),
    ],
)
def test_three_rounds(acting, updates):
    # Steps: (1, 0), (0, 2); the honest update is (0, 1).
    assert sent(acting, [[0.0, 0.0], [1.0, 0.0], [1.0, 2.0]], [0.0, 1.0]) == updates


@pytest.mark.parametrize(("factor", "every"), [(1.0, 1), (3.0, 1), (1.0, 2)])
def test_a_step_that_halves_each_time_is_predicted_to_halve_again(factor, every):
    # w <- w + (16 - w) / 2: steps 8, 4, and 2 is next; between two rounds half of a move each.
    models = [[0.0, 0.0], [8.0, 0.0], [12.0, 0.0]]
    first, second, third = sent(PredictedStep(factor), models, [5.0, 5.0], every)
    assert first == second == [5.0, 5.0]
    assert third == pytest.approx([factor * 2.0 / every, 0.0])


def test_a_predicted_step_is_no_longer_than_the_last_one():
    # Steps 1 and 3: with it growing, 9 would be next.
    models = [[0.0, 0.0], [1.0, 0.0], [4.0, 0.0]]
    assert sent(PredictedStep(), models, [5.0, 5.0])[-1] == pytest.approx([3.0, 0.0])


def test_the_curvature_of_a_quadratic_is_found_along_the_last_move():
    curvature = torch.tensor([[3.0, 1.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 1.0]]).double()
    moves = torch.tensor([[1.0, 0.0, 0.0], [0.5, 1.0, 0.0]]).double()
    changes = moves @ curvature
    torch.testing.assert_close(curvature_product(moves, changes, moves[-1]), changes[-1])


def test_shared_noise_is_the_same_for_all():
    acting, updates = SharedNoise(), torch.ones(3, 2)
    draw = torch.Generator().manual_seed(0)
    assert acting.collude(AT_ZERO, updates, draw).tolist() == [[0.0, 0.0]] * 3
    first, *others = acting.collude(torch.tensor([3.0, 0.0]), updates, draw)
    assert all(torch.equal(first, other) for other in others)
    assert float((first - torch.tensor([3.0, 0.0])).norm()) == pytest.approx(3.0, rel=1e-5)


def test_in_a_pair_one_harms_and_the_other_repairs():
    acting = HarmForRepair(4.0)
    rounds = [acting.collude(AT_ZERO, UPDATES[:2], DRAW).tolist() for _ in range(3)]
    harm = [[1.0, 0.0], [0.0, -4.0]]
    assert rounds == [harm, [[1.0, 4.0], [0.0, 1.0]], harm]


def test_those_in_league_add_and_take_away_the_first_ones_update():
    sent = OpposedUpdates(4.0).collude(AT_ZERO, UPDATES, DRAW)
    assert sent.tolist() == [[5.0, 0.0], [-2.0, 1.0], [-2.0, 2.0]]
    assert sent.sum(dim=0).tolist() == UPDATES.sum(dim=0).tolist()
    acting = OpposedUpdates(10.0, every=2)
    assert torch.equal(acting.collude(AT_ZERO, UPDATES, DRAW), UPDATES)
    assert not torch.equal(acting.collude(AT_ZERO, UPDATES, DRAW), UPDATES)
    assert torch.equal(OpposedUpdates(10.0).collude(AT_ZERO, UPDATES[:1], DRAW), UPDATES[:1])


def test_opposed_steps_are_the_last_global_one():
    acting = OpposedSteps(2.0)
    assert torch.equal(acting.collude(AT_ZERO, UPDATES[:2], DRAW), UPDATES[:2])
    sent = acting.collude(torch.tensor([0.0, 3.0]), UPDATES[:2], DRAW)
    assert sent.tolist() == [[1.0, 6.0], [0.0, -5.0]]


def test_weight_is_earned_and_then_spent():
    attack, updates = TrustThenHarm(factor=2.0, earning=2), torch.tensor([[1.0, 0.0], [3.0, 2.0]])
    sent = [attack.collude(AT_ZERO, updates, DRAW) for _ in range(6)]
    assert [both[0].tolist() for both in sent] == [[4, 2], [4, 2], [-4, -2]] * 2
    assert all(torch.equal(both[0], both[1]) for both in sent)


def test_noise_is_half_as_long_as_the_update():
    [[x, y]] = sent(NoisyUpdate(), [[1.0, 1.0]], [3.0, 4.0])
    assert math.hypot(x - 3.0, y - 4.0) == pytest.approx(2.5)


def test_a_gradient_as_long_as_the_update_and_the_last_step():
    model, player = torch.nn.Linear(1, 2, bias=False), GradientAndLastStep()
    torch.nn.init.zeros_(model.weight)
    player.poison_inputs(model, torch.ones(1, 1), torch.tensor([0]), lambda x: x, DRAW)
    # The gradient is (-.5, .5), the update 5 long.
    root = 5 / 2**0.5
    first, second = sent(player, [[0.0, 0.0], [1.0, 0.0]], [3.0, 4.0])
    assert first == pytest.approx([root, -root])
    assert second == pytest.approx([1 + root, -root])
