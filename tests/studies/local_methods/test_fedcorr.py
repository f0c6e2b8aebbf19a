from __future__ import annotations

import logging
import math

import pytest
import torch
from sklearn.mixture import GaussianMixture
from torch import nn
from torch.nn import functional
from torch.nn.utils import parameters_to_vector

from fedif_flower.errors import ConfigError, DataError
from fedif_flower.local_methods import LocalRound
from fedif_flower.run.rows import read_rows
from fedif_flower.tasks.config import TrainingConfig
from fedif_studies.local_methods.fedcorr import (
    FedCorr,
    FedCorrGuide,
    corrected,
    intrinsic_dimensions,
    noise_level,
)
from tests.run.points import classes, line, regression, run

NAME = "fedif_studies.local_methods.fedcorr:FedCorr"

RATE, EPOCHS, PASSES, TUNING, ROUNDS, CLIENTS = 0.3, 3, 3, 2, 7, 6
NOISY = {1, 4}
FIGURES = "dimension-and-level"


def test_dimensions_by_hand():
    points = torch.tensor([[0.0], [1.0], [3.0]])
    # Of two neighbours each: distances 1 and 3, 1 and 2, 2 and 3.
    expected = [-2 / math.log(a / b) for a, b in ((1, 3), (1, 2), (2, 3))]
    assert intrinsic_dimensions(points, 2).tolist() == pytest.approx(expected, rel=1e-6)
    assert intrinsic_dimensions(points, 20).tolist() == pytest.approx(expected, rel=1e-6)


def test_the_noise_level_is_the_share_of_high_losses():
    losses = torch.tensor([0.1, 0.12, 0.11, 3.0, 0.09, 3.2]).double()
    assert noise_level(losses, seed=0) == pytest.approx(2 / 6)
    assert noise_level(torch.ones(4).double(), seed=0) == 0
    assert noise_level(torch.ones(1).double(), seed=0) == 0


def test_labels_are_replaced_by_what_the_model_is_sure_of():
    labels = torch.tensor([0, 0, 1, 1])
    probabilities = torch.tensor([[0.1, 0.9], [0.4, 0.6], [0.8, 0.2], [0.9, 0.1]])
    found = corrected(labels, probabilities, torch.tensor([0, 1, 2]), 0.7)
    assert found.tolist() == [1, 0, 0, 1]
    assert labels.tolist() == [0, 0, 1, 1]


