"""What a client adds to plain SGD: by hand, and in runs."""

from __future__ import annotations

import math
from collections import OrderedDict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.nn.utils import parameters_to_vector

from fedif_flower.errors import ConfigError
from fedif_flower.local_methods import LocalRound, LocalTerm, Moon, Scaffold
from fedif_flower.local_methods.scaffold import summed_steps
from fedif_flower.run.rows import read_rows
from fedif_flower.tasks.config import TrainingConfig
from tests.run.points import SLOPE, classes, line, regression, run

RATE, EPOCHS, ROUNDS, CLIENTS = 0.1, 3, 4, 4


@given(st.integers(1, 30), st.floats(0, 1))
def test_summed_steps_are_what_a_constant_gradient_moves_by(steps, momentum):
    weight = nn.Parameter(torch.zeros((), dtype=torch.float64))
    sgd = torch.optim.SGD([weight], lr=1.0, momentum=momentum)
    for _ in range(steps):
        weight.grad = torch.ones_like(weight)
        sgd.step()
    assert summed_steps(steps, momentum) == pytest.approx(-weight.item(), rel=1e-6)


def test_the_server_s_control_variate_by_hand():
    control = torch.tensor([1.0, 1.0])
    changes = torch.tensor([[2.0, 0.0], [0.0, 2.0], [0.0, 8.0]])
    # The third is twice as long as twice the median of the lengths 2, 2, 8. Each counts for 1 / 6.
    moved = Scaffold().moved(control, changes, share=0.5)
    assert moved.tolist() == pytest.approx([1.0 + 2 / 6, 1.0 + (2 + 4) / 6])
    zeros = Scaffold().moved(control, torch.zeros(3, 2), share=0.5)
    assert torch.equal(zeros, control)


def examples(client: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points of a line that is another for each client."""
    inputs, _ = line(client)
    return inputs, inputs @ (SLOPE + 0.2 * torch.tensor([[client], [-client]]))


def published_loop(chosen: list[list[int]]) -> torch.Tensor:
    """Algorithm 1 of the paper with option II, global rate 1, whole batches."""
    torch.manual_seed(0)
    weights = task().build_model(0)
    x = parameters_to_vector(weights.parameters()).detach().double()
    c, own = torch.zeros(3).double(), torch.zeros(CLIENTS, 3).double()
    for clients in chosen:
        models, changes = [], []
        for client in clients:
            inputs, targets = (value.double() for value in examples(client))
            y = x.clone()
            for _ in range(EPOCHS):
                y.requires_grad_(True)
                loss = functional.mse_loss(inputs @ y[:2, None] + y[2], targets)
                (gradient,) = torch.autograd.grad(loss, y)
                y = (y - RATE * (gradient - own[client] + c)).detach()
            new = own[client] - c + (x - y) / (EPOCHS * RATE)
            changes.append(new - own[client])
            own[client] = new
            models.append(y)
        x = x + (torch.stack(models) - x).mean(dim=0)
        c = c + torch.stack(changes).mean(dim=0) * len(clients) / CLIENTS
    return x.float()


def task():
    return regression(client_data=lambda site: examples(site.partition_id))


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_a_run_is_the_published_algorithm(tmp_path, share):
    settings = {"momentum": 0.0, "learning_rate": RATE, "local_epochs": EPOCHS, "batch_size": 40}
    settings |= {"fraction_train": share, "num_server_rounds": ROUNDS}
    run_dir = run(tmp_path, task(), strategy="fedavg", local_method="scaffold", **settings)
    chosen = [[] for _ in range(ROUNDS)]
    for row in read_rows(run_dir / "clients.csv"):
        chosen[int(row["round"]) - 1].append(int(row["partition_id"]))
    state = torch.load(run_dir / "model.pt", weights_only=True)
    found = torch.cat([state["weight"].flatten(), state["bias"]])
    torch.testing.assert_close(found, published_loop(chosen), rtol=1e-4, atol=1e-5)


def test_tasks_that_train_themselves_refuse_it(tmp_path):
    own = regression(train=lambda model, data, config: 0.0)
    for name in ("scaffold", "moon"):
        with pytest.raises(ConfigError, match=f"local-method = '{name}'"):
            run(tmp_path, own, local_method=name)


# -- MOON


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


def test_a_layer_that_is_not_there_is_named_before_a_run_begins(tmp_path):
    bare = classes(model=lambda: nn.Sequential(nn.Conv2d(1, 1, 1)))
    with pytest.raises(ConfigError, match="no linear layer"):
        Moon().misfit(bare, None)
    with pytest.raises(ConfigError, match=r"moon\.layer = 'body'; allowed: 0"):
        run(tmp_path, bare, local_method="moon", **{"moon.layer": "body"})
    assert list(tmp_path.iterdir()) == []


def test_a_run_with_it_ends_elsewhere_than_one_without_from_the_second_round_on(tmp_path):
    task = classes(model=lambda: nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2)))
    base = {"strategy": "fedavg", "num_server_rounds": 3, "learning_rate": 0.2}
    plain = run(tmp_path, task, **base)
    own = run(tmp_path, task, local_method="moon", **{**base, "moon.mu": 5.0})
    losses = [[float(r["test_loss"]) for r in read_rows(d / "rounds.csv")] for d in (plain, own)]
    assert losses[0][:2] == losses[1][:2]
    assert losses[0][2] != losses[1][2]
    assert losses[1][-1] < losses[1][0]
