"""What an audit's measurements say: one line for each question and valuation."""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedif_studies.audit.cases import HONEST, MANIPULATIONS, RETRAINED, THREATS
from fedif_studies.audit.federation import RULES
from fedif_studies.audit.published import shapley_of
from fedif_studies.audit.valuations import EXACT

CEILING = "another seed's retraining"
Lines = Iterable[Mapping[str, str]]
OfSeeds = Mapping[int, Tensor]


class Finding(NamedTuple):
    """One figure: to which question, of which case and valuation; over how many federations."""

    question: str
    case: str
    valuation: str
    value: float
    federations: int


class Values:
    """The members' values ``[m]`` by valuation, case and rule, and seed, and who is marked."""

    def __init__(self, lines: Lines) -> None:
        found = defaultdict(list)
        for line in lines:
            key = line["valuation"], line["case"], line["rule"], int(line["seed"])
            found[key].append((int(line["member"]), float(line["value"]), int(line["marked"])))
        self._values: dict[tuple[str, str, str], dict[int, Tensor]] = defaultdict(dict)
        self._marked: dict[tuple[str, int], Tensor] = {}
        for (valuation, case, rule, seed), own in found.items():
            table = torch.tensor(sorted(own)).double()  # [m, 3]
            self._values[valuation, case, rule][seed] = table[:, 1]
            self._marked[case, seed] = table[:, 2].bool()
        names = dict.fromkeys(key[0] for key in found)
        self.valuations = [name for name in names if name != EXACT] + [EXACT]
        self.seeds = sorted({key[-1] for key in found})

    def of(self, valuation: str, case: str, rule: str = "FedAvg") -> OfSeeds:
        """Return the values of each seed's federation that is there."""
        return self._values.get((valuation, case, rule), {})

    def marked(self, case: str, seed: int) -> Tensor:
        """Return which members are marked, ``[m]`` bool."""
        return self._marked[case, seed]


def findings(values: Values, retrained: Lines) -> list[Finding]:
    """Return every figure that the measurements are enough for."""
    found: list[Finding] = []
    for valuation in values.valuations:
        if valuation != EXACT:
            found += _in_run(values, valuation)
        found += _detection(values, valuation)
        found += _manipulation(values, valuation)
        found += _stability(values, valuation)
    for case in RETRAINED:
        lines = [line for line in retrained if line["case"] == case]
        if losses := _by_coalition(lines, "test_loss"):
            found += _retraining(values, case, losses)
            found += _removal(values, case, _by_coalition(lines, "test_accuracy"))
    return found


def _by_coalition(lines: Lines, column: str) -> list[Tensor]:
    """Return each seed's figures ``[2**m]`` of every coalition, where all are there."""
    by_seed: dict[int, dict[int, float]] = defaultdict(dict)
    for line in lines:
        by_seed[int(line["seed"])][int(line["coalition"])] = float(line[column])
    return [
        torch.tensor([found[i] for i in range(len(found))], dtype=torch.float64)
        for _, found in sorted(by_seed.items())
        if max(found) + 1 == len(found) and len(found).bit_count() == 1
    ]


def _in_run(values: Values, valuation: str) -> Iterable[Finding]:
    """Correlate with the exact Shapley values of the same rounds."""
    for case in RETRAINED:
        own, exact = values.of(valuation, case), values.of(EXACT, case)
        for name, correlation in CORRELATIONS.items():
            scores = [correlation(own[seed], exact[seed]) for seed in own.keys() & exact.keys()]
            yield from _mean(f"in-run, {name}", case, valuation, scores)


def _retraining(values: Values, case: str, losses: Sequence[Tensor]) -> Iterable[Finding]:
    """Correlate with the Shapley values of the game of federations trained from scratch."""
    exact = [shapley_of(-table) for table in losses]
    mean = torch.stack(exact).mean(dim=0)
    for name, correlation in CORRELATIONS.items():
        for valuation in values.valuations:
            # Other seeds mark other members; where nobody is marked, all may be compared.
            there = values.of(valuation, case).items()
            scores = [correlation(own, mean) for seed, own in there if case == HONEST or not seed]
            yield from _mean(f"retraining, {name}", case, valuation, scores)
        yield from _mean(f"retraining, {name}", case, CEILING, _pairs(correlation, exact))


