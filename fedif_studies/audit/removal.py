"""Removal curves: the accuracy of those who stay when members leave in the order of their values.

Every group of members was trained from scratch, so the curves are looked up, not estimated.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from fedif_flower.valuation.shapley.exact import all_coalitions
from fedif_studies.audit.lines import Lines, Values, coalition_figures, same_members
from fedif_studies.audit.valuations import shapley_of

RETRAINED_VALUES = "retraining's own Shapley values"


class RemovalCurves(NamedTuple):
    """Accuracies ``[m]`` once none, one, two ... m - 1 members have left, in two orders."""

    lowest_first: Tensor
    highest_first: Tensor

    @property
    def area(self) -> float:
        """The mean difference of both once somebody has left; 0 in expectation at random."""
        return float((self.lowest_first - self.highest_first)[1:].mean())


def removal_curves(values: Tensor, accuracy: Tensor) -> RemovalCurves:
    """Return the curves of some values.

    Parameters
    ----------
    values : Tensor
        ``[m]``, of the members; of equal ones the first leaves first.
    accuracy : Tensor
        ``[2**m]``, of each coalition; bit i stands for member i.
    """
    lowest_first = _accuracy_along(values.argsort(stable=True), accuracy)
    highest_first = _accuracy_along((-values).argsort(stable=True), accuracy)
    return RemovalCurves(lowest_first, highest_first)


def _accuracy_along(order: Tensor, accuracy: Tensor) -> Tensor:
    """Return the accuracies ``[m]`` while members leave in an order ``[m]``."""
    everybody = len(accuracy) - 1
    gone = (2 ** order[:-1]).cumsum(dim=0)  # As coalitions.
    gone = torch.cat([gone.new_zeros(1), gone])  # At first nobody is.
    return accuracy[everybody - gone]


def random_curve(accuracy: Tensor) -> Tensor:
    """Return the mean accuracies ``[m]`` of all orders: means over the coalitions of each size."""
    m = len(accuracy).bit_length() - 1
    sizes = all_coalitions(m).sum(dim=1)  # [2**m]
    means = [accuracy[sizes == m - count_gone].mean() for count_gone in range(m)]
    return torch.stack(means)


class CaseCurves(NamedTuple):
    """What is drawn of a case: each valuation's curves by its name, and those of random orders."""

    by_name: dict[str, RemovalCurves]
    at_random: Tensor
    seeds: int


def case_curves(
    values: Values, retrained: Lines, case: str, names: Iterable[str]
) -> CaseCurves | None:
    """Return the mean curves of a case, or ``None`` if no coalitions of it were trained.

    Parameters
    ----------
    values : mapping
        The members' values, by valuation, case and rule.
    retrained : sequence of mapping
        The lines of the coalitions.
    case : str
        Whose coalitions.
    names : iterable of str
        Valuations; those without values are left out. The values that retraining itself has come
        first.
    """
    losses = coalition_figures(retrained, case, "test_loss")
    if not losses:
        return None
    accuracy = torch.stack(coalition_figures(retrained, case, "test_accuracy")).mean(dim=0)
    truth = shapley_of(-torch.stack(losses).mean(dim=0))  # They are linear in the game.
    by_name = {RETRAINED_VALUES: removal_curves(truth, accuracy)}
    for name in names:
        federations = same_members(values, name, case).values()
        if federations:
            curves = [removal_curves(members.values, accuracy) for members in federations]
            by_name[name] = _mean_of(curves)
    return CaseCurves(by_name, random_curve(accuracy), len(losses))


def _mean_of(curves: list[RemovalCurves]) -> RemovalCurves:
    lowest_first = torch.stack([curve.lowest_first for curve in curves]).mean(dim=0)
    highest_first = torch.stack([curve.highest_first for curve in curves]).mean(dim=0)
    return RemovalCurves(lowest_first, highest_first)