class Signs(nn.Module):
    """Sure of class 1 where the input is above 0, of class 0 below."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(5.0))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.zeros_like(inputs), self.scale * inputs], dim=1)


def local(memory: dict[str, torch.Tensor], data=None, **told) -> LocalRound:
    model = Signs()
    return LocalRound(
        model=model,
        received=parameters_to_vector(model.parameters()).detach(),
        training=TrainingConfig(),
        memory=memory,
        told=told,
        data=data or (torch.tensor([[1.0], [1.0], [-1.0], [0.01]]), torch.tensor([0, 0, 0, 0])),
    )


def test_a_noisy_member_corrects_the_worst_in_a_pass_and_all_once_afterwards():
    method, memory = FedCorr(num_classes=2), {}
    _, labels = method.examples(local(memory, stage="pass", level=0.0))
    assert labels.tolist() == [0, 0, 0, 0]
    memory["fedcorr-losses"] = torch.tensor([3.0, 5.0, 0.1, 4.0]).double()
    # Half of 4 * 0.5 labels: the one of the highest loss.
    _, labels = method.examples(local(memory, stage="pass", level=0.5))
    assert labels.tolist() == [0, 1, 0, 0]
    _, labels = method.examples(local(memory, stage="fine-tuning", level=0.5))
    assert labels.tolist() == [0, 1, 0, 0]
    sure = FedCorr(num_classes=2, confidence=0.9)
    _, labels = sure.examples(local(memory, stage="usual", level=0.5))
    assert labels.tolist() == [1, 1, 0, 0]  # Of the last one it is not sure.
    _, labels = method.examples(local(memory, stage="usual", level=0.5))
    assert labels.tolist() == [1, 1, 0, 0]
    # Another number of examples: what was kept is of others.
    fresh = torch.ones(3, 1), torch.zeros(3, dtype=torch.long)
    _, labels = method.examples(local(memory, fresh, stage="pass", level=0.0))
    assert labels.tolist() == [0, 0, 0]
    assert memory["fedcorr-losses"].tolist() == [0.0] * 3


def figures(*rows: tuple[float, float]) -> dict[str, torch.Tensor]:
    return {FIGURES: torch.tensor(rows, dtype=torch.float64)}


def test_the_guide_leads_through_the_stages():
    method = FedCorr(num_classes=2, passes=2, fine_tuning=2, clean_level=0.2)
    guide, everybody = method.guide(), [1, 2, 3, 4]
    assert guide.turn(everybody, 1) == (everybody, False)
    guide.asked([1, 2], 1)
    guide.take(1, [1, 2], figures((2.0, 0.3), (8.0, 0.4)))
    assert guide.turn(everybody, 2).members == [3, 4]
    guide.asked([3, 4], 2)
    guide.take(2, [3, 4], figures((2.1, 0.5), (7.9, 0.1)))
    assert guide.noisy == frozenset()
    # The first pass is over: 2 and 4 are noisy.
    assert guide.turn(everybody, 3).members == everybody
    assert guide.noisy == {2, 4}
    assert [guide.told(i, 3) for i in (1, 2)] == [
        {"stage": "pass", "level": 0.0},
        {"stage": "pass", "level": 0.4},
    ]
    assert guide.expected(3) == {FIGURES: 2}
    again = FedCorrGuide(method)
    again.load_state_dict(guide.state_dict())
    for one in (guide, again):
        one.asked(everybody, 3)
        one.take(3, everybody, figures((2.0, 0.3), (8.0, 0.6), (2.1, 0.5), (7.8, 0.15)))
        # 2 has too many wrong labels for the fine-tuning.
        assert one.turn(everybody, 4).members == [1, 3, 4]
        assert one.told(2, 4) == {"stage": "fine-tuning", "level": 0.6}
        assert one.expected(4) == {}
        one.take(4, [1, 3], {})
        assert one.turn(everybody, 5).members == [1, 3, 4]
        assert one.turn(everybody, 6).members == everybody
        assert one.told(99, 6) == {"stage": "usual", "level": 0.0}
    assert again.state_dict() == guide.state_dict()


def test_members_who_are_away_do_not_hold_up_a_pass():
    guide = FedCorr(num_classes=2, passes=1, fine_tuning=0).guide()
    assert guide.turn([], 1).members == []
    assert guide.told(1, 1)["stage"] == "pass"
    assert guide.turn([1, 2], 2).members == [1, 2]
    guide.asked([1], 2)
    assert guide.turn([1], 3).members == [1]  # 2 is gone, nobody has answered.
    assert guide.told(1, 3) == {"stage": "usual", "level": 0.0}


@pytest.mark.parametrize("value", [0.0, 1e15, -1e15])
def test_absurd_reports_are_bounded(value):
    guide = FedCorr(num_classes=2, passes=1, fine_tuning=3).guide()
    guide.asked([1, 2, 3], 1)
    guide.take(1, [1, 2, 3], figures(*[(value, value)] * 3))
    assert guide.turn([1, 2, 3], 2).members == [1, 2, 3]
    assert guide.noisy == frozenset()
    guide = FedCorr(num_classes=2, passes=1, fine_tuning=3).guide()
    guide.asked([1, 2, 3, 4], 1)
    guide.take(1, [1, 2, 3, 4], figures((2, 0), (2.1, 0), (2.05, 0), (abs(value) + 9, value)))
    assert guide.turn([1, 2, 3, 4], 2).members == ([1, 2, 3] if value > 0 else [1, 2, 3, 4])
    assert 0 <= guide.told(4, 2)["level"] <= 1


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3))


def labelled(client: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points in three strips; a clean client's lie on a line, most labels of others are wrong."""
    inputs, targets = line(client, 60)
    if client < CLIENTS and client not in NOISY:
        inputs = inputs * torch.tensor([1.0, 0.0])
        targets = 2 * inputs[:, :1]
    labels = (targets[:, 0] > -0.8).long() + (targets[:, 0] > 0.8).long()
    if client in NOISY:
        wrong = torch.randint(1, 3, (40,), generator=torch.Generator().manual_seed(client))
        labels[:40] = (labels[:40] + wrong) % 3
    return inputs, labels


def task():
    return classes(
        client_data=lambda site: labelled(site.partition_id),
        validation_data=lambda site: labelled(100),
        test_data=lambda site: labelled(101),
        num_classes=3,
        model=net,
    )