def _removal(values: Values, case: str, accuracies: Sequence[Tensor]) -> Iterable[Finding]:
    """Give the area between the curves of dropping the lowest and the highest values first."""
    accuracy = torch.stack(list(accuracies)).mean(dim=0)  # [2**m]
    for valuation in values.valuations:
        own = values.of(valuation, case).get(0)
        if own is not None:
            area = float((_curve(own, accuracy) - _curve(-own, accuracy)).mean())
            yield Finding("area between removal curves", case, valuation, area, 1)


def _curve(values: Tensor, accuracy: Tensor) -> Tensor:
    """Return the accuracy after dropping the k lowest valued members, k = 1 .. m - 1."""
    dropped = torch.cumsum(2 ** values.argsort(stable=True)[:-1], dim=0)
    return accuracy[len(accuracy) - 1 - dropped]


def _detection(values: Values, valuation: str) -> Iterable[Finding]:
    """Tell how well low values point to those who misbehave: ROC-AUC by threat."""
    for case in THREATS:
        found = values.of(valuation, case).items()
        aucs = [_auc(own, values.marked(case, seed)) for seed, own in found]
        yield from _mean("detection, ROC-AUC", case, valuation, aucs)


def _manipulation(values: Values, valuation: str) -> Iterable[Finding]:
    """Tell by which factor a member changes its share: 1 is no gain."""
    honest = values.of(valuation, HONEST)
    for case in MANIPULATIONS:
        ratios, after = [], values.of(valuation, case)
        for seed in honest.keys() & after.keys():
            players = values.marked(case, seed)
            # Identities that an owner adds come last.
            before = _share(honest[seed], players[: len(honest[seed])])
            if before > 0:
                ratios.append(_share(after[seed], players) / before)
        if ratios:
            middle = statistics.median(ratios)
            yield Finding("share after / before", case, valuation, middle, len(ratios))


def _stability(values: Values, valuation: str) -> Iterable[Finding]:
    """Give rank correlations between seeds, and between aggregation rules."""
    of_rules = [values.of(valuation, HONEST, rule) for rule in RULES]
    seeds = _pairs(spearman, list(values.of(valuation, HONEST).values()))
    rules = [
        score
        for seed in values.seeds
        for score in _pairs(spearman, [own[seed] for own in of_rules if seed in own])
    ]
    for case, scores in (("between seeds", seeds), ("between aggregation rules", rules)):
        yield from _mean("stability, Spearman", case, valuation, scores)


def _pairs(correlation: Correlation, values: Sequence[Tensor]) -> list[float]:
    return [correlation(a, b) for a, b in itertools.combinations(values, 2)]


def _mean(question: str, case: str, valuation: str, scores: Sequence[float]) -> Iterable[Finding]:
    """Give the mean of what is defined; nothing where nothing is."""
    defined = [score for score in scores if score == score]
    if defined:
        yield Finding(question, case, valuation, statistics.fmean(defined), len(defined))


def _share(values: Tensor, chosen: Tensor) -> float:
    """Return the chosen members' share of what is positive."""
    positive = values.clamp_min(0.0)
    total = float(positive.sum())
    return float(positive[chosen].sum()) / total if total > 0 else 0.0


def _auc(values: Tensor, marked: Tensor) -> float:
    """Return how well low values ``[m]`` point to the marked ``[m]``, by ROC-AUC; NaN: to none."""
    from sklearn.metrics import roc_auc_score  # takes a second, which only an audit should cost

    if marked.all() or not marked.any():
        return float("nan")
    return float(roc_auc_score(marked.numpy(), -values.numpy()))


def pearson(a: Tensor, b: Tensor) -> float:
    """Return Pearson's correlation of values ``[m]``; NaN if one of them does not vary."""
    return float(torch.corrcoef(torch.stack([a, b]))[0, 1])


def spearman(a: Tensor, b: Tensor) -> float:
    """Return the correlation of ranks, the mean one of equal values; NaN if one does not vary."""
    from scipy.stats import rankdata

    ranks = (torch.from_numpy(rankdata(values.numpy())) for values in (a, b))
    return pearson(*ranks)


Correlation = Callable[[Tensor, Tensor], float]
CORRELATIONS: Mapping[str, Correlation] = {"Pearson": pearson, "Spearman": spearman}
