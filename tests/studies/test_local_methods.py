"""FedNoRo and FedCorr: figures by hand, and runs that find members whose labels are wrong."""

from __future__ import annotations

import logging
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedif_flower.errors import ConfigError
from fedif_flower.local_methods import LocalRound
from fedif_flower.run.rows import read_rows
from fedif_flower.tasks.config import TrainingConfig
from fedif_studies.local_methods.fedcorr import FedCorr, corrected, intrinsic_dimensions
from fedif_studies.local_methods.fednoro import FedNoRo, distance_aware
from fedif_studies.local_methods.mixture import in_higher, on_one_scale
from tests.run.points import classes, line, run

CLIENTS, NOISY, NAN = 6, {1, 4}, math.nan


def test_figures_are_put_on_one_scale_column_by_column():
    losses = torch.tensor([[1.0, 4.0, NAN], [2.0, NAN, NAN], [3.0, 2.0, NAN]]).double()
    # Who has no figure counts as the least; nobody has any of the third.
    assert on_one_scale(losses).tolist() == [[0, 1, 0], [0.5, 0, 0], [1, 0, 0]]
    # An absurd figure counts as ten times the median, 6, and does not hide others' differences.
    absurd = on_one_scale(torch.tensor([[0.5], [0.6], [2.0], [1e15], [0.4]]).double())[:, 0]
    assert absurd.tolist() == pytest.approx([0.1 / 5.6, 0.2 / 5.6, 1.6 / 5.6, 1, 0])


def test_the_higher_component_is_noisy():
    low = torch.tensor([[0.0, 0.1], [0.1, 0.0], [0.05, 0.05], [0.02, 0.08]])
    high = torch.tensor([[0.9, 1.0], [1.0, 0.8]])
    assert in_higher(torch.cat([low, high]).double(), seed=0) == [False] * 4 + [True] * 2
    assert in_higher(torch.full((3, 2), 0.5).double(), seed=0) == [False] * 3


def test_dimensions_by_hand():
    points = torch.tensor([[0.0], [1.0], [3.0]])
    # Of two neighbours each: distances 1 and 3, 1 and 2, 2 and 3.
    expected = [-2 / math.log(a / b) for a, b in ((1, 3), (1, 2), (2, 3))]
    assert intrinsic_dimensions(points, 2).tolist() == pytest.approx(expected, rel=1e-6)


def test_labels_are_replaced_by_what_the_model_is_sure_of():
    labels = torch.tensor([0, 0, 1, 1])
    probabilities = torch.tensor([[0.1, 0.9], [0.4, 0.6], [0.8, 0.2], [0.9, 0.1]])
    found = corrected(labels, probabilities, torch.tensor([0, 1, 2]), 0.7)
    assert found.tolist() == [1, 0, 0, 1]
    assert labels.tolist() == [0, 0, 1, 1]


def test_corrections_are_of_the_labels_that_were_corrected():
    memory: dict[str, Tensor] = {}
    # It answers with class 1 whatever it sees.
    model = nn.Linear(1, 2)
    model.load_state_dict({"weight": torch.zeros(2, 1), "bias": torch.tensor([0.0, 9.0])})
    received = nn.utils.parameters_to_vector(model.parameters()).detach()
    method = FedCorr(num_classes=2, relabelled=1.0)

    def labels_at(server_round: int, own: list[int], level: float) -> list[int]:
        told = {"stage": "pass", "level": level}
        data = torch.zeros(4, 1), torch.tensor(own)
        training = TrainingConfig()
        local = LocalRound(
            model, received, training, memory, server_round, instructions=told, data=data
        )
        return method.examples(local)[1].tolist()

    assert labels_at(1, [0, 1, 0, 1], level=1.0) == [1, 1, 1, 1]
    assert labels_at(2, [0, 1, 0, 1], level=0.0) == [1, 1, 1, 1]
    # An attack begins in round 3, and ends after it.
    assert labels_at(3, [1, 0, 1, 0], level=0.0) == [1, 0, 1, 0]
    assert labels_at(4, [0, 1, 0, 1], level=0.0) == [0, 1, 0, 1]


def test_a_label_that_is_corrected_counts_as_wrong_no_longer():
    """As in its authors' code: dimensions are added up over passes, and losses are not."""
    memory: dict[str, Tensor] = {}
    # It answers with class 1 whatever it sees; a quarter of the labels are 0.
    model = nn.Linear(1, 2)
    model.load_state_dict({"weight": torch.zeros(2, 1), "bias": torch.tensor([0.0, 9.0])})
    received = nn.utils.parameters_to_vector(model.parameters()).detach()
    data = torch.zeros(20, 1), torch.tensor([0] * 5 + [1] * 15)
    method = FedCorr(num_classes=2, relabelled=1.0)

    def level_after(server_round: int, told_level: float) -> float:
        told = {"stage": "pass", "level": told_level}
        training = TrainingConfig()
        local = LocalRound(
            model, received, training, memory, server_round, instructions=told, data=data
        )
        local = replace(local, data=method.examples(local))
        term = method.term(local)
        method.finish(local, term, received)
        return float(term.report["dimension-and-level"][1])

    assert level_after(1, 0.0) == 0.25
    assert level_after(2, 0.25) == 0.0