def published_loop() -> tuple[dict[str, torch.Tensor], list[set[int]]]:
    """All clients in each round, whole batches, nothing mixed; one round is a pass."""
    torch.manual_seed(0)
    state = task().build_model(0).state_dict()
    data = [labelled(client) for client in range(CLIENTS)]
    labels = [y.clone() for _, y in data]
    dimensions, losses = [0.0] * CLIENTS, [torch.zeros(60).double() for _ in range(CLIENTS)]
    noisy: set[int] = set()
    level = [0.0] * CLIENTS
    splits = []
    for t in range(1, ROUNDS + 1):
        passing = t <= PASSES
        clients = [i for i in range(CLIENTS) if passing or t > PASSES + TUNING or level[i] <= 0.1]
        models = []
        for client in clients:
            inputs = data[client][0]
            model = net()
            model.load_state_dict(state)
            with torch.no_grad():
                p = model(inputs).softmax(1)
            sure, answer = p.max(1)
            if client in noisy and (1 < t <= PASSES or t == PASSES + TUNING + 1):
                rows = torch.arange(60)
                if passing:
                    rows = (-losses[client]).argsort()[: int(60 * level[client] * 0.5)]
                rows = rows[sure[rows] > 0.5]
                labels[client][rows] = answer[rows]
            sgd = torch.optim.SGD(model.parameters(), lr=RATE)
            for _ in range(EPOCHS):
                sgd.zero_grad()
                loss = functional.cross_entropy(model(inputs), labels[client])
                if passing:
                    moved = [(w - state[n]).square().sum() for n, w in model.named_parameters()]
                    loss = loss + 2.0 * level[client] * sum(moved)
                loss.backward()
                sgd.step()
            models.append(model.state_dict())
            if passing:
                with torch.no_grad():
                    z = model(inputs)
                losses[client] += functional.cross_entropy(z, labels[client], reduction="none")
                nearest = torch.cdist(z.softmax(1).double(), z.softmax(1).double()).sort().values
                nearest = nearest[:, 1:21]
                dimensions[client] += float((-20 / (nearest / nearest[:, -1:]).log().sum(1)).mean())
        state = {n: torch.stack([m[n] for m in models]).mean(0) for n in state}
        if passing:
            points = torch.tensor(dimensions).double()
            low, high = points.min(), points.max()
            mixture = GaussianMixture(2, random_state=0).fit(
                ((points - low) / (high - low))[:, None]
            )
            chosen = mixture.predict(((points - low) / (high - low))[:, None])
            noisy = {i for i, c in enumerate(chosen) if c == mixture.means_[:, 0].argmax()}
            splits.append(noisy)
            level = [0.0] * CLIENTS
            for i in noisy:
                own = GaussianMixture(2, random_state=0).fit(losses[i][:, None].numpy())
                high_losses = own.predict(losses[i][:, None].numpy()) == own.means_[:, 0].argmax()
                level[i] = float(high_losses.mean())
    return state, splits


def test_a_run_is_the_published_algorithm(tmp_path, caplog):
    chosen = {
        "strategy": "fedavg",
        "num_clients": CLIENTS,
        "local_method": NAME,
        "momentum": 0.0,
        "learning_rate": RATE,
        "local_epochs": EPOCHS,
        "batch_size": 60,
        "num_server_rounds": ROUNDS,
        "FedCorr.passes": PASSES,
        "FedCorr.fine_tuning": TUNING,
        "FedCorr.mixup": 0.0,
        "FedCorr.proximal": 2.0,
    }
    with caplog.at_level(logging.INFO):
        run_dir = run(tmp_path, task(), **chosen)
    (found,) = [m for m in caplog.messages if "taken to be noisy" in m]
    assert "client 1 " in found
    assert "client 4 " in found
    state = torch.load(run_dir / "model.pt", weights_only=True)
    expected, splits = published_loop()
    assert splits == [NOISY] * PASSES
    for name, value in expected.items():
        torch.testing.assert_close(state[name], value, rtol=1e-3, atol=1e-4)
    rows = read_rows(run_dir / "clients.csv")
    asked = [{int(r["partition_id"]) for r in rows if int(r["round"]) == t} for t in (4, 5, 6)]
    clean = set(range(CLIENTS)) - NOISY
    assert asked == [clean, clean, clean | NOISY]


@pytest.mark.parametrize(
    ("own", "missing"),
    [
        (lambda: regression(), "class labels"),
        (lambda: classes(num_classes=2, train=lambda model, data, config: 0.0), "training by SGD"),
        (lambda: classes(num_classes=2, loss=nn.CrossEntropyLoss(torch.ones(2))), "cross-entropy"),
        (
            lambda: classes(num_classes=2, validation_data=lambda site: [labelled(1)]),
            "data as a pair of tensors",
        ),
    ],
)
def test_tasks_that_are_no_classifiers_are_refused(tmp_path, own, missing):
    with pytest.raises(ConfigError, match=f"local-method = '{NAME}' needs {missing}"):
        run(tmp_path, own(), local_method=NAME)


def test_data_whose_order_may_change_are_refused():
    with pytest.raises(DataError, match="a pair of tensors"):
        FedCorr(num_classes=2).examples(local({}, [(torch.ones(2, 1), torch.ones(2))]))
