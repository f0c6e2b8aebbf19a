"""What an audit's measurements say: one line for each question and valuation."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedif_studies.audit.cases import HONEST, MANIPULATIONS, RETRAINED, THREATS
from fedif_studies.audit.federation import RULES
from fedif_studies.audit.measure import RetrainedLine, ValueLine, coalition_utilities
from fedif_studies.audit.valuations import EXACT, shapley_of

CEILING = "another seed's retraining"


class Finding(NamedTuple):
    """One figure: to which question, of which case and valuation; over how many federations."""

    question: str
    case: str
    valuation: str
    value: float
    federations: int


class Values:
    """The members' values by federation and valuation."""

    def __init__(self, lines: Iterable[ValueLine]) -> None:
        self._lines: dict[tuple[str, str, int, str], list[ValueLine]] = {}
        for line in lines:
            key = (line.case, line.rule, line.seed, line.valuation)
            self._lines.setdefault(key, []).append(line)
        names = dict.fromkeys(key[3] for key in self._lines)
        self.valuations = [name for name in names if name != EXACT] + [EXACT]
        self.seeds = sorted({key[2] for key in self._lines})

    def of(self, valuation: str, case: str, seed: int, rule: str = "FedAvg") -> Tensor | None:
        """Return the values ``[m]`` of a federation's members, if they are there."""
        lines = self._lines.get((case, rule, seed, valuation))
        if lines is None:
            return None
        by_member = sorted(lines, key=lambda line: line.member)
        return torch.tensor([line.value for line in by_member], dtype=torch.float64)

    def of_seeds(self, valuation: str, case: str, seeds: Iterable[int]) -> list[Tensor]:
        """Return the values of every seed's federation that is there."""
        found = (self.of(valuation, case, seed) for seed in seeds)
        return [own for own in found if own is not None]

    def marked(self, valuation: str, case: str, seed: int) -> Tensor:
        """Return which members are marked, ``[m]`` bool."""
        lines = sorted(self._lines[case, "FedAvg", seed, valuation], key=lambda line: line.member)
        return torch.tensor([bool(line.marked) for line in lines])


def findings(values: Values, retrained: Sequence[RetrainedLine]) -> list[Finding]:
    """Return every figure that the measurements are enough for."""
    found: list[Finding] = []
    for valuation in values.valuations:
        found += _in_run(values, valuation)
        found += _detection(values, valuation)
        found += _manipulation(values, valuation)
        found += _stability(values, valuation)
    for case in RETRAINED:
        lines = [line for line in retrained if line.case == case]
        found += _retraining(values, case, coalition_utilities(lines, "test_loss"))
        found += removal(values, case, coalition_utilities(lines, "test_accuracy"))
    return found


def _in_run(values: Values, valuation: str) -> list[Finding]:
    """Correlate with the exact Shapley values of the same rounds."""
    if valuation == EXACT:
        return []
    found = []
    for case in RETRAINED:
        pairs = [(values.of(valuation, case, s), values.of(EXACT, case, s)) for s in values.seeds]
        both = [(a, b) for a, b in pairs if a is not None and b is not None]
        for name, correlation in CORRELATIONS.items():
            scores = [correlation(a, b) for a, b in both]
            found += _mean(f"in-run, {name}", case, valuation, scores)
    return found


def _retraining(values: Values, case: str, losses: Mapping[int, Tensor]) -> list[Finding]:
    """Correlate with the Shapley values of the game of federations trained from scratch."""
    if not losses:
        return []
    exact = {seed: shapley_of(-table) for seed, table in losses.items()}
    mean = torch.stack(list(exact.values())).mean(dim=0)
    found = []
    # Other seeds mark other members; where nobody is marked, all may be compared.
    seeds = values.seeds if case == HONEST else [0]
    for name, correlation in CORRELATIONS.items():
        for valuation in values.valuations:
            there = values.of_seeds(valuation, case, seeds)
            scores = [correlation(own, mean) for own in there]
            found += _mean(f"retraining, {name}", case, valuation, scores)
        pairs = itertools.combinations(exact.values(), 2)
        scores = [correlation(a, b) for a, b in pairs]
        found += _mean(f"retraining, {name}", case, CEILING, scores)
    return found


