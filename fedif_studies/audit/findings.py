"""The findings of an audit: a figure for each question, case and valuation."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedif_flower.run.figures import auc_of_low
from fedif_studies.audit.cases import HONEST, MANIPULATIONS, RETRAINED, THREATS
from fedif_studies.audit.federation import RULES
from fedif_studies.audit.lines import (
    BySeed,
    Lines,
    MemberValues,
    Values,
    coalition_figures,
    same_members,
    values_of,
)
from fedif_studies.audit.removal import RETRAINED_VALUES, removal_curves
from fedif_studies.audit.valuations import EXACT, shapley_of

CEILING = "another seed's retraining"  # How well retraining agrees with itself, see _retraining.
GAIN = "share after / before"
DETECTION = "detection, ROC-AUC"
AREA = "area between removal curves"
BETWEEN_RULES = "two rules, Spearman"
Correlation = Callable[[Tensor, Tensor], float]
Scores = Iterator[tuple[str, str, str, Sequence[float]]]
"""Yields a question, a case, a valuation, and the figures of federations, NaN if undefined."""


class AuditFinding(NamedTuple):
    """One figure: the answer to a question for a case and a valuation.

    ``federations`` is the number of federations (or pairs of these) that ``value`` averages.
    """

    question: str
    case: str
    valuation: str
    value: float
    federations: int

    def rounded(self) -> AuditFinding:
        """Return the finding with its value rounded as it is written."""
        return self._replace(value=round(self.value, 6))

    def words_of_few(self, seeds: int) -> str:
        """Return ``"n of m seeds"`` if it averages n < m seeds, with m = ``seeds``; else empty."""
        if self.federations < seeds:
            return f"{self.federations} of {seeds} seeds"
        return ""


def seeds_of_gains(all_findings: Iterable[AuditFinding]) -> int:
    """Return the largest number of seeds that a gain averages: that of a gain without gaps."""
    gains = [finding.federations for finding in all_findings if finding.question == GAIN]
    return max(gains, default=0)


def findings(measured: Lines, retrained: Lines) -> list[AuditFinding]:
    """Return every figure that can be computed from the lines of values and of retraining."""
    values = values_of(measured)
    names = list(dict.fromkeys(valuation for valuation, _case, _rule in values))
    names.sort(key=lambda name: name == EXACT)  # The reference for the others comes last.
    answers = []
    for question, case, name, figures in _all_scores(values, names, retrained):
        defined = [figure for figure in figures if not math.isnan(figure)]
        if defined:
            value = _average(question, defined)
            answers.append(AuditFinding(question, case, name, value, len(defined)))
    return answers


def _all_scores(values: Values, names: Sequence[str], retrained: Lines) -> Scores:
    """Yield the figures of every question for every valuation."""
    for name in names:
        yield from _scores(values, name)
    cases = {line["case"] for line in retrained}
    for case in RETRAINED:
        if case in cases:
            yield from _retraining(values, names, case, retrained)


def _average(question: str, figures: Sequence[float]) -> float:
    """Return the mean over federations, or for gains, the median."""
    if question == GAIN:
        # If a player had almost nothing in one federation, its factor there would dominate a mean.
        return statistics.median(figures)
    return statistics.fmean(figures)


def _scores(values: Values, name: str) -> Scores:
    """Yield a valuation's figures that need no retraining."""
    yield from _in_run(values, name)
    for case in THREATS:
        federations = values.get((name, case, "FedAvg"), {})
        areas = [
            _area_under_roc(members.values, members.marked) for members in federations.values()
        ]
        yield DETECTION, case, name, areas
    honest = values.get((name, HONEST, "FedAvg"), {})
    for case in MANIPULATIONS:
        after = values.get((name, case, "FedAvg"), {})
        gains = [_gain(honest[seed], after[seed]) for seed in honest.keys() & after.keys()]
        yield GAIN, case, name, gains
    between_seeds = _every_pair(spearman, [members.values for members in honest.values()])
    yield "stability, Spearman", "between seeds", name, between_seeds
    between_rules = _between_rules(values, name)
    every_pair = list(itertools.chain.from_iterable(between_rules.values()))
    yield "stability, Spearman", "between aggregation rules", name, every_pair
    for pair, scores in between_rules.items():
        yield BETWEEN_RULES, pair, name, scores


