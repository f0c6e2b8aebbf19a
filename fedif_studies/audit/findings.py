"""What an audit's measurements say: one line for each question and valuation."""

from __future__ import annotations

import itertools
import math
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


class AuditFinding(NamedTuple):
    """One figure: to which question, of which case and valuation; over how many federations."""

    question: str
    case: str
    valuation: str
    value: float
    federations: int

    def rounded(self) -> AuditFinding:
        """Return it with as many digits as are written."""
        return self._replace(value=round(self.value, 6))


class MemberValues(NamedTuple):
    """The members' values ``[m]`` in one federation, and who is marked ``[m]``, bool."""

    values: Tensor
    marked: Tensor


BySeed = Mapping[int, MemberValues]
Values = Mapping[tuple[str, str, str], BySeed]
"""By valuation, case and rule, and by seed."""


def findings(measured: Lines, retrained: Lines) -> list[AuditFinding]:
    """Return every figure that the lines of values and of retraining are enough for."""
    values = _by_federation(measured)
    names = list(dict.fromkeys(valuation for valuation, _case, _rule in values))
    names.sort(key=lambda name: name == EXACT)  # Others are measured against it: it comes last.
    scores = list(itertools.chain.from_iterable(_scores(values, name) for name in names))
    for case in RETRAINED:
        lines = [line for line in retrained if line["case"] == case]
        if lines:
            scores += _retraining(values, names, case, lines)
    answers = []
    for question, case, name, figures in scores:
        defined = [figure for figure in figures if not math.isnan(figure)]
        if not defined:
            continue
        # One federation in which a player had next to nothing would carry a mean of gains away.
        average = statistics.median if question == GAIN else statistics.fmean
        answers.append(AuditFinding(question, case, name, average(defined), len(defined)))
    return answers


def _by_federation(lines: Lines) -> Values:
    rows = defaultdict(list)
    for line in lines:
        federation = line["valuation"], line["case"], line["rule"], int(line["seed"])
        rows[federation].append((float(line["value"]), float(line["marked"])))
    values: dict[tuple[str, str, str], dict[int, MemberValues]] = defaultdict(dict)
    for (name, case, rule, seed), members in rows.items():
        worth, marked = torch.tensor(members, dtype=torch.float64).T
        values[name, case, rule][seed] = MemberValues(worth, marked.bool())
    return values


def _scores(values: Values, name: str) -> Scores:
    """Ask of a valuation what the rounds themselves answer."""
    yield from _in_run(values, name)
    for case in THREATS:
        federations = values.get((name, case, "FedAvg"), {})
        areas = [_auc(members.values, members.marked) for members in federations.values()]
        yield "detection, ROC-AUC", case, name, areas
    honest = values.get((name, HONEST, "FedAvg"), {})
    for case in MANIPULATIONS:
        after = values.get((name, case, "FedAvg"), {})
        gains = [_gain(honest[seed], after[seed]) for seed in honest.keys() & after.keys()]
        yield GAIN, case, name, gains
    between_seeds = _pairs(spearman, [members.values for members in honest.values()])
    yield "stability, Spearman", "between seeds", name, between_seeds
    yield "stability, Spearman", "between aggregation rules", name, _between_rules(values, name)


def _in_run(values: Values, name: str) -> Scores:
    """Ask how well a valuation agrees with the exact one of the same rounds."""
    if name == EXACT:
        return
    for case, (kind, correlation) in itertools.product(RETRAINED, CORRELATIONS.items()):
        valued = values.get((name, case, "FedAvg"), {})
        exact = values.get((EXACT, case, "FedAvg"), {})
        seeds = valued.keys() & exact.keys()
        scores = [correlation(valued[seed].values, exact[seed].values) for seed in seeds]
        yield f"in-run, {kind}", case, name, scores


def _between_rules(values: Values, name: str) -> list[float]:
    """Return how alike an honest federation's values are under two rules, for each seed and two."""
    by_rule = [values.get((name, HONEST, rule), {}) for rule in RULES]
    scores = []
    for seed in values.get((name, HONEST, "FedAvg"), {}):
        of_seed = [federations[seed].values for federations in by_rule if seed in federations]
        scores += _pairs(spearman, of_seed)
    return scores


