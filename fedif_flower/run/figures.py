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
# Every evaluation gives a value for at least one of these columns.
_EVALUATED_COLUMNS = ("test_accuracy", "test_loss", "validation_accuracy", "validation_loss")


def summarize(
    rounds: Sequence[Line], clients: Sequence[Line], metrics: Sequence[Metric] = ()
) -> dict[str, Any]:
    """Return a run's result in a few figures, from the lines of its tables.

    These figures are ``None`` where they are not defined:

    - ``malicious_weight_share``: the share of all aggregation weight that went to malicious
      clients;
    - ``detection_auc``: the area under the ROC curve of "a low weight score means malicious" over
      the clients that took part, by each client's last weight score;
    - ``attack_success``: at the last evaluation, the share of test images with a backdoor's trigger
      that get its target class.

    ``metrics`` has the figures of a task's own metrics, and of the loss if there is no accuracy.

    Parameters
    ----------
    rounds : sequence of mapping
        The lines of ``rounds.csv``.
    clients : sequence of mapping
        The lines of ``clients.csv``.
    metrics : sequence of Metric
        The task's own metrics.
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
        "validation_accuracy": _last(_column(trained, "validation_accuracy")),
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
    """Return what a completed run must not hide, as name and value; empty if all went well."""
    shown = []
    num_failed = summary.get("failed_rounds")
    if num_failed:
        words = str(num_failed)
        if summary["last_round_failed"]:
            words += ", the last among them"
        shown.append(("rounds that failed", words))
    num_kept = summary.get("kept_rounds")
    if num_kept:
        shown.append(("rounds without any weight", str(num_kept)))
    evaluated = summary.get("last_evaluated_round")
    if evaluated is not None and evaluated < summary["rounds"]:
        shown.append(("last evaluated round", str(evaluated)))
    return shown


def as_json_has_it(figures: Any) -> Any:
    """Return figures with ``None`` in place of NaN and infinity, which JSON cannot express."""
    if isinstance(figures, Mapping):
        return {name: as_json_has_it(figure) for name, figure in figures.items()}
    if isinstance(figures, list | tuple):
        return [as_json_has_it(figure) for figure in figures]
    if isinstance(figures, float) and not math.isfinite(figures):
        return None
    return figures


def best_of(values: Iterable[float], *, higher_is_better: bool) -> float | None:
    """Return the best value; ``None``: there is none. NaN, which a metric may be, is no value."""
    # max() and min() would return whichever of NaN and another number comes first.
    numbers = [value for value in values if not math.isnan(value)]
    if higher_is_better:
        return max(numbers, default=None)
    return min(numbers, default=None)


def of_last_ten(lines: Sequence[Line], name: str) -> list[Any]:
    """Return a column's values in the last ten rounds; a round without a value is left out.

    The ten rounds end with the last round that has a value.
    """
    values = {}
    for line in lines:
        if line.get(name) not in (None, ""):
            values[int(line["round"])] = line[name]
    last = max(values, default=0)
    return [value for number, value in list(values.items())[-10:] if number > last - 10]


def detection_auc(clients: Iterable[Line]) -> float | None:
    """Return how well low weight scores tell malicious clients from honest ones, in [0, 1].

    Each client's last score counts. NaN is no score: a cosine with an update of zeros may be NaN.
    An infinite score counts as the largest or the smallest number.
    """
    latest: dict[int, Line] = {}
    for row in clients:
        if row["weight_score"] is not None and not math.isnan(row["weight_score"]):
            latest[row["client_id"]] = row
    malicious = [bool(row["malicious"]) for row in latest.values()]
    # scikit-learn accepts finite numbers only.
    scores = [min(max(row["weight_score"], -_LARGEST), _LARGEST) for row in latest.values()]
    return auc_of_low(scores, malicious)


def auc_of_low(values: Sequence[float], is_marked: Sequence[bool]) -> float | None:
    """Return the area under the ROC curve of "a low value means marked", in [0, 1].

    Parameters
    ----------
    values : sequence of float
        Finite numbers.
    is_marked : sequence of bool
        For each value, whether it is marked.

    Returns
    -------
    float, optional
        ``None``: all values are marked, or none is.
    """
    if len(set(is_marked)) < 2:
        return None
    # Imported here: the import takes a second, for which clients and commands should not wait.
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(is_marked, [-value for value in values]))


def _last_evaluated(rounds: Sequence[Line]) -> int | None:
    """Return the last round whose model was evaluated; ``None``: none was."""
    evaluated = [row["round"] for row in rounds if _was_evaluated(row)]
    return max(evaluated, default=None)


def _was_evaluated(row: Line) -> bool:
    """Whether a round's model was measured on the test or the validation split."""
    return any(row.get(name) is not None for name in _EVALUATED_COLUMNS)


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
    """Return ``{"metrics": ...}`` with the figures of a task's metrics by name, or an empty dict.

    With ``with_loss``, the loss is one of the metrics.
    """
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
    """Return a metric's figures, ``None`` for a split without values; empty if neither has any.

    ``not_finite`` names the splits on which the last value is NaN or infinite: ``summary.json`` has
    ``None`` there, too.
    """
    test = _column(trained, f"test_{key}")
    validation = _column(trained, f"validation_{key}")
    if not test and not validation:
        return {}
    last = {"test": _last(test), "validation": _last(validation)}
    not_finite = []
    for split, value in last.items():
        if value is not None and not math.isfinite(value):
            not_finite.append(split)
    return {
        "higher_is_better": higher_is_better,
        "test": last["test"],
        "test_last_ten": _mean(of_last_ten(trained, f"test_{key}")),
        "test_best": best_of(test, higher_is_better=higher_is_better),
        "validation": last["validation"],
        "not_finite": not_finite,
    }


def _column(lines: Sequence[Line], name: str) -> list[Any]:
    """Return the values of a column, without missing ones."""
    return [line[name] for line in lines if line.get(name) is not None]


def _mean(values: Sequence[float]) -> float | None:
    if not values:
        return None
    return statistics.fmean(values)


def _last(values: Sequence[float]) -> float | None:
    if not values:
        return None
    return values[-1]
