from __future__ import annotations

import math
from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

from fedif_flower.errors import ConfigError
from fedif_flower.local_methods import LocalRound, LocalTerm, Moon
from fedif_flower.run.rows import read_rows
from fedif_flower.tasks.config import TrainingConfig
from tests.run.points import classes, run


def representing(weight: list[list[float]]) -> nn.Module:
    """Return a model that represents its inputs by w times them."""
    body, head = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    body.weight.data = torch.tensor(weight)
    return nn.Sequential(OrderedDict(body=body, head=head))


def vector(model: nn.Module) -> torch.Tensor:
    return parameters_to_vector(model.parameters()).detach()


def local(model: nn.Module, **memory: torch.Tensor) -> LocalRound:
    return LocalRound(model, vector(model), TrainingConfig(), memory)


@pytest.mark.parametrize("layer", ["", "body"])
def test_the_contrastive_term_by_hand(layer):
    same, turned = [[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [-1.0, 0.0]]
    model = representing(same)
    given = local(model, **{"moon-last-model": vector(representing(turned))})
    moon = Moon(mu=2.0, temperature=0.5, layer=layer)
    with moon.term(given) as term:
        model(torch.tensor([[1.0, 0.0]]))
        # cos 1 to the global model's, 0 to the last one's
        expected = -2.0 * math.log(math.exp(2) / (math.exp(2) + 1))
        loss = term.loss()
        assert float(loss) == pytest.approx(expected)
        loss.backward()
    assert model.body.weight.grad is not None
    assert model.head.weight.grad is None
    assert not model._forward_pre_hooks
    assert not model.head._forward_pre_hooks
    assert not model.body._forward_hooks


def test_nothing_is_added_in_a_client_s_first_round():
    given = local(model := representing([[1.0, 0.0], [0.0, 1.0]]))
    term = Moon().term(given)
    assert type(term) is LocalTerm
    Moon().finish(given, term, vector(model) + 1)
    assert torch.equal(given.memory["moon-last-model"], vector(model) + 1)
    assert type(Moon().term(given)) is not LocalTerm


def test_a_layer_that_is_not_there_is_named():
    model = nn.Sequential(nn.Conv2d(1, 1, 1))
    for memory in ({}, {"moon-last-model": vector(model)}):  # From the first round on.
        given = local(model, **memory)
        with pytest.raises(ConfigError, match="no linear layer"):
            Moon().term(given)
        with pytest.raises(ConfigError, match=r"moon\.layer = 'body'; allowed: 0"):
            Moon(layer="body").term(given)


def test_a_run_with_it_ends_elsewhere_than_one_without_from_the_second_round_on(tmp_path):
    task = classes(model=lambda: nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2)))
    base = {"strategy": "fedavg", "num_server_rounds": 3, "learning_rate": 0.2}
    plain = run(tmp_path, task, **base)
    own = run(tmp_path, task, local_method="moon", **{**base, "moon.mu": 5.0})
    losses = [[float(r["test_loss"]) for r in read_rows(d / "rounds.csv")] for d in (plain, own)]
    assert losses[0][:2] == losses[1][:2]
    assert losses[0][2] != losses[1][2]
    assert losses[1][-1] < losses[1][0]