def removal(values: Values, case: str, accuracies: Mapping[int, Tensor]) -> list[Finding]:
    """Return the area between the curves of dropping the lowest and the highest values first."""
    if not accuracies:
        return []
    accuracy = torch.stack(list(accuracies.values())).mean(dim=0)  # [2**m]
    found = []
    for valuation in values.valuations:
        own = values.of(valuation, case, 0)
        if own is not None:
            lowest, highest = curve(own, accuracy), curve(-own, accuracy)
            area = float((lowest - highest).mean())
            found.append(Finding("area between removal curves", case, valuation, area, 1))
    return found


def curve(values: Tensor, accuracy: Tensor) -> Tensor:
    """Return the accuracy after dropping the k lowest valued members, k = 1 .. m - 1."""
    order = values.argsort(stable=True).tolist()
    left = accuracy.numel() - 1  # Everybody.
    found = []
    for member in order[:-1]:
        left &= ~(1 << member)
        found.append(accuracy[left])
    return torch.stack(found)


def _detection(values: Values, valuation: str) -> list[Finding]:
    """Return how well low values point to those who misbehave: ROC-AUC by threat."""
    found = []
    for case in THREATS:
        aucs = []
        for seed in values.seeds:
            own = values.of(valuation, case, seed)
            if own is not None:
                aucs.append(auc(own, values.marked(valuation, case, seed)))
        found += _mean("detection, ROC-AUC", case, valuation, aucs)
    return found


def _manipulation(values: Values, valuation: str) -> list[Finding]:
    """Return by which factor a member changes its share: 1 is no gain."""
    found = []
    for case in MANIPULATIONS:
        ratios = []
        for seed in values.seeds:
            own, honest = values.of(valuation, case, seed), values.of(valuation, HONEST, seed)
            if own is None or honest is None:
                continue
            players = values.marked(valuation, case, seed)
            after = _share(own, players)
            if len(own) != len(honest):  # Identities of one owner.
                players = torch.arange(len(honest)) == seed % len(honest)
            before = _share(honest, players)
            if before > 0:
                ratios.append(after / before)
        if ratios:
            middle = statistics.median(ratios)
            found.append(Finding("share after / before", case, valuation, middle, len(ratios)))
    return found


def _stability(values: Values, valuation: str) -> list[Finding]:
    """Return rank correlations between seeds, and between aggregation rules."""
    of_seeds = values.of_seeds(valuation, HONEST, values.seeds)
    between_seeds = [spearman(a, b) for a, b in itertools.combinations(of_seeds, 2)]
    between_rules = []
    for seed in values.seeds:
        by_rule = [values.of(valuation, HONEST, seed, rule) for rule in RULES]
        there = [own for own in by_rule if own is not None]
        between_rules += [spearman(a, b) for a, b in itertools.combinations(there, 2)]
    return [
        *_mean("stability, Spearman", "between seeds", valuation, between_seeds),
        *_mean("stability, Spearman", "between aggregation rules", valuation, between_rules),
    ]


def _mean(question: str, case: str, valuation: str, scores: Sequence[float]) -> list[Finding]:
    """Return the mean of what is defined; nothing where nothing is."""
    defined = [score for score in scores if score == score]
    if not defined:
        return []
    return [Finding(question, case, valuation, statistics.fmean(defined), len(defined))]


def _share(values: Tensor, chosen: Tensor) -> float:
    """Return the chosen members' share of what is positive."""
    positive = values.clamp_min(0.0)
    total = float(positive.sum())
    return float(positive[chosen].sum()) / total if total > 0 else 0.0


def auc(values: Tensor, marked: Tensor) -> float:
    """Return how well low values ``[m]`` point to the marked ``[m]``, by ROC-AUC; NaN: to none."""
    from sklearn.metrics import roc_auc_score  # takes a second, which only an audit should cost

    if marked.all() or not marked.any():
        return float("nan")
    return float(roc_auc_score(marked.numpy(), -values.numpy()))


def pearson(a: Tensor, b: Tensor) -> float:
    """Return Pearson's correlation of values ``[m]``; NaN if one of them does not vary."""
    return float(torch.corrcoef(torch.stack([a, b]))[0, 1])


def spearman(a: Tensor, b: Tensor) -> float:
    """Return the correlation of ranks; NaN if one of them does not vary."""
    return pearson(_ranks(a), _ranks(b))


def _ranks(values: Tensor) -> Tensor:
    """Return ranks; equal values share the mean of theirs."""
    below = (values[None, :] < values[:, None]).sum(dim=1)
    equal = (values[None, :] == values[:, None]).sum(dim=1)
    return below + (equal - 1) / 2.0


CORRELATIONS: Mapping[str, Callable[[Tensor, Tensor], float]] = {
    "Pearson": pearson,
    "Spearman": spearman,
}
