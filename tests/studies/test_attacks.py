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
from fedif_studies.attacks.lowered_scores import LowersAnother
from fedif_studies.attacks.opposed import OpposedSteps, OpposedUpdates
from fedif_studies.attacks.predicted_step import PredictedStep, curvature_product
from fedif_studies.attacks.synthetic_batch import SyntheticBatch
from fedif_studies.attacks.trust_then_harm import TrustThenHarm
from fedif_studies.audit.cases import LongAndNoisy, NoisyUpdate

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


def test_a_harm_is_repaired_once():
    """A member that is not drawn in every round may be asked in two even rounds in a row."""
    acting, memory = HarmAndRepair(4.0), {}
    updates = []
    for server_round in (1, 2, 4):
        own = ClientRound(AT_ZERO, torch.tensor([0.0, 1.0]), server_round, DRAW, memory)
        updates.append(acting.poison_update(own).tolist())
    assert updates == [[0, -4], [0, 4], [0, 1]]


@pytest.mark.parametrize(
    ("models", "factor", "every", "step"),
    [
        # w <- w + (16 - w) / 2: steps 8, 4, and 2 is next; between two rounds half of a move each.
        ([0.0, 8.0, 12.0], 1.0, 1, 2.0),
        ([0.0, 8.0, 12.0], 3.0, 1, 6.0),
        ([0.0, 8.0, 12.0], 1.0, 2, 1.0),
        # Steps 1 and 3: 9 would be next, but none is longer than the last one.
        ([0.0, 1.0, 4.0], 1.0, 1, 3.0),
    ],
)
def test_the_next_step_is_predicted_by_those_before(models, factor, every, step):
    at = [[first, 0.0] for first in models]
    first, second, third = sent(PredictedStep(factor), at, [5.0, 5.0], every)
    assert first == second == [5.0, 5.0]
    assert third == pytest.approx([step, 0.0])


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


HARM = [[1, 0], [0, -4]]


@pytest.mark.parametrize(
    ("acting", "members", "rounds"),
    [
        # In a pair one harms, and the other repairs.
        (HarmForRepair(4.0), 2, [HARM, [[1, 4], [0, 1]], HARM]),
        # Those in league add and take away the first one's update; nobody does so alone.
        (OpposedUpdates(4.0), 3, [[[5, 0], [-2, 1], [-2, 2]]]),
        (OpposedUpdates(4.0, every=2), 2, [[[1, 0], [0, 1]], [[5, 0], [-4, 1]]]),
        (OpposedUpdates(10.0), 1, [[[1, 0]]]),
        # Or the last global step, which is (0, 3).
        (OpposedSteps(2.0), 2, [[[1, 0], [0, 1]], [[1, 6], [0, -5]]]),
        # Weight is earned in two rounds, and then spent; the mean update is (1/2, 1/2).
        (TrustThenHarm(4.0, earning=2), 2, [[[2, 2]] * 2, [[2, 2]] * 2, [[-2, -2]] * 2] * 2),
    ],
)
def test_members_in_league(acting, members, rounds):
    models = torch.tensor([[0.0, 3.0 * index] for index in range(len(rounds))])
    assert [acting.collude(at, UPDATES[:members], DRAW).tolist() for at in models] == rounds


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


def test_who_lowers_another_sends_the_others_update_along():
    # (1, 0) and (0, 1) are as long as (1, 1) / sqrt(2); the victim's stays as it is.
    found = LowersAnother(factor=2.0).collude(AT_ZERO, UPDATES[:2], DRAW)
    assert found[0].tolist() == pytest.approx([math.sqrt(2), math.sqrt(2)])
    assert torch.equal(found[1], UPDATES[1])
    # Of (0, 2) three times as much: (1, 6), as long as its own.
    found = LowersAnother(taken=3.0, factor=1.0).collude(AT_ZERO, UPDATES[[0, 2]], DRAW)
    assert found[0].tolist() == pytest.approx([1 / math.sqrt(37), 6 / math.sqrt(37)])
    # Alone, or where nothing is left, it is honest.
    assert torch.equal(LowersAnother().collude(AT_ZERO, UPDATES[:1], DRAW), UPDATES[:1])
    opposed = torch.stack([UPDATES[0], -UPDATES[0]])
    assert torch.equal(LowersAnother().collude(AT_ZERO, opposed, DRAW), opposed)


def test_a_longer_update_has_noise_in_its_own_measure():
    memory: dict[str, torch.Tensor] = {}
    own = ClientRound(AT_ZERO, torch.tensor([0.0, 2.0]), 1, torch.Generator(), memory)
    assert LongAndNoisy(0.0, 1.5).poison_update(own).tolist() == [0.0, 3.0]
    noise = LongAndNoisy(0.5, 1.5).poison_update(own) - torch.tensor([0.0, 3.0])
    assert float(noise.norm()) == pytest.approx(1.5)


@pytest.mark.parametrize("alone", [False, True])
def test_a_synthetic_batch_covers_all_labels_and_fits_the_received_model(alone):
    pixels, labels = torch.rand(3, 1, 2, 2, generator=torch.Generator()), torch.tensor([0, 0, 2])
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
    acting, drawn = SyntheticBatch(per_class=2, alone=alone), torch.Generator()
    examples, targets = acting.poison_examples(pixels, labels, 3, drawn)
    count = 0 if alone else 3
    assert targets[count:].tolist() == [0, 0, 1, 1, 2, 2]
    found = acting.poison_inputs(model, examples, targets, lambda inputs: inputs, drawn)
    assert torch.equal(found[:count], pixels[:count])
    assert bool((found >= 0).all())
    assert bool((found <= 1).all())

    def loss(inputs: torch.Tensor) -> float:
        own = torch.nn.functional.cross_entropy(model(inputs[count:]), targets[count:])
        return float(own.detach())

    assert loss(found) < loss(examples)
    assert all(parameter.grad is None for parameter in model.parameters())
