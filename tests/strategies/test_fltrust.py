from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from fedif_flower import RFA, FedAdp, FLTrust, ShapFed
from fedif_flower.client.training import TrainingConfig, train_local
from fedif_flower.errors import ConfigError
from fedif_flower.seeding import torch_generator
from tests.strategies.lines import Movers, column, play

BASE = {"fraction_evaluate": 0.0, "device": "cpu"}


def point() -> nn.Module:
    """Two parameters, both 0."""
    line = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(line.weight)
    return line


# -- RFA ------------------------------------------------------------------------------------------


def test_rfa_by_hand():
    # Two clients at 0, one at 10: from the mean 10/3 to 2, to 10/9, to 10/17.
    params, (report,) = play(RFA(**BASE), point(), Movers([[0, 0], [0, 0], [10, 0]]))
    assert params.tolist() == pytest.approx([10 / 17, 0.0])
    assert column(report, "weight") == pytest.approx([8 / 17, 8 / 17, 1 / 17])


def test_rfa_starts_from_fedavgs_weights():
    movers = Movers([[0, 0], [10, 0]], examples=[30, 10])
    _, (report,) = play(RFA(iterations=0, **BASE), point(), movers)
    assert column(report, "weight") == pytest.approx([0.75, 0.25])


# -- FedAdp ---------------------------------------------------------------------------------------


def gompertz(angle: float, alpha: float = 5.0) -> float:
    return alpha * (1 - math.exp(-math.exp(-alpha * (angle - 1))))


def test_fedadp_by_hand():
    # The mean update is (1 + 1 - 1) / 3 along the first axis: angles 0, 0 and pi.
    movers = Movers([[1, 0], [1, 0], [-1, 0]])
    _, (report,) = play(FedAdp(**BASE), point(), movers)
    factors = [math.exp(gompertz(angle)) for angle in (0.0, 0.0, math.pi)]
    assert column(report, "weight") == pytest.approx([f / sum(factors) for f in factors])
    assert column(report, "contribution") == pytest.approx([0.0, 0.0, -math.pi], abs=1e-6)


def test_fedadp_counts_examples_and_remembers_angles():
    strategy = FedAdp(alpha=1.0, **BASE)
    movers = Movers([[1, 0], [0, 1]], examples=[30, 10])
    _, reports = play(strategy, point(), movers, rounds=2)
    # The mean update is (3, 1) / 4.
    angles = [math.atan2(1, 3), math.atan2(3, 1)]
    factors = [n * math.exp(gompertz(a, 1.0)) for n, a in zip((30, 10), angles, strict=True)]
    for report in reports:
        assert column(report, "weight") == pytest.approx([f / sum(factors) for f in factors])
    other = FedAdp(alpha=1.0, **BASE)
    other.load_state_dict(strategy.state_dict())
    assert other.rule.angles == strategy.rule.angles
    assert len(other.rule.angles) == 2


# -- ShapFed --------------------------------------------------------------------------------------


