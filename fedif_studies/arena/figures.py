"""What an experiment of the arena led to, read from the results of its runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import fmean, stdev

from fedif_consortium.statement.account import reason_against_shares
from fedif_flower.run.folder import RunFolder
from fedif_studies.arena.experiments import Experiment
from fedif_studies.lab.cells import Cell, find_result


@dataclass(frozen=True)
class Figures:
    """What an experiment led to, mean over the seeds; ``None`` where a figure is not defined.

    Deviations are those of a sample, between the seeds; ``None`` with a single one.

    Attributes
    ----------
    accuracy : float
        Test accuracy, mean of the last ten rounds, in [0, 1].
    attack_success : float, optional
        Share of triggered test images that get the target class, after the last round.
    malicious_weight : float, optional
        Share of all weight that malicious clients got.
    weight_auc : float, optional
        How well low mean weights tell malicious clients from honest ones, in [0, 1].
    attribution_auc : float, optional
        The same of low mean contributions.
    attackers_gain : float, optional
        A malicious client's contribution, in an honest one's, before credit's bounds; ``None``
        also where no honest client contributed anything.
    aggregation_seconds : float
        Per round.
    accuracy_deviation, attack_success_deviation : float, optional
        Standard deviation over the seeds.
    """

    accuracy: float
    attack_success: float | None = None
    malicious_weight: float | None = None
    weight_auc: float | None = None
    attribution_auc: float | None = None
    attackers_gain: float | None = None
    aggregation_seconds: float = 0.0
    accuracy_deviation: float | None = None
    attack_success_deviation: float | None = None


def measured(cells: Mapping[tuple[Experiment, int], Cell]) -> dict[Experiment, Figures]:
    """Return what each experiment led to, once the runs of all of its seeds are there."""
    found: dict[Experiment, list[Figures | None]] = {}
    for (one, _), cell in cells.items():
        run_dir = find_result(cell)
        found.setdefault(one, []).append(None if run_dir is None else read_figures(run_dir))
    complete = {one: [f for f in seeds if f is not None] for one, seeds in found.items()}
    return {one: _mean(own) for one, own in complete.items() if len(own) == len(found[one])}


def read_figures(run_dir: Path) -> Figures:
    """Return one run's figures."""
    folder = RunFolder(run_dir)
    summary, replies = folder.summary.read(), folder.clients.read()
    malicious = {row["client_id"]: row["malicious"] == "1" for row in replies}
    weights = by_client(replies, "weight")
    contributions = by_client(folder.attribution.read(), "contribution")
    return Figures(
        accuracy=summary["test_accuracy_last_ten"],
        attack_success=summary["attack_success"],
        malicious_weight=summary["malicious_weight_share"],
        weight_auc=low_means_auc(weights, malicious),
        attribution_auc=low_means_auc(contributions, malicious),
        attackers_gain=(
            attackers_gain(contributions, malicious)
            if contributions and not _unpaid(folder, contributions)
            else None
        ),
        aggregation_seconds=summary["aggregation_seconds_per_round"],
    )


def _unpaid(folder: RunFolder, contributions: Mapping[str, Sequence[float]]) -> str:
    """Return why the statement of a run gives nobody a share; empty: it does."""
    rounds = folder.attributed_rounds.read()
    decrease, remainder = (
        math.fsum(float(row[column]) for row in rounds) for column in ("decrease", "remainder")
    )
    return reason_against_shares(decrease, remainder, list(map(math.fsum, contributions.values())))


def by_client(rows: Iterable[Mapping[str, str]], column: str) -> dict[str, list[float]]:
    """Return the finite values of a column by client; a client without any is left out."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if row[column] and math.isfinite(float(row[column])):
            found.setdefault(row["client_id"], []).append(float(row[column]))
    return found


def low_means_auc(
    values: Mapping[str, Sequence[float]], malicious: Mapping[str, bool]
) -> float | None:
    """Return how well a low mean over the rounds tells malicious clients, in [0, 1].

    Parameters
    ----------
    values : mapping of str to sequence of float
        By client, one per round that it took part in, as :func:`by_client` returns them.
    malicious : mapping of str to bool
        By client. ``None`` is returned where only one kind of client has values.
    """
    kinds = [malicious[client] for client in values]
    if len(set(kinds)) < 2:
        return None
    # Imported here: it takes a second, of every client and command line.
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(kinds, [-fmean(own) for own in values.values()]))


def attackers_gain(
    contributions: Mapping[str, Sequence[float]], malicious: Mapping[str, bool]
) -> float | None:
    """Return malicious clients' mean contribution, as a multiple of honest clients' mean.

    A client's is the sum over its rounds, and 0 where that is negative. A statement pays less: what
    of it lies within the bounds of credit.

    Parameters
    ----------
    contributions, malicious
        As in :func:`low_means_auc`. ``None`` is returned where one kind of client is missing, or
        no honest client contributed anything.
    """
    sums: dict[bool, list[float]] = {True: [], False: []}
    for client, own in contributions.items():
        sums[malicious[client]].append(max(math.fsum(own), 0.0))
    if not all(sums.values()) or not any(sums[False]):
        return None
    return fmean(sums[True]) / fmean(sums[False])


def _mean(seeds: Sequence[Figures]) -> Figures:
    def mean(name: str) -> float | None:
        values = [getattr(figures, name) for figures in seeds]
        return None if None in values else fmean(values)

    def deviation(name: str) -> float | None:
        values = [getattr(figures, name) for figures in seeds]
        return None if None in values or len(values) < 2 else stdev(values)

    means = Figures(**{field.name: mean(field.name) for field in fields(Figures)})  # type: ignore[arg-type]
    return replace(
        means,
        accuracy_deviation=deviation("accuracy"),
        attack_success_deviation=deviation("attack_success"),
    )
