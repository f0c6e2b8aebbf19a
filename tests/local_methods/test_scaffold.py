from __future__ import annotations

import pytest
import torch
from flwr.app import RecordDict
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.nn.utils import parameters_to_vector

from fedif_flower.errors import ConfigError, ReplyError
from fedif_flower.local_methods import LocalRound, Scaffold
from fedif_flower.local_methods.scaffold import summed_steps
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.messages.layout import ParameterLayout
from fedif_flower.messages.models import tensor_arrays
from fedif_flower.messages.screening import Workspace
from fedif_flower.round import ModelVectors
from fedif_flower.run.rows import read_rows
from fedif_flower.tasks.config import TrainingConfig
from tests.run.points import SLOPE, line, regression, run

RATE, EPOCHS, ROUNDS, CLIENTS = 0.1, 3, 4, 4


@given(st.integers(1, 30), st.floats(0, 1))
def test_summed_steps_are_what_a_constant_gradient_moves_by(steps, momentum):
    weight = nn.Parameter(torch.zeros((), dtype=torch.float64))
    sgd = torch.optim.SGD([weight], lr=1.0, momentum=momentum)
    for _ in range(steps):
        weight.grad = torch.ones_like(weight)
        sgd.step()
    assert summed_steps(steps, momentum) == pytest.approx(-weight.item(), rel=1e-6)


def test_a_client_s_control_variate_by_hand():
    model = nn.Linear(2, 1, bias=False)
    memory = {"scaffold-control": torch.tensor([1.0, 0.0])}
    training = TrainingConfig(learning_rate=0.5, momentum=0.0)
    received, control = torch.tensor([3.0, 2.0]), torch.tensor([0.0, 4.0])
    local = LocalRound(model, received, training, memory, control)
    term = Scaffold().term(local)
    assert term.gradient.tolist() == [-1.0, 4.0]  # c - c_i
    term.steps = 2
    # (x - y) / (0.5 * 2) = [2, 1]; c_i+ = [1, 0] - [0, 4] + [2, 1]
    change = Scaffold().finish(local, term, torch.tensor([1.0, 1.0]))
    assert change.tolist() == [2.0, -3.0]
    assert memory["scaffold-control"].tolist() == [3.0, -3.0]


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


@pytest.mark.parametrize(
    ("vector", "reason"),
    [
        (None, "no array 'local-method'"),
        (torch.tensor([1.0, float("nan")]), "has NaN or Inf"),
        (torch.ones(3), "local-method"),
        (torch.ones(2, dtype=torch.int64), "dtype int64"),
    ],
)
def test_a_vector_is_screened_like_an_update(vector, reason):
    records = {"arrays": tensor_arrays({"weight": torch.ones(1, 2)})}
    if vector is not None:
        records["local-method"] = tensor_arrays({"local-method": vector})
    layout = ParameterLayout.from_arrays(tensor_arrays({"weight": torch.zeros(1, 2)}))
    workspace = Workspace(layout, has_vector=True)
    workspace.reserve(1)
    received = ModelVectors(torch.zeros(2), torch.zeros(0), {})
    with pytest.raises(ReplyError, match=reason):
        workspace.unpack(RecordDict(records), ClientNode(0, 1), 0, received, None)


def test_tasks_that_train_themselves_refuse_it(tmp_path):
    own = regression(train=lambda model, data, config: 0.0)
    for name in ("scaffold", "moon"):
        with pytest.raises(ConfigError, match=f"local-method = '{name}'"):
            run(tmp_path, own, local_method=name)
