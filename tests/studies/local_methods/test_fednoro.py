from __future__ import annotations

import logging
import math

import pytest
import torch
from flwr.app import RecordDict
from sklearn.mixture import GaussianMixture
from torch import nn
from torch.nn import functional
from torch.nn.utils import parameters_to_vector

from fedif_flower.client.app import task_app
from fedif_flower.errors import ConfigError, ReplyError
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.messages.layout import ParameterLayout
from fedif_flower.messages.models import tensor_arrays
from fedif_flower.messages.vector_workspace import VectorWorkspace
from fedif_flower.round import ModelVectors, RoundUpdates
from fedif_flower.run.config import RunConfig
from fedif_flower.run.federation import run_federation
from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_studies.local_methods.fednoro import (
    FedNoRo,
    FedNoRoGuide,
    distance_aware,
)
from tests.run.points import classes, line, regression, run

NAME = "fedif_studies.local_methods.fednoro:FedNoRo"

NAN = math.nan
RATE, EPOCHS, WARM_UP, ROUNDS, CLIENTS = 0.5, 2, 3, 6, 6
NOISY = {1, 4}


def test_weights_fall_with_the_distance_from_clean_clients():
    updates = torch.tensor([[0.0, 0.0], [3.0, 0.0], [3.0, 2.0], [7.0, 0.0]])
    noisy = torch.tensor([False, False, True, True])
    # The noisy ones are 2 and 4 from the nearest clean one, the second.
    found = distance_aware(torch.tensor([0.1, 0.2, 0.3, 0.4]), updates, noisy)
    raw = [0.1, 0.2, 0.3 * math.exp(-0.5), 0.4 * math.exp(-1)]
    assert found.tolist() == pytest.approx([value / sum(raw) for value in raw])
    same = distance_aware(torch.full((4,), 0.25), torch.ones(4, 2), noisy)
    assert same.tolist() == pytest.approx([0.25] * 4)
    nothing = distance_aware(torch.zeros(4), updates, noisy)
    assert nothing.tolist() == [0.0] * 4


def test_the_guide_splits_once_and_tells_each_client():
    guide = FedNoRo(num_classes=2, warm_up=3, ramp=1, distillation=0.6).guide()
    members = [10, 11, 12]
    assert guide.turn(members, 2) == (members, False)
    assert guide.told(10, 2) == {"report": False, "distillation": 0.0}
    assert guide.expected(2) == {}
    guide.take(2, members, {})
    assert guide.turn(members, 3).everyone
    assert guide.told(10, 3) == {"report": True, "distillation": 0.0}
    assert guide.expected(3) == {"class-losses": 2}
    # Too few: everybody is asked again.
    guide.take(3, [10], {"class-losses": torch.ones(1, 2).double()})
    assert guide.turn(members, 4).everyone
    losses = torch.tensor([[0.1, 0.1], [2.0, -1.0], [0.1, 0.1]]).double()
    guide.take(4, members, {"class-losses": losses})
    assert guide.noisy == {11}
    assert not guide.turn(members, 5).everyone
    assert [guide.told(i, 5)["distillation"] for i in (10, 11, 99)] == [0, 0.6, 0]
    guide.take(5, members, {})
    again = FedNoRoGuide(FedNoRo(num_classes=2, warm_up=3))
    again.load_state_dict(guide.state_dict())
    assert again.noisy == {11}
    assert again.told(11, 5)["distillation"] == pytest.approx(0.8 * math.exp(-5))


@pytest.mark.parametrize("value", [0.0, 1e15, -1e15])
def test_absurd_reports_of_all_make_nobody_noisy(value):
    guide = FedNoRo(num_classes=2, warm_up=2).guide()
    guide.take(2, [0, 1, 2], {"class-losses": torch.full((3, 2), value).double()})
    assert guide.noisy == frozenset()
    assert not guide.turn([0, 1, 2], 3).everyone