def _in_run(values: Values, name: str) -> Scores:
    """Yield a valuation's correlations with the exact in-run values of the same rounds."""
    if name == EXACT:
        return
    for case, (kind, correlation) in itertools.product(RETRAINED, CORRELATIONS.items()):
        measured = values.get((name, case, "FedAvg"), {})
        exact = values.get((EXACT, case, "FedAvg"), {})
        yield f"in-run, {kind}", case, name, _compare(correlation, measured, exact)


def _between_rules(values: Values, name: str) -> dict[str, list[float]]:
    """Return rank correlations of honest members' values under two rules.

    There is one for each seed, by the name of the pair of rules.
    """
    scores = {}
    for first, second in itertools.combinations(RULES, 2):
        under_first = values.get((name, HONEST, first), {})
        under_second = values.get((name, HONEST, second), {})
        scores[pair_of(first, second)] = _compare(spearman, under_first, under_second)
    return scores


def _compare(correlation: Correlation, first: BySeed, second: BySeed) -> list[float]:
    """Return the correlation of members' values for each seed that both have."""
    seeds = first.keys() & second.keys()
    return [correlation(first[seed].values, second[seed].values) for seed in seeds]


def pair_of(first: str, second: str) -> str:
    """Return the name of a pair of rules."""
    return f"{first} and {second}"


def _retraining(values: Values, names: Iterable[str], case: str, lines: Lines) -> Scores:
    """Yield figures from federations of every coalition, trained from scratch.

    For each valuation, they are the correlation with the Shapley values of retraining, and the area
    between removal curves. The ceilings are the same figures for retraining itself: correlations
    between its seeds, and the area by its own values.
    """
    exact = [shapley_of(-losses) for losses in coalition_figures(lines, case, "test_loss")]
    mean = torch.stack(exact).mean(dim=0)
    accuracy = torch.stack(coalition_figures(lines, case, "test_accuracy")).mean(dim=0)  # [2**m]
    for name in names:
        federations = same_members(values, name, case).values()
        for kind, correlation in CORRELATIONS.items():
            scores = [correlation(members.values, mean) for members in federations]
            yield f"retraining, {kind}", case, name, scores
        areas = [removal_curves(members.values, accuracy).area for members in federations]
        yield AREA, case, name, areas
    for kind, correlation in CORRELATIONS.items():
        yield f"retraining, {kind}", case, CEILING, _every_pair(correlation, exact)
    yield AREA, case, RETRAINED_VALUES, [removal_curves(mean, accuracy).area]


def _gain(before: MemberValues, after: MemberValues) -> float:
    """Return by which factor a game changes the share of those marked in it; 1 for no change.

    NaN if they had no positive share without the game, or if nobody has one with it.
    """
    # Identities that a player adds come last, and have no value in the honest federation.
    players = after.marked[: len(before.values)]
    honest_share = _share_of(before.values, players)
    if not honest_share > 0:
        return math.nan
    return _share_of(after.values, after.marked) / honest_share


def _share_of(values: Tensor, chosen: Tensor) -> float:
    """Return the chosen members' share of all positive values; NaN if no value is positive."""
    positive = values.clamp_min(0.0)
    total = float(positive.sum())
    if not total > 0:
        return math.nan
    return float(positive[chosen].sum()) / total


def _every_pair(correlation: Correlation, values: Sequence[Tensor]) -> list[float]:
    """Return the correlations of every two tensors of members' values ``[m]``."""
    return [correlation(a, b) for a, b in itertools.combinations(values, 2)]


def _area_under_roc(values: Tensor, marked: Tensor) -> float:
    """Return the AUC of low values ``[m]`` as a sign of ``marked``.

    It is NaN if all are marked, or none is, or if a value is NaN, as in a federation that diverged.
    """
    if values.isnan().any():
        return math.nan
    # An infinite value counts as the largest or the smallest number.
    area = auc_of_low(values.nan_to_num().tolist(), marked.tolist())
    if area is None:
        return math.nan
    return area


def pearson(a: Tensor, b: Tensor) -> float:
    """Return Pearson's correlation of values ``[m]``; NaN if one of them does not vary."""
    return float(torch.corrcoef(torch.stack([a, b]))[0, 1])


def spearman(a: Tensor, b: Tensor) -> float:
    """Return the correlation of ranks; equal values have their mean rank.

    It is NaN if one of the tensors does not vary.
    """
    from scipy.stats import rankdata

    ranks_of_a = torch.from_numpy(rankdata(a.numpy()))
    ranks_of_b = torch.from_numpy(rankdata(b.numpy()))
    return pearson(ranks_of_a, ranks_of_b)


CORRELATIONS: Mapping[str, Correlation] = {"Pearson": pearson, "Spearman": spearman}
