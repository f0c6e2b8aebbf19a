"""What an audit's measurements say: one line for each question and valuation."""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedif_studies.audit.cases import HONEST, MANIPULATIONS, RETRAINED, THREATS
from fedif_studies.audit.federation import RULES
from fedif_studies.audit.valuations import EXACT, shapley_of

CEILING = "another seed's retraining"
GAIN = "share after / before"
Lines = Sequence[Mapping[str, str]]
Correlation = Callable[[Tensor, Tensor], float]
Scores = Iterator[tuple[str, str, str, Sequence[float]]]
"""Questions, cases, valuations, and the figures of some federations."""


class Finding(NamedTuple):
    """One figure: to which question, of which case and valuation; over how many federations."""

    question: str
    case: str
    valuation: str
    value: float
    federations: int


class Members(NamedTuple):
    """The members' values ``[m]`` in one federation, and who is marked ``[m]``, bool."""

    values: Tensor
    marked: Tensor


OfSeeds = Mapping[int, Members]
Values = Mapping[tuple[str, str, str], OfSeeds]
"""By valuation, case and rule, and by seed."""


def findings(measured: Lines, retrained: Lines) -> list[Finding]:
    """Return every figure that the lines of values and of retraining are enough for."""
    values = _by_federation(measured)
    names = sorted(dict.fromkeys(name for name, *_ in values), key=lambda name: name == EXACT)
    scores = [one for name in names for one in _scores(values, name)]
    for case in RETRAINED:
        lines = [line for line in retrained if line["case"] == case]
        scores += _retraining(values, names, case, lines) if lines else ()
    found = []
    for question, case, name, own in scores:
        if defined := [score for score in own if score == score]:
            value = (statistics.median if question == GAIN else statistics.fmean)(defined)
            found.append(Finding(question, case, name, value, len(defined)))
    return found


def _by_federation(lines: Lines) -> Values:
    rows = defaultdict(list)
    for line in lines:
        key = line["valuation"], line["case"], line["rule"], int(line["seed"])
        rows[key].append((float(line["value"]), float(line["marked"])))
    values: dict[tuple[str, str, str], dict[int, Members]] = defaultdict(dict)
    for (name, case, rule, seed), own in rows.items():
        found, marked = torch.tensor(own, dtype=torch.float64).T
        values[name, case, rule][seed] = Members(found, marked.bool())
    return values


def _scores(values: Values, name: str) -> Scores:
    """Ask of a valuation what the rounds themselves answer."""

    def of(case: str, rule: str = "FedAvg", valuation: str = name) -> OfSeeds:
        return values.get((valuation, case, rule), {})

    for case, (kind, correlation) in itertools.product(RETRAINED, CORRELATIONS.items()):
        own, exact = of(case), of(case, valuation=EXACT)
        seeds = own.keys() & exact.keys() if name != EXACT else set()
        found = [correlation(own[seed].values, exact[seed].values) for seed in seeds]
        yield f"in-run, {kind}", case, name, found
    for case in THREATS:
        yield "detection, ROC-AUC", case, name, [_auc(*own) for own in of(case).values()]
    honest = of(HONEST)
    for case in MANIPULATIONS:
        after = of(case)
        gains = [_gain(honest[seed], after[seed]) for seed in honest.keys() & after.keys()]
        yield GAIN, case, name, gains
    alike = _pairs(spearman, [own.values for own in honest.values()])
    yield "stability, Spearman", "between seeds", name, alike
    of_rules = [of(HONEST, rule) for rule in RULES]
    scores = [
        score
        for seed in honest
        for score in _pairs(spearman, [own[seed].values for own in of_rules if seed in own])
    ]
    yield "stability, Spearman", "between aggregation rules", name, scores


def _retraining(values: Values, names: Iterable[str], case: str, lines: Lines) -> Scores:
    """Ask what federations of every coalition, trained from scratch, answer."""
    exact = [shapley_of(-table) for table in _by_coalition(lines, "test_loss")]
    mean = torch.stack(exact).mean(dim=0)
    accuracy = torch.stack(_by_coalition(lines, "test_accuracy")).mean(dim=0)  # [2**m]
    for name in names:
        # Other seeds mark other members; where nobody is marked, all may be compared.
        there = values.get((name, case, "FedAvg"), {}).items()
        for kind, correlation in CORRELATIONS.items():
            own = [correlation(o.values, mean) for seed, o in there if case == HONEST or not seed]
            yield f"retraining, {kind}", case, name, own
        areas = [_area(own.values, accuracy) for seed, own in there if not seed]
        yield "area between removal curves", case, name, areas
    for kind, correlation in CORRELATIONS.items():
        yield f"retraining, {kind}", case, CEILING, _pairs(correlation, exact)


def _by_coalition(lines: Lines, column: str) -> list[Tensor]:
    """Return each seed's figures ``[2**m]`` of every coalition."""
    by_seed = defaultdict(list)
    for line in lines:
        by_seed[line["seed"]].append(float(line[column]))
    return [torch.tensor(own, dtype=torch.float64) for own in by_seed.values()]


def _area(values: Tensor, accuracy: Tensor) -> float:
    """Return the area between the curves of dropping the lowest and the highest values first."""
    low, high = (
        accuracy[len(accuracy) - 1 - (2 ** order[:-1]).cumsum(dim=0)]
        for order in (values.argsort(stable=True), (-values).argsort(stable=True))
    )
    return float((low - high).mean())


def _gain(before: Members, after: Members) -> float:
    """Return by which factor players change their share, 1 is none; NaN where they had nothing."""
    # Identities that an owner adds come last.
    own = _share(before.values, after.marked[: len(before.values)])
    return _share(*after) / own if own > 0 else float("nan")


def _share(values: Tensor, chosen: Tensor) -> float:
    """Return the chosen members' share of what is positive."""
    positive = values.clamp_min(0.0)
    total = float(positive.sum())
    return float(positive[chosen].sum()) / total if total > 0 else 0.0


def _pairs(correlation: Correlation, values: Sequence[Tensor]) -> list[float]:
    return [correlation(a, b) for a, b in itertools.combinations(values, 2)]


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


CORRELATIONS: Mapping[str, Correlation] = {"Pearson": pearson, "Spearman": spearman}
