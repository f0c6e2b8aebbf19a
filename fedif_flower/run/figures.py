"""A run's result in a few figures."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any

import torch

from fedif_flower.messages.client_node import UNKNOWN_PARTITION
from fedif_flower.run.rows import ClientRow, RoundRow
from fedif_flower.tasks.task import Metric


def summarize(
    rounds: list[RoundRow], clients: list[ClientRow], metrics: Sequence[Metric] = ()
) -> dict[str, Any]:
    """Return a run's result in a few figures.

    ``malicious_weight_share`` is the share of all aggregation weight that went to malicious
    clients; ``detection_auc`` the area under the ROC curve of "low weight score means malicious"
    over the clients that took part, with each client's last weight score. Either is ``None``
    where it is not defined, and so is ``attack_success``: after the last round, the share of test
    images with a backdoor's trigger that get its target class. ``unnamed_members`` never said which
    partition they hold. ``metrics`` has the figures of a task's own metrics, and of the loss where
    there is no accuracy.
    """
    evaluated = [row for row in rounds if row.test_accuracy is not None and row.round > 0]
    accuracies = [row.test_accuracy for row in evaluated if row.test_accuracy is not None]
    validated = [row.validation_accuracy for row in rounds if row.validation_accuracy is not None]
    weighed = [row for row in clients if row.weight is not None]
    total = sum(row.weight or 0.0 for row in weighed)
    bad = sum(row.weight or 0.0 for row in weighed if row.malicious)
    any_malicious = any(row.malicious for row in clients)
    trained = [row.train_seconds for row in clients if row.train_seconds is not None]
    last = evaluated[-1] if evaluated else None
    return {
        "rounds": max((row.round for row in rounds), default=0),
        "test_accuracy": last.test_accuracy if last else None,
        "test_accuracy_last_ten": statistics.fmean(accuracies[-10:]) if accuracies else None,
        "test_accuracy_best": max(accuracies, default=None),
        "validation_accuracy": validated[-1] if validated else None,
        "attack_success": last.attack_success if last else None,
        **_metrics(rounds, metrics),
        "malicious_weight_share": bad / total if total > 0 and any_malicious else None,
        "detection_auc": detection_auc(clients),
        "train_seconds_per_client": statistics.fmean(trained) if trained else None,
        "train_seconds_total": sum(trained),
        "aggregation_seconds_per_round": _mean(
            row.aggregation_seconds for row in rounds if row.round
        ),
        "evaluations_per_round": _mean(row.evaluations for row in rounds if row.round),
        "accepted": sum(row.accepted for row in rounds),
        "rejected": sum(row.rejected for row in rounds),
        "failed": sum(row.failed for row in rounds),
        "failed_rounds": sum(row.is_failed for row in rounds),
        "kept_rounds": sum(row.status == "kept" for row in rounds),
        "last_round_failed": bool(rounds) and rounds[-1].is_failed,
        "unnamed_members": _count_unnamed(clients),
    }


def _count_unnamed(clients: Sequence[ClientRow]) -> int:
    """Return how many never said which partition they hold; 0 where nobody was asked for it."""
    unnamed = {row.client_id for row in clients if row.partition_id == UNKNOWN_PARTITION}
    named = any(row.partition_id != UNKNOWN_PARTITION for row in clients)
    return len(unnamed) if named else 0


def _metrics(rounds: list[RoundRow], metrics: Sequence[Metric]) -> dict[str, Any]:
    """Return the figures of a task's metrics by name; nothing where accuracy says it all."""
    wanted = [(metric.name, metric.key, metric.higher_is_better) for metric in metrics]
    if all(row.test_accuracy is None for row in rounds):
        wanted.append(("loss", "loss", False))
    columns = [row.columns() for row in rounds if row.round > 0]
    found = {}
    for name, key, higher_is_better in wanted:
        test, validation = (
            [line[column] for line in columns if line.get(column) is not None]
            for column in (f"test_{key}", f"validation_{key}")
        )
        if test and validation:
            found[name] = {
                "higher_is_better": higher_is_better,
                "test": test[-1],
                "test_last_ten": statistics.fmean(test[-10:]),
                "test_best": max(test) if higher_is_better else min(test),
                "validation": validation[-1],
            }
    return {"metrics": found} if found else {}


def detection_auc(clients: Iterable[ClientRow]) -> float | None:
    """Return how well low weight scores tell malicious clients from honest ones, in [0, 1]."""
    scored = {row.client_id: row for row in clients if row.weight_score is not None}
    last = list(scored.values())  # Each client's latest.
    if len({row.malicious for row in last}) < 2:
        return None
    # Imported here: it takes a second, of every client and command line.
    from sklearn.metrics import roc_auc_score

    scores = [-(row.weight_score or 0.0) for row in last]
    return float(roc_auc_score([row.malicious for row in last], scores))


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


def _mean(values: Iterable[float]) -> float | None:
    listed = list(values)
    return statistics.fmean(listed) if listed else None
