from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedif_flower import FLTrust
from fedif_flower.client.training import train_local
from fedif_flower.seeding import torch_generator
from fedif_flower.strategies import RootTraining, Setup
from fedif_flower.tasks.config import TrainingConfig
from tests.strategies.lines import Movers, column, play

BASE = {"fraction_evaluate": 0.0, "setup": Setup(device="cpu")}
INPUTS = torch.tensor([[1.0, 0.5], [-1.0, 0.5], [2.0, 1.0], [-2.0, 1.0]])
LABELS = torch.tensor([0, 1, 0, 1])
TRAINING = TrainingConfig(local_epochs=2, batch_size=2, learning_rate=0.1)


def fltrust() -> FLTrust:
    return FLTrust(RootTraining(layers_of_two(), INPUTS, LABELS, training=TRAINING), **BASE)


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
    assert column(report, "weight_score") == column(report, "score")
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


def test_fltrust_keeps_the_model_where_nobody_is_trusted():
    update = server_update(1)
    movers = Movers([(-2 * update).tolist(), (-update).tolist()])
    params, (report,) = play(fltrust(), layers_of_two(), movers)
    assert column(report, "weight") == [0.0, 0.0]
    assert torch.equal(params, layers_of_two().weight.detach().flatten())
