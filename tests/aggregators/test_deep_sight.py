from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from fedif_flower.aggregators import DeepSight
from fedif_flower.aggregators.deep_sight import (
    deep_sight_clusters,
    deep_sight_coefficients,
    is_suspicious,
    output_energies,
    probability_ratios,
)
from fedif_flower.errors import ConfigError
from fedif_flower.strategies import RobustRule, Setup
from tests.strategies.lines import BASE, Movers, column, play

INPUTS = (torch.tensor([[0.0, 1.0], [2.0, -1.0]]), torch.tensor([0, 1]))


def test_energies_by_hand():
    weights = torch.tensor([[[1.0, -1.0], [0.0, 0.5]], [[0.0, 0.0], [0.0, 0.0]]])
    biases = torch.tensor([[1.0, -0.5], [0.0, 0.0]])
    # 3 and 1; who changed nothing has no energy.
    assert output_energies(weights, biases).tolist() == [[0.9, 0.1], [0.0, 0.0]]


def test_who_moved_half_as_many_neurons_as_most_is_suspicious():
    # With 4 classes more than a quarter of the largest counts: 3, 1, 3 and 2 neurons.
    energies = [[0.4, 0.2, 0.3, 0.1], [0.9, 0.05, 0.05, 0.0], [0.4, 0.2, 0.3, 0.1]]
    energies += [[0.5, 0.4, 0.1, 0.0]]
    assert is_suspicious(torch.tensor(energies)).tolist() == [False, True, False, False]


def test_ratios_by_hand():
    before = torch.tensor([[0.5, 0.5], [0.25, 0.75]]).double().log()
    client = torch.tensor([[0.25, 0.75], [0.5, 0.5]]).double().log()
    expected = [(0.5 + 2) / 2, (1.5 + 2 / 3) / 2]
    assert probability_ratios(client, before).tolist() == pytest.approx(expected)
    gone = torch.tensor([[0.0, 1.0]]).double().log()
    assert bool(probability_ratios(client[:1], gone).isfinite().all())
    assert probability_ratios(torch.full((1, 2), math.nan), before[:1]).tolist() == [1, 1]


def test_two_groups_that_all_figures_tell_apart_are_two_clusters():
    group = torch.tensor([0, 0, 0, 0, 1, 1, 1])
    jitter = 0.01 * torch.arange(7.0)[:, None]
    points = 5.0 * group[:, None] + jitter  # [7, 1]
    cosines = (points - points.T).abs().double() / 10
    labels = deep_sight_clusters(cosines, points, points[None])
    assert bool((labels >= 0).all())
    assert bool(((labels[:, None] == labels) == (group[:, None] == group)).all())
    zeros = torch.zeros(2, 2)
    assert deep_sight_clusters(zeros, zeros, zeros[None]).tolist() == [-1, -1]  # Too few.


def test_a_cluster_goes_with_a_third_of_suspicious_members_and_lengths_are_bounded():
    clusters = torch.tensor([0, 0, 0, 1, 1, 1, 1, -1, -1])
    suspicious = torch.tensor([True, False, False, True, False, False, False, True, False])
    norms = torch.tensor([1.0, 1.0, 1.0, 2.0, 4.0, 8.0, 1.0, 2.0, 2.0])
    # Of the first cluster a third is suspicious, of the second a quarter; the median is 2.
    coefficients = deep_sight_coefficients(clusters, suspicious, norms, 1 / 3)
    assert (5 * coefficients).tolist() == [0, 0, 0, 1, 0.5, 0.25, 1, 0, 1]
    kept = deep_sight_coefficients(clusters, suspicious, norms, 0.5)
    assert (kept > 0).tolist() == [True] * 7 + [False, True]
    assert not bool(deep_sight_coefficients(clusters, torch.ones(9).bool(), norms, 1 / 3).any())