def test_weights_fall_with_the_distance_from_clean_clients():
    updates = torch.tensor([[0.0, 0.0], [3.0, 0.0], [3.0, 2.0], [7.0, 0.0]])
    noisy = torch.tensor([False, False, True, True])
    # The noisy ones are 2 and 4 from the nearest clean one, the second.
    found = distance_aware(torch.tensor([0.1, 0.2, 0.3, 0.4]), updates, noisy)
    raw = [0.1, 0.2, 0.3 * math.exp(-0.5), 0.4 * math.exp(-1)]
    assert found.tolist() == pytest.approx([value / sum(raw) for value in raw])
    same = distance_aware(torch.full((4,), 0.25), torch.ones(4, 2), noisy)
    assert same.tolist() == pytest.approx([0.25] * 4)
    assert distance_aware(torch.zeros(4), updates, noisy).tolist() == [0.0] * 4


@pytest.mark.parametrize("value", [0.0, 1e15, -1e15])
def test_absurd_reports_are_bounded(value):
    guide = FedCorr(num_classes=2, passes=1, fine_tuning=3).guide()
    guide.note_asked([1, 2, 3, 4], 1)
    figures = torch.tensor([(2, 0), (2.1, 0), (2.05, 0), (abs(value) + 9, value)]).double()
    guide.take(1, [1, 2, 3, 4], {"dimension-and-level": figures})
    assert guide.choose_members([1, 2, 3, 4], 2).members == (
        [1, 2, 3] if value > 0 else [1, 2, 3, 4]
    )
    assert 0 <= guide.instruct(4, 2)["level"] <= 1
    guide = FedNoRo(num_classes=2, warm_up=2).guide()
    guide.take(2, [0, 1, 2], {"class-losses": torch.full((3, 2), value).double()})
    assert guide.noisy == frozenset()
    assert not guide.choose_members([0, 1, 2], 3).everyone


def sides(client: int) -> tuple[Tensor, Tensor]:
    """Points on either side of a line; six in ten of a noisy client's labels are wrong."""
    inputs, targets = line(client, 50)
    labels = (targets[:, 0] > 0).long()
    if client in NOISY:
        labels[:30] = 1 - labels[:30]
    return inputs, labels


def strips(client: int) -> tuple[Tensor, Tensor]:
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


def run_with(method: str, tmp_path, examples=sides, **chosen):
    """Run a federation of which two members have wrong labels; return the lines of its clients."""
    task = classes(
        client_data=lambda site: examples(site.partition_id),
        validation_data=lambda site: examples(100),
        test_data=lambda site: examples(101),
        model=lambda: nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3)),
        num_classes=3,
    )
    name = f"fedif_studies.local_methods.{method.lower()}:{method}"
    usual = {"strategy": "fedavg", "num_clients": CLIENTS, "momentum": 0.0, "batch_size": 60}
    run_dir = run(tmp_path, task, **{**usual, "local_method": name, **chosen})
    return read_rows(run_dir / "clients.csv")


def test_fednoro_finds_the_noisy_after_the_warm_up_and_weighs_them_less(tmp_path, caplog):
    chosen = {"FedNoRo.warm_up": 3, "FedNoRo.ramp": 4, "num_server_rounds": 6}
    with caplog.at_level(logging.INFO):
        rows = run_with("FedNoRo", tmp_path, learning_rate=0.5, local_epochs=2, **chosen)
    (found,) = [m for m in caplog.messages if "taken to be noisy" in m]
    assert found.startswith("round 3: ")
    assert found.endswith("client 1, client 4")
    weights = {int(r["partition_id"]): float(r["weight"]) for r in rows if r["round"] == "6"}
    assert max(weights[i] for i in NOISY) < min(weights[i] for i in set(weights) - NOISY)


def test_fedcorr_goes_through_the_stages_and_finds_the_noisy(tmp_path, caplog):
    chosen = {"FedCorr.passes": 3, "FedCorr.fine_tuning": 2, "num_server_rounds": 7}
    chosen |= {"FedCorr.mixup": 0.0, "FedCorr.proximal": 2.0}
    with caplog.at_level(logging.INFO):
        rows = run_with("FedCorr", tmp_path, strips, learning_rate=0.3, local_epochs=3, **chosen)
    (found,) = [m for m in caplog.messages if "taken to be noisy" in m]
    assert found.endswith("noisy: client 1, client 4")
    asked = [{int(r["partition_id"]) for r in rows if int(r["round"]) == t} for t in (4, 5, 6)]
    clean = set(range(CLIENTS)) - NOISY
    assert asked == [clean, clean, clean | NOISY]


@pytest.mark.parametrize(
    ("chosen", "reason"),
    [
        ({"strategy": "median"}, "RobustRule"),
        ({"masking.mode": "trial"}, "masking: .*members train by SGD alone"),
        ({"pace.late-rounds": 1}, "late_rounds"),
        ({"FedNoRo.warm_up": 1}, "FedNoRo.warm-up"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path, chosen, reason):
    with pytest.raises(ConfigError, match=reason):
        run_with("FedNoRo", tmp_path, **chosen)