def _retraining(values: Values, names: Iterable[str], case: str, lines: Lines) -> Scores:
    """Ask what federations of every coalition, trained from scratch, answer."""
    exact = [shapley_of(-losses) for losses in _by_coalition(lines, "test_loss")]
    mean = torch.stack(exact).mean(dim=0)
    accuracy = torch.stack(_by_coalition(lines, "test_accuracy")).mean(dim=0)  # [2**m]
    for name in names:
        federations = values.get((name, case, "FedAvg"), {})
        # Coalitions were trained of the members that seed 0 marks.
        same_members = {seed: members for seed, members in federations.items() if seed == 0}
        # Other seeds mark other members; where nobody is marked, all may be compared.
        comparable = federations if case == HONEST else same_members
        for kind, correlation in CORRELATIONS.items():
            scores = [correlation(members.values, mean) for members in comparable.values()]
            yield f"retraining, {kind}", case, name, scores
        areas = [_area(members.values, accuracy) for members in same_members.values()]
        yield "area between removal curves", case, name, areas
    for kind, correlation in CORRELATIONS.items():
        yield f"retraining, {kind}", case, CEILING, _pairs(correlation, exact)


def _by_coalition(lines: Lines, column: str) -> list[Tensor]:
    """Return each seed's figures ``[2**m]`` of every coalition."""
    by_seed = defaultdict(list)
    for line in lines:
        by_seed[line["seed"]].append(float(line[column]))
    return [torch.tensor(figures, dtype=torch.float64) for figures in by_seed.values()]


def _area(values: Tensor, accuracy: Tensor) -> float:
    """Return the area between the curves of dropping the lowest and the highest values first."""
    without_low = _removal_curve(values.argsort(stable=True), accuracy)
    without_high = _removal_curve((-values).argsort(stable=True), accuracy)
    return float((without_low - without_high).mean())


def _removal_curve(order: Tensor, accuracy: Tensor) -> Tensor:
    """Return the accuracy ``[m - 1]`` once one, two ... members have been dropped in an order."""
    everybody = len(accuracy) - 1
    dropped = (2 ** order[:-1]).cumsum(dim=0)  # As coalitions: bit i is member i.
    return accuracy[everybody - dropped]


def _gain(before: MemberValues, after: MemberValues) -> float:
    """Return by which factor players change their share, 1 is none; NaN where they had nothing."""
    # Identities that an owner adds come last.
    players = after.marked[: len(before.values)]
    honest_share = _share(before.values, players)
    if not honest_share > 0:
        return math.nan
    return _share(after.values, after.marked) / honest_share


def _share(values: Tensor, chosen: Tensor) -> float:
    """Return the chosen members' share of what is positive."""
    positive = values.clamp_min(0.0)
    total = float(positive.sum())
    if not total > 0:
        return 0.0
    return float(positive[chosen].sum()) / total


def _pairs(correlation: Correlation, values: Sequence[Tensor]) -> list[float]:
    return [correlation(a, b) for a, b in itertools.combinations(values, 2)]


def _auc(values: Tensor, marked: Tensor) -> float:
    """Return how well low values ``[m]`` point to the marked; NaN if all or none are. ROC-AUC."""
    from sklearn.metrics import roc_auc_score  # takes a second, which only an audit should cost

    if marked.all() or not marked.any():
        return math.nan
    return float(roc_auc_score(marked.numpy(), -values.numpy()))


def pearson(a: Tensor, b: Tensor) -> float:
    """Return Pearson's correlation of values ``[m]``; NaN if one of them does not vary."""
    return float(torch.corrcoef(torch.stack([a, b]))[0, 1])


def spearman(a: Tensor, b: Tensor) -> float:
    """Return the correlation of ranks, the mean one of equal values; NaN if one does not vary."""
    from scipy.stats import rankdata

    ranks_of_a = torch.from_numpy(rankdata(a.numpy()))
    ranks_of_b = torch.from_numpy(rankdata(b.numpy()))
    return pearson(ranks_of_a, ranks_of_b)


CORRELATIONS: Mapping[str, Correlation] = {"Pearson": pearson, "Spearman": spearman}
