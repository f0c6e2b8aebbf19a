from __future__ import annotations

import logging
import math

import pytest
import torch
from sklearn.mixture import GaussianMixture
from torch.nn import functional
from torch.nn.utils import parameters_to_vector

from fedif_flower.errors import ConfigError
from fedif_flower.run.rows import read_rows
from fedif_studies.local_methods.fednoro import (
    FedNoRo,
    distance_aware,
)
from tests.run.points import classes, line, run

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


@pytest.mark.parametrize("value", [0.0, 1e15, -1e15])
def test_absurd_reports_of_all_make_nobody_noisy(value):
    guide = FedNoRo(num_classes=2, warm_up=2).guide()
    guide.take(2, [0, 1, 2], {"class-losses": torch.full((3, 2), value).double()})
    assert guide.noisy == frozenset()
    assert not guide.turn([0, 1, 2], 3).everyone


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


@pytest.mark.parametrize(
    ("chosen", "reason"),
    [
        ({"strategy": "median"}, "RobustRule"),
        ({"strategy": "fedavg", "masking.mode": "trial"}, "masking: members train by SGD alone"),
        ({"strategy": "fedavg", "pace.late-rounds": 1}, "late_rounds"),
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
