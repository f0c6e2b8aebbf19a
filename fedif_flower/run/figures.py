"""A run's result in a few figures, from the lines of its tables."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedif_flower.run.completeness import is_failed
from fedif_flower.run.rows import Line
from fedif_flower.tasks.task import Metric

_LARGEST = sys.float_info.max
# An evaluation has one of these at least.
_SEEN = ("test_accuracy", "test_loss", "validation_accuracy", "validation_loss")


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
    attack_success = None
    if tested:
        attack_success = tested[-1].get("attack_success")
    accuracies = _column(tested, "test_accuracy")
    seconds = _column(clients, "train_seconds")
    return {
        "rounds": max((row["round"] for row in rounds), default=0),
        "last_evaluated_round": _last_evaluated(rounds),
        "test_accuracy": _last(accuracies),
        "test_accuracy_last_ten": _mean(of_last_ten(tested, "test_accuracy")),
        "test_accuracy_best": max(accuracies, default=None),
        "validation_accuracy": _last(_column(rounds, "validation_accuracy")),
        "attack_success": attack_success,
        **_metrics(trained, metrics, with_loss=not _column(rounds, "test_accuracy")),
        "malicious_weight_share": _malicious_weight_share(clients),
        "detection_auc": detection_auc(clients),
        "train_seconds_per_client": _mean(seconds),
        "train_seconds_total": sum(seconds),
        "aggregation_seconds_per_round": _mean(_column(trained, "aggregation_seconds")),
        "evaluations_per_round": _mean(_column(trained, "evaluations")),
        "accepted": sum(_column(rounds, "accepted")),
        "rejected": sum(_column(rounds, "rejected")),
        "failed": sum(_column(rounds, "failed")),
        "failed_rounds": sum(is_failed(row) for row in rounds),
        "kept_rounds": sum(row["status"] == "kept" for row in rounds),
        "last_round_failed": bool(rounds) and is_failed(rounds[-1]),
    }


def troubles(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what a completed run must not hide; nothing where all went well."""
    shown = []
    num_failed = summary.get("failed_rounds")
    if num_failed:
        words = str(num_failed)
        if summary["last_round_failed"]:
            words += ", the last among them"
        shown.append(("rounds that failed", words))
    num_kept = summary.get("kept_rounds")
    if num_kept:
        shown.append(("rounds that gave nobody weight", str(num_kept)))
    evaluated = summary.get("last_evaluated_round")
    if evaluated is not None and evaluated < summary["rounds"]:
        shown.append(("the last model that was evaluated", f"that of round {evaluated}"))
    return shown


def as_json_has_it(figures: Any) -> Any:
    """Return figures with ``None`` for each that is NaN or infinite: JSON has no word for those."""
    if isinstance(figures, Mapping):
        return {name: as_json_has_it(figure) for name, figure in figures.items()}
    if isinstance(figures, list | tuple):
        return [as_json_has_it(figure) for figure in figures]
    if isinstance(figures, float) and not math.isfinite(figures):
        return None
    return figures


def best_of(values: Iterable[float], *, higher_is_better: bool) -> float | None:
    """Return the best value; ``None``: there is none. NaN, which a metric may be, is no value."""
    # Of NaN and another number, the one that comes first would be the largest and the smallest.
    numbers = [value for value in values if not math.isnan(value)]
    if higher_is_better:
        return max(numbers, default=None)
    return min(numbers, default=None)


def of_last_ten(lines: Sequence[Line], name: str) -> list[Any]:
    """Return what a column has of the last ten rounds, not all of which need to be evaluated.

    The last round is the last one that has a value.
    """
    values = {}
    for line in lines:
        if line.get(name) not in (None, ""):
            values[int(line["round"])] = line[name]
    last = max(values, default=0)
    return [value for number, value in list(values.items())[-10:] if number > last - 10]


def detection_auc(clients: Iterable[Line]) -> float | None:
    """Return how well low weight scores tell malicious clients from honest ones, in [0, 1].

    NaN, as the cosine with an update of zeros may be, is no score; an infinite one is the largest
    or the smallest.
    """
    latest: dict[int, Line] = {}
    for row in clients:
        if row["weight_score"] is not None and not math.isnan(row["weight_score"]):
            latest[row["client_id"]] = row
    malicious = [bool(row["malicious"]) for row in latest.values()]
    # scikit-learn takes finite numbers alone.
    scores = [min(max(row["weight_score"], -_LARGEST), _LARGEST) for row in latest.values()]
    return auc_of_low(scores, malicious)


def auc_of_low(values: Sequence[float], is_marked: Sequence[bool]) -> float | None:
    """Return how well low values point to those that are marked, in [0, 1]: the area under the ROC.

    Parameters
    ----------
    values : sequence of float
        Finite numbers.
    is_marked : sequence of bool
        For each of them. ``None`` is returned where all are marked, or none is.
    """
    if len(set(is_marked)) < 2:
        return None
    # Imported here: it takes a second, which clients and command lines should not have to wait for.
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(is_marked, [-value for value in values]))


def _last_evaluated(rounds: Sequence[Line]) -> int | None:
    """Return the last round whose model was evaluated, which figures are of; ``None``: none was."""
    evaluated = [row["round"] for row in rounds if _was_evaluated(row)]
    return max(evaluated, default=None)


def _was_evaluated(row: Line) -> bool:
    """Tell whether a round's model was measured on a split."""
    return any(row.get(name) is not None for name in _SEEN)


def _malicious_weight_share(clients: Sequence[Line]) -> float | None:
    """Return the malicious clients' share of all weight; ``None``: there are none, or no weight."""
    malicious = [row for row in clients if row["malicious"]]
    if not malicious:
        return None
    weight = math.fsum(_column(clients, "weight"))
    if not weight > 0:
        return None
    return math.fsum(_column(malicious, "weight")) / weight


def _metrics(
    trained: Sequence[Line], metrics: Sequence[Metric], *, with_loss: bool
) -> dict[str, Any]:
    """Return the figures of a task's metrics by name; nothing where accuracy says it all."""
    by_name = {}
    for metric in metrics:
        figures = _metric_figures(trained, metric.key, higher_is_better=metric.higher_is_better)
        if figures:
            by_name[metric.name] = figures
    if with_loss:
        figures = _metric_figures(trained, "loss", higher_is_better=False)
        if figures:
            by_name["loss"] = figures
    if not by_name:
        return {}
    return {"metrics": by_name}


def _metric_figures(trained: Sequence[Line], key: str, *, higher_is_better: bool) -> dict[str, Any]:
    """Return a metric's figures, ``None`` of a split without a value; nothing without any."""
    test = _column(trained, f"test_{key}")
    validation = _column(trained, f"validation_{key}")
    if not test and not validation:
        return {}
    return {
        "higher_is_better": higher_is_better,
        "test": _last(test),
        "test_last_ten": _mean(of_last_ten(trained, f"test_{key}")),
        "test_best": best_of(test, higher_is_better=higher_is_better),
        "validation": _last(validation),
    }


def _column(lines: Sequence[Line], name: str) -> list[Any]:
    """Return what there is in a column."""
    return [line[name] for line in lines if line.get(name) is not None]


def _mean(values: Sequence[float]) -> float | None:
    if not values:
        return None
    return statistics.fmean(values)


def _last(values: Sequence[float]) -> float | None:
    if not values:
        return None
    return values[-1]
