"""A run's result in a few figures."""

from __future__ import annotations

import math
import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any

import torch

from fedif_flower.run.completeness import is_failed
from fedif_flower.run.rows import Line
from fedif_flower.tasks.task import Metric


def summarize(
    rounds: Sequence[Line], clients: Sequence[Line], metrics: Sequence[Metric] = ()
) -> dict[str, Any]:
    """Return a run's result in a few figures, from the lines of its tables.

    ``malicious_weight_share`` is the share of all aggregation weight that went to malicious
    clients; ``detection_auc`` the area under the ROC curve of "low weight score means malicious"
    over the clients that took part, with each client's last weight score. Either is ``None``
    where it is not defined, and so is ``attack_success``: after the last round, the share of test
    images with a backdoor's trigger that get its target class. ``metrics`` has the figures of a
    task's own metrics, and of the loss where there is no accuracy.
    """
    trained = [row for row in rounds if row["round"]]
    tested = [row for row in trained if row.get("test_accuracy") is not None]
    accuracies = [row["test_accuracy"] for row in tested]
    weight = math.fsum(row["weight"] or 0.0 for row in clients)
    bad = math.fsum(row["weight"] or 0.0 for row in clients if row["malicious"])
    any_malicious = any(row["malicious"] for row in clients)
    seconds = _column(clients, "train_seconds")
    failed = list(map(is_failed, rounds))
    return {
        "rounds": max((row["round"] for row in rounds), default=0),
        "test_accuracy": accuracies[-1] if accuracies else None,
        "test_accuracy_last_ten": _mean(accuracies[-10:]),
        "test_accuracy_best": max(accuracies, default=None),
        "validation_accuracy": next(iter(_column(rounds, "validation_accuracy")[::-1]), None),
        "attack_success": tested[-1].get("attack_success") if tested else None,
        **_metrics(trained, metrics, with_loss=not _column(rounds, "test_accuracy")),
        "malicious_weight_share": bad / weight if weight > 0 and any_malicious else None,
        "detection_auc": detection_auc(clients),
        "train_seconds_per_client": _mean(seconds),
        "train_seconds_total": sum(seconds),
        "aggregation_seconds_per_round": _mean(_column(trained, "aggregation_seconds")),
        "evaluations_per_round": _mean(_column(trained, "evaluations")),
        **{name: sum(_column(rounds, name)) for name in ("accepted", "rejected", "failed")},
        "failed_rounds": sum(failed),
        "kept_rounds": sum(row["status"] == "kept" for row in rounds),
        "last_round_failed": bool(failed) and failed[-1],
    }


def _column(lines: Sequence[Line], name: str) -> list[Any]:
    """Return what there is in a column."""
    return [value for line in lines if (value := line.get(name)) is not None]


def _metrics(
    trained: Sequence[Line], metrics: Sequence[Metric], *, with_loss: bool
) -> dict[str, Any]:
    """Return the figures of a task's metrics by name; nothing where accuracy says it all."""
    wanted = [(metric.name, metric.key, metric.higher_is_better) for metric in metrics]
    found = {}
    for name, key, higher_is_better in [*wanted, *[("loss", "loss", False)] * with_loss]:
        test, validation = (_column(trained, f"{split}_{key}") for split in ("test", "validation"))
        if test and validation:
            found[name] = {
                "higher_is_better": higher_is_better,
                "test": test[-1],
                "test_last_ten": _mean(test[-10:]),
                "test_best": max(test) if higher_is_better else min(test),
                "validation": validation[-1],
            }
    return {"metrics": found} if found else {}


def detection_auc(clients: Iterable[Line]) -> float | None:
    """Return how well low weight scores tell malicious clients from honest ones, in [0, 1]."""
    scored = {row["client_id"]: row for row in clients if row["weight_score"] is not None}
    malicious = [bool(row["malicious"]) for row in scored.values()]  # Each client's latest.
    if len(set(malicious)) < 2:
        return None
    # Imported here: it takes a second, of every client and command line.
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(malicious, [-row["weight_score"] for row in scored.values()]))


def describe_machine(device: str) -> dict[str, Any]:
    """Return versions and hardware, for a figure to be read with."""
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    return {
        "python": platform.python_version(),
        "flwr": version("flwr"),
        "torch": torch.__version__,
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "gpu": gpu,
        "device": device,
    }


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
