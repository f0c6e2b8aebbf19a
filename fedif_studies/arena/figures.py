"""The figures of a bout of the arena, read from its run's folder."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from fedif_consortium.statement.records import RoundLoss
from fedif_consortium.statement.shares import fall_of, left_out_rounds, reason_against_shares
from fedif_flower.run.figures import auc_of_low
from fedif_flower.run.folder import RunFolder
from fedif_studies.rows import Row

_LOSSES = ("loss_before", "loss_after", "decrease", "attributed", "remainder")


def read_figures(folder: RunFolder) -> Row:
    """Return a run's figures as text, by column; empty where a figure is not defined.

    Accuracies and shares are in [0, 1]; the accuracy is the mean of the last ten rounds.
    ``attackers-gain`` is the mean contribution of a malicious client as a multiple of an honest
    one's, before the bounds of credit (:func:`attackers_gain`).
    """
    summary = folder.summary.read()
    replies = folder.clients.read()
    malicious = {row["client_id"]: row["malicious"] == "1" for row in replies}
    contributions = by_client(folder.attribution.read(), "contribution")
    figures = {
        "accuracy": summary["test_accuracy_last_ten"],
        "attack-success": summary["attack_success"],
        "malicious-weight": summary["malicious_weight_share"],
        "weight-auc": low_means_auc(by_client(replies, "weight"), malicious),
        "attribution-auc": low_means_auc(contributions, malicious),
        "attackers-gain": attackers_gain(_paid(folder), malicious),
        "aggregation-seconds": summary["aggregation_seconds_per_round"],
    }
    return {name: _as_text(value) for name, value in figures.items()}


def _as_text(figure: float | None) -> str:
    if figure is None:
        return ""
    return f"{figure:.6g}"


def _paid(folder: RunFolder) -> dict[str, list[float]]:
    """Return the contributions by client that a statement on the run would count.

    It leaves out some rounds. Empty if the run has no attribution, or a statement would give nobody
    a share.
    """
    rounds = []
    for row in folder.attributed_rounds.read():
        losses = [float(row[column]) for column in _LOSSES]
        rounds.append(RoundLoss(int(row["round"]), *losses))
    if not rounds:
        return {}
    left_out = left_out_rounds(rounds)
    used = [row for row in rounds if row.round not in left_out]
    rows = [row for row in folder.attribution.read() if int(row["round"]) not in left_out]
    contributions = by_client(rows, "contribution")
    totals = list(map(math.fsum, contributions.values()))
    reason = reason_against_shares(fall_of(rounds), used, totals)
    if reason:
        return {}
    return contributions


def by_client(rows: Iterable[Mapping[str, str]], column: str) -> dict[str, list[float]]:
    """Return the finite values of a column by client; a client without any is left out."""
    values: dict[str, list[float]] = {}
    for row in rows:
        if row[column] and math.isfinite(float(row[column])):
            values.setdefault(row["client_id"], []).append(float(row[column]))
    return values


def low_means_auc(
    values: Mapping[str, Sequence[float]], malicious: Mapping[str, bool]
) -> float | None:
    """Return the AUC, in [0, 1], of a low mean over rounds as a sign of a malicious client.

    Parameters
    ----------
    values : mapping of str to sequence of float
        By client, a value for each round that it took part in, as :func:`by_client` returns them.
    malicious : mapping of str to bool
        Whether each client is malicious.

    Returns
    -------
    float, optional
        ``None`` if all clients with values are malicious, or none is.
    """
    kinds = [malicious[client] for client in values]
    means = [fmean(of_rounds) for of_rounds in values.values()]
    return auc_of_low(means, kinds)


def attackers_gain(
    contributions: Mapping[str, Sequence[float]], malicious: Mapping[str, bool]
) -> float | None:
    """Return malicious clients' mean contribution, as a multiple of honest clients' mean.

    A client's contribution is the sum over its rounds, or 0 if the sum is negative. A statement
    pays less: only the part within the bounds of credit.

    Parameters
    ----------
    contributions : mapping of str to sequence of float
        By client, its contribution in each round that it took part in.
    malicious : mapping of str to bool
        Whether each client is malicious.

    Returns
    -------
    float, optional
        ``None`` if there are no malicious clients, or no honest client contributed anything.
    """
    sums: dict[bool, list[float]] = {True: [], False: []}
    for client, of_rounds in contributions.items():
        sums[malicious[client]].append(max(math.fsum(of_rounds), 0.0))
    attackers = sums[True]
    honest = sums[False]
    if not attackers or not any(honest):
        return None
    return fmean(attackers) / fmean(honest)