@pytest.mark.parametrize("ids", [(0, 1), (2, 3)])
def test_without_clean_or_noisy_clients_in_a_round_weights_stay(ids):
    guide = FedNoRo(num_classes=2).guide()
    guide.noisy = frozenset({2, 3})
    updates = RoundUpdates(
        server_round=12,
        client_ids=ids,
        num_examples=torch.ones(2).double(),
        model=ModelVectors(torch.zeros(2), torch.zeros(0)),
        client_updates=torch.eye(2),
        squared_norms=torch.ones(2).double(),
        buffer_updates=torch.zeros(2, 0),
    )
    weights = torch.tensor([0.3, 0.7])
    assert guide.weighted(updates, weights) is weights


def labelled(client: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points on either side of a line; six in ten of a noisy client's labels are wrong."""
    inputs, targets = line(client, 50)
    labels = (targets[:, 0] > 0).long()
    if client in NOISY:
        labels[:30] = 1 - labels[:30]
    return inputs, labels


def task():
    return classes(client_data=lambda site: labelled(site.partition_id), num_classes=2)


def published_loop() -> torch.Tensor:
    """Both stages with all clients, whole batches; losses are those at the warm-up's last round."""
    torch.manual_seed(0)
    w = parameters_to_vector(task().build_model(0).parameters()).detach().double()
    data = [(x.double(), y) for x, y in map(labelled, range(CLIENTS))]
    noisy: set[int] = set()

    def answer(v: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return x @ v[:4].view(2, 2).T + v[4:]

    for t in range(1, ROUNDS + 1):
        models, losses = [], []
        for client, (x, y) in enumerate(data):
            prior = torch.bincount(y, minlength=2).double() / len(y)
            teacher = functional.softmax(answer(w, x) / 0.8, dim=1)
            own = functional.cross_entropy(answer(w, x), y, reduction="none")
            losses.append([float(own[y == c].mean()) for c in (0, 1)])
            weight = 0.8 * math.exp(-5 * (1 - (t - WARM_UP - 1) / 3) ** 2)
            weight = min(weight, 0.8) if client in noisy else 0.0
            v = w.clone()
            for _ in range(EPOCHS):
                v.requires_grad_(True)
                log_p = functional.log_softmax(answer(v, x) + prior.log(), dim=1)
                loss = (1 - weight) * functional.nll_loss(log_p, y)
                loss = loss + weight * functional.kl_div(log_p, teacher, reduction="batchmean")
                v = (v - RATE * torch.autograd.grad(loss, v)[0]).detach()
            models.append(v)
        shares = torch.full((CLIENTS,), 1 / CLIENTS).double()
        if noisy:
            clean = set(range(CLIENTS)) - noisy
            d = torch.zeros(CLIENTS).double()
            for i in noisy:
                d[i] = min((models[i] - models[j]).norm() for j in clean)
            shares = shares * torch.exp(-d / d.max())
        w = (shares[:, None] / shares.sum() * torch.stack(models)).sum(0)
        if t == WARM_UP:
            figures = torch.tensor(losses)
            low, high = figures.amin(0), figures.amax(0)
            figures = ((figures - low) / (high - low)).numpy()
            mixture = GaussianMixture(2, random_state=0).fit(figures)
            higher = mixture.means_.sum(axis=1).argmax()
            noisy = {i for i, c in enumerate(mixture.predict(figures)) if c == higher}
            assert noisy == NOISY
    return w.float()


def test_a_run_is_the_published_algorithm(tmp_path, caplog):
    chosen = {
        "strategy": "fedavg",
        "num_clients": CLIENTS,
        "local_method": NAME,
        "momentum": 0.0,
        "learning_rate": RATE,
        "local_epochs": EPOCHS,
        "batch_size": 50,
        "num_server_rounds": ROUNDS,
        "FedNoRo.warm_up": WARM_UP,
        "FedNoRo.ramp": 4,
    }
    with caplog.at_level(logging.INFO):
        run_dir = run(tmp_path, task(), **chosen)
    (found,) = [m for m in caplog.messages if "taken to be noisy" in m]
    assert found.startswith(f"round {WARM_UP}: ")
    state = torch.load(run_dir / "model.pt", weights_only=True)
    own = torch.cat([state["weight"].flatten(), state["bias"]])
    torch.testing.assert_close(own, published_loop(), rtol=1e-4, atol=1e-5)
    rows = read_rows(run_dir / "clients.csv")
    last = [r for r in rows if int(r["round"]) == ROUNDS]
    weights = {int(r["partition_id"]): float(r["weight"]) for r in last}
    assert max(weights[i] for i in NOISY) < min(weights[i] for i in set(weights) - NOISY)


def test_no_report_stops_a_run_and_a_reply_without_one_is_refused(tmp_path):
    def lie(message, context, call_next):
        reply = call_next(message, context)
        reports = {1: None, 2: torch.full((2,), 1e15), 3: torch.full((2,), -7.0)}
        partition_id = int(context.node_config["partition-id"])
        if "local-method" in reply.content and partition_id in reports:
            report = reports[partition_id]
            del reply.content["local-method"]
            if report is not None:
                reply.content["local-method"] = tensor_arrays({"class-losses": report.double()})
        return reply

    config = RunConfig.from_run_config(
        {
            "task": "this-app:sides",
            "num-clients": CLIENTS,
            "fraction-train": 1.0,
            "num-server-rounds": 4,
            "local-method": NAME,
            "FedNoRo.warm-up": 2,
            "device": "cpu",
            "output-dir": str(tmp_path),
        }
    )
    grid = LocalGrid(task_app(task(), [lie]), CLIENTS)
    rows = read_rows(run_federation(grid, config, task=task()) / "clients.csv")
    refused = [(int(r["round"]), int(r["partition_id"])) for r in rows if r["status"] != "accepted"]
    assert refused == [(2, 1)]
    assert len(rows) == 4 * CLIENTS


@pytest.mark.parametrize(
    ("report", "reason"),
    [
        (None, "no array 'class-losses'"),
        ({"class-losses": torch.ones(3).double()}, "class-losses"),
        ({"class-losses": torch.tensor([1.0, NAN]).double()}, "has nan"),
        ({"class-losses": torch.tensor([1, 2])}, "dtype int64"),
        (
            {"class-losses": torch.ones(2), "more": torch.ones(2)},
            "2 arrays beside the model's, not 1",
        ),
    ],
)
def test_a_report_is_screened(report, reason):
    layout = ParameterLayout.from_arrays(tensor_arrays({"weight": torch.zeros(1, 2)}))
    workspace = VectorWorkspace(layout, has_vector=False)
    workspace.expect({"class-losses": 2})
    workspace.reserve(1)
    records = {"arrays": tensor_arrays({"weight": torch.ones(1, 2)})}
    if report is not None:
        records["local-method"] = tensor_arrays(report)
    received = ModelVectors(torch.zeros(2), torch.zeros(0), {})
    with pytest.raises(ReplyError, match=reason):
        workspace.unpack(RecordDict(records), ClientNode(0, 1), 0, received, None)


@pytest.mark.parametrize(
    ("own", "missing"),
    [
        (lambda: regression(), "class labels"),
        (lambda: regression(num_classes=2), "cross-entropy"),
        (lambda: classes(), "class labels"),
        (lambda: classes(num_classes=2, train=lambda model, data, config: 0.0), "training by SGD"),
        (
            lambda: classes(num_classes=2, loss=nn.CrossEntropyLoss(label_smoothing=0.1)),
            "cross-entropy",
        ),
    ],
)
def test_tasks_that_are_no_classifiers_are_refused(tmp_path, own, missing):
    with pytest.raises(ConfigError, match=f"local-method = '{NAME}' needs {missing}"):
        run(tmp_path, own(), local_method=NAME)


@pytest.mark.parametrize(
    ("chosen", "reason"),
    [
        ({"strategy": "median"}, "RobustRule"),
        ({"strategy": "fedavg", "masking.mode": "trial"}, "masking: members train by SGD alone"),
        ({"strategy": "fedavg", "late_rounds": 1}, "late_rounds"),
        ({"FedNoRo.warm_up": 1}, "FedNoRo.warm-up"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path, chosen, reason):
    with pytest.raises(ConfigError, match=reason):
        run(
            tmp_path,
            task(),
            **{"local_method": NAME, **chosen},
        )
