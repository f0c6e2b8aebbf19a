"""Every strategy that a run can name keeps one contract, with the real clients, on digits.

Some attacks might cost a model for ever: updates far too long, and predictors that give every input
the same answer. Their loss is near ln 10, less than that of an untrained model, and no client can
train one further, so a rule that looks at the loss alone may stay with it. Each of four clients in
ten sends another one; what a processor's rounding makes of their sums must not matter.
"""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch

from fedif_flower.strategies.registry import STRATEGIES, gives_coefficients
from tests.strategies.named import Spoiler, config, full_of, run

# Coalitions of five clients: 32, the empty one included.
MOST_EVALUATIONS = {
    "fedif": 1,
    "influence-descent": 9,
    "afedsv": 32,
    "fedsv": 32,
    "s-fedavg": 32,
    "leave-one-out": 6,
}
BY_COALITIONS = ("afedsv", "fedsv", "s-fedavg", "leave-one-out")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_name_runs_and_learns(tmp_path, strategy):
    summary, model, clients = run(config(tmp_path, strategy))
    assert summary["config"]["strategy"] == strategy
    assert (summary["rounds"], summary["accepted"], summary["rejected"]) == (2, 10, 0)
    assert 0.1 < summary["test_accuracy"] <= 1.0
    assert all(torch.isfinite(value).all() for value in model.values())
    evaluations = summary["evaluations_per_round"]
    assert 0 <= evaluations <= MOST_EVALUATIONS.get(strategy, 0)
    assert (evaluations > 0) == (strategy in MOST_EVALUATIONS)
    weights = [float(row["weight"]) for row in clients if row["weight"]]
    assert all(weight >= 0 for weight in weights)
    assert bool(weights) == gives_coefficients(strategy)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_hostile_replies_stop_no_strategy(tmp_path, strategy):
    """With momentum. One reply nears the end of float32; one is the largest that is let in."""
    settings = {"fraction-train": 1.0, "num-server-rounds": 4, "server-optimizer": "fedavgm"}
    if strategy in BY_COALITIONS:
        settings[f"{strategy}.utility"] = "loss"
    chosen = config(tmp_path, strategy, **settings)
    summary, model, clients = run(chosen, Spoiler(full_of(p1=3e38, p2=9e14), rounds=1))
    assert summary["rounds"] == 4
    first = [row for row in clients if row["rejection"] and row["round"] == "1"]
    assert [(row["partition_id"], "3e+38" in row["rejection"]) for row in first] == [("1", True)]
    assert all(torch.isfinite(value).all() for value in model.values())


@pytest.mark.parametrize(
    ("strategy", "most"),
    # AFedSV's contributions begin at 0.5, and one bad round takes 30 % of that.
    [("fedif", 0.0), ("leave-one-out", 0.0), ("krum", 0.0), ("rfa", 1e-3), ("afedsv", 0.07)],
)
def test_who_destroys_the_model_has_the_least_weight(tmp_path, strategy, most):
    chosen = config(tmp_path, strategy, **{"fraction-train": 1.0, "num-server-rounds": 1})
    _, _, clients = run(chosen, Spoiler(full_of(p1=9e14)))
    weights = {row["partition_id"]: float(row["weight"]) for row in clients}
    assert weights["1"] == min(weights.values())
    assert weights["1"] <= most


def test_krum_is_told_the_assumed_share(tmp_path, caplog):
    attacked = {"malicious-fraction": 0.6, "num-server-rounds": 1}
    untold = config(tmp_path, "krum", **attacked, **{"assumed-malicious-fraction": 0.2})
    with caplog.at_level(logging.WARNING, "fedif_flower"):
        run(untold)
        assert "2f + 2 < m" not in caplog.text
        run(config(tmp_path, "krum", **attacked))
    assert "f = 3 of m = 5" in caplog.text


CLASSES = 10


def spoiled(partition_id: int, trained: np.ndarray) -> np.ndarray:
    """Return what a client sends in place of an array that it trained."""
    of_outputs = trained.shape == (CLASSES,)
    of_hidden = trained.ndim == 1 and not of_outputs
    if partition_id == 0:
        return np.full_like(trained, 9e14)
    if partition_id == 1:
        return np.zeros_like(trained)
    if partition_id == 2 and of_hidden:
        return np.full_like(trained, -100.0)  # No ReLU gives anything.
    if partition_id == 3 and of_outputs:
        return np.linspace(1e4, 0.0, CLASSES, dtype=trained.dtype)  # Always the first class.
    return trained


@pytest.mark.parametrize(
    ("strategy", "bounds"),
    [("fedif", "auto"), ("influence-descent", 0.0), ("fltrust", "auto"), ("afedsv", "auto")],
)
def test_constant_predictors_do_not_stop_training(tmp_path, strategy, bounds):
    settings = {"fraction-train": 1.0, "num-server-rounds": 4}
    own = {f"{strategy}.num-samples": 8} if "sv" in strategy or "s-" in strategy else {}
    chosen = config(
        tmp_path, strategy, **settings, **own, **{"update-clipping": bounds}, attack="none"
    )
    summary, _, _ = run(chosen, Spoiler(spoiled))
    assert summary["failed_rounds"] == 0
    assert summary["test_accuracy"] > 0.6


@pytest.mark.all
@pytest.mark.parametrize("first", [1, 8])
def test_the_model_learns_beside_updates_far_too_long(tmp_path, first):
    """40 % of the members are malicious; accuracy is the mean of the last ten of 12 rounds."""
    settings = {"num-clients": 50, "fraction-train": 0.2, "num-server-rounds": 12}
    settings |= {"attack": "scaling", "malicious-fraction": 0.4, "attack-first-round": first}
    settings |= {"local-epochs": 5, "checkpoint-every": 0}
    bounded, unbounded = (
        run(config(tmp_path, "fedif", **settings, **{"update-clipping": clipping}))[0]
        for clipping in ("auto", 0.0)
    )
    assert bounded["test_accuracy_last_ten"] > unbounded["test_accuracy_last_ten"] + 0.1