def test_a_round_leaves_out_who_moved_one_class_alone():
    """Five move all classes, two of a cluster of their own one class far, both ways."""
    torch.manual_seed(0)
    model = nn.Linear(2, 3)
    honest = torch.tensor([0.3, 0.1, 0.3, -0.2, 0.2, 0.3, 0.1, -0.1, 0.2])
    attack = torch.tensor([0.0, 0.0, 0.0, 0.0, 3.0, -3.0, 0.0, 0.0, 3.0])
    rows = [*(honest * (1 + 0.01 * k) for k in range(5)), attack, 1.02 * attack]
    steps = torch.stack(rows).tolist()
    strategy = RobustRule(DeepSight(model, INPUTS, samples=50), **BASE)
    _, (report,) = play(strategy, model, Movers(steps))
    weights = column(report, "weight")
    assert weights[5:] == [0, 0]
    assert all(0.1 < weight <= 0.2 for weight in weights[:5])


def test_a_frozen_part_moves_nobody_s_output_layer_elsewhere():
    """The same round as above, with a frozen layer of six numbers below the other."""
    frozen = nn.Linear(2, 2).requires_grad_(False)
    with torch.no_grad():
        frozen.weight.copy_(torch.eye(2))
        frozen.bias.zero_()
    model = nn.Sequential(frozen, nn.Linear(2, 3))
    honest = [0.3, 0.1, 0.3, -0.2, 0.2, 0.3, 0.1, -0.1, 0.2]
    attack = [0.0, 0.0, 0.0, 0.0, 3.0, -3.0, 0.0, 0.0, 3.0]
    rows = [[(1 + 0.01 * k) * x for x in honest] for k in range(5)]
    rows += [attack, [1.02 * x for x in attack]]
    strategy = RobustRule(DeepSight(model, INPUTS, samples=50), **BASE)
    _, (report,) = play(strategy, model, Movers([[0.0] * 6 + row for row in rows]))
    weights = column(report, "weight")
    assert weights[5:] == [0, 0]
    assert all(0.1 < weight <= 0.2 for weight in weights[:5])
    other = nn.Sequential(frozen, nn.Linear(2, 4))
    with pytest.raises(ConfigError, match="was given a model in which"):
        play(RobustRule(DeepSight(model, INPUTS), **BASE), other, Movers([[0.0] * 18]))


FROZEN = nn.Linear(2, 2).requires_grad_(False)


@pytest.mark.parametrize("below", [[], [FROZEN]])
def test_a_model_without_a_last_bias_or_with_a_frozen_part_in_bfloat16_is_judged(below):
    model = nn.Sequential(*below, nn.Linear(2, 3, bias=False))
    model.to(torch.bfloat16 if below else torch.float32)
    setup = Setup(device="cpu", trainable_keys=[list(model.state_dict())[-1]])
    rule = RobustRule(DeepSight(model, INPUTS, samples=5), fraction_evaluate=0.0, setup=setup)
    before = [0.0] * (sum(p.numel() for p in model.parameters()) - 6)
    _, (report,) = play(rule, model, Movers([before + [0.1 * k] * 6 for k in (1, 2, 3)]))
    assert not report.failed


class HeadFirst(nn.Module):
    """Registers its head before its body."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 3)
        self.body = nn.Linear(2, 8)

    def forward(self, inputs):
        return self.head(self.body(inputs).relu())


@pytest.mark.parametrize(
    ("model", "inputs", "message"),
    [
        (nn.Conv2d(1, 1, 1), INPUTS, "the model has no fully connected layer"),
        (nn.Linear(2, 2), (torch.ones(2, 2).long(), INPUTS[1]), "random inputs like int64"),
        (HeadFirst(), INPUTS, "model = 'body.weight of 8 outputs'; allowed: a model of 3 outputs"),
        (nn.Linear(2, 1), INPUTS, "model = 'of one output'; allowed: classes"),
    ],
)
def test_what_does_not_fit_is_refused(model, inputs, message):
    with pytest.raises(ConfigError, match=message):
        DeepSight(model, inputs)