def layers() -> nn.Module:
    """Ten parameters, of which 6 to 7 are the last layer's matrix; 8 to 9 come after it."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1, bias=False), nn.GroupNorm(1, 1))


def test_shapfed_looks_at_the_last_layer_alone():
    honest = [1.0] * 6 + [3.0, 4.0] + [1.0, 1.0]
    opposite_elsewhere = [-1.0] * 6 + [3.0, 4.0] + [-1.0, -1.0]
    opposite_there = [1.0] * 6 + [-3.0, -4.0] + [1.0, 1.0]
    movers = Movers([honest, opposite_elsewhere, opposite_there])
    _, (report,) = play(ShapFed(layers(), **BASE), layers(), movers)
    assert column(report, "score") == pytest.approx([1.0, 1.0, -1.0])
    assert column(report, "contribution") == pytest.approx([0.5, 0.5, -0.5])
    assert column(report, "weight") == pytest.approx([0.5, 0.5, 0.0])


def test_shapfed_weighs_the_aggregate_by_examples():
    rest = [0.0] * 6
    movers = Movers([[*rest, 1, 0, 0, 0], [*rest, 0, 1, 0, 0]], examples=[30, 10])
    _, (report,) = play(ShapFed(layers(), **BASE), layers(), movers)
    assert column(report, "score") == pytest.approx([3 / 10**0.5, 1 / 10**0.5])


def test_shapfed_goes_by_trainable_layers():
    model = layers()
    model[1].requires_grad_(False)
    strategy = ShapFed(model, **BASE)
    # Now the first layer's matrix is the last one trained: entries 0 to 3, two classes.
    step = [1.0, 0.0, 0.0, 1.0]
    movers = Movers([step + [0.0] * 6, [-1.0, 0.0, 0.0, 1.0] + [0.0] * 6])
    _, (report,) = play(strategy, layers(), movers)
    # Class 0 cancels out, so neither agrees with it; class 1 has both.
    assert column(report, "score") == pytest.approx([0.5, 0.5])


def test_shapfed_needs_a_last_layer():
    with pytest.raises(ConfigError, match="no fully connected layer"):
        ShapFed(nn.Conv2d(1, 1, 3))


# -- FLTrust --------------------------------------------------------------------------------------

INPUTS = torch.tensor([[1.0, 0.5], [-1.0, 0.5], [2.0, 1.0], [-2.0, 1.0]])
LABELS = torch.tensor([0, 1, 0, 1])
TRAINING = TrainingConfig(local_epochs=2, batch_size=2, learning_rate=0.1)


def fltrust() -> FLTrust:
    return FLTrust(layers_of_two(), INPUTS, LABELS, training=TRAINING, **BASE)


def layers_of_two() -> nn.Module:
    torch.manual_seed(1)
    return nn.Linear(2, 2, bias=False)


def server_update(server_round: int, moved: Tensor | None = None) -> Tensor:
    """Return what the server should learn in a round from a model that has ``moved`` [d]."""
    model = layers_of_two()
    with torch.no_grad():
        model.weight += 0.0 if moved is None else moved.view(2, 2)
    before = model.weight.detach().clone()
    generator = torch_generator("root-training", 0, server_round)
    train_local(model, INPUTS, LABELS, TRAINING, generator)
    return (model.weight.detach() - before).flatten()


def test_fltrust_refuses_an_opposite_update_and_cuts_a_long_one():
    update = server_update(1)
    assert update.norm() > 0.01
    movers = Movers([(3 * update).tolist(), (-update).tolist(), [0.0] * 4])
    params, (report,) = play(fltrust(), layers_of_two(), movers)
    assert column(report, "score") == pytest.approx([1.0, 0.0, 0.0], abs=1e-5)
    assert column(report, "contribution") == column(report, "score")
    assert column(report, "weight") == pytest.approx([1 / 3, 0.0, 0.0], abs=1e-5)
    torch.testing.assert_close(params, layers_of_two().weight.detach().flatten() + update)


def test_fltrust_trains_from_each_rounds_model():
    first = server_update(1)
    # Both clients go twice as far as the server, and are cut to its length.
    movers = Movers([(2 * first).tolist()] * 2)
    params, reports = play(fltrust(), layers_of_two(), movers, rounds=2)
    second = server_update(2, moved=first)
    assert second.norm() < 0.95 * first.norm()
    trust = torch.cosine_similarity(first, second, dim=0).item()
    assert column(reports[1], "score") == pytest.approx([trust] * 2, rel=1e-4)
    moved = params - layers_of_two().weight.detach().flatten()
    torch.testing.assert_close(moved, first * (1 + second.norm() / first.norm()))


def test_fltrust_leaves_the_given_model_alone():
    model = layers_of_two()
    before = model.weight.detach().clone()
    strategy = FLTrust(model, INPUTS, LABELS, training=TRAINING, **BASE)
    play(strategy, layers_of_two(), Movers([[1.0] * 4] * 2))
    assert torch.equal(model.weight, before)
