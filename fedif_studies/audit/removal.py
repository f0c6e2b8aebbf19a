"""Removal curves: the accuracy of a federation as members leave in the order of their values.

Every coalition was trained from scratch, so the curves are looked up, not estimated.
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
    """Accuracies ``[m]`` after 0, 1, ..., m - 1 members have left, in two orders of leaving."""

    lowest_first: Tensor
    highest_first: Tensor

    @property
    def area(self) -> float:
        """The mean difference of the curves after 1 to m - 1 members have left.

        Values that are drawn at random have 0 in expectation.
        """
        return float((self.lowest_first - self.highest_first)[1:].mean())


def removal_curves(values: Tensor, accuracy: Tensor) -> RemovalCurves:
    """Return the removal curves that members' values give.

    Parameters
    ----------
    values : Tensor
        ``[m]``: the members' values. Of members with equal values, the first leaves first.
    accuracy : Tensor
        ``[2**m]``: the accuracy of each coalition; bit i of its index stands for member i.
    """
    lowest_first = _accuracy_along(values.argsort(stable=True), accuracy)
    highest_first = _accuracy_along((-values).argsort(stable=True), accuracy)
    return RemovalCurves(lowest_first, highest_first)


def _accuracy_along(order: Tensor, accuracy: Tensor) -> Tensor:
    """Return the accuracies ``[m]`` while members leave in an order ``[m]``; the last one stays."""
    everybody = len(accuracy) - 1
    gone = (2 ** order[:-1]).cumsum(dim=0)  # The index of the coalition that has left.
    gone = torch.cat([gone.new_zeros(1), gone])  # At first nobody has left.
    return accuracy[everybody - gone]


def random_curve(accuracy: Tensor) -> Tensor:
    """Return the curve ``[m]`` that is the mean over all orders of leaving.

    It is the mean accuracy of all coalitions of each size.
    """
    m = len(accuracy).bit_length() - 1
    sizes = all_coalitions(m).sum(dim=1)  # [2**m]
    means = [accuracy[sizes == m - count_gone].mean() for count_gone in range(m)]
    return torch.stack(means)


class CaseCurves(NamedTuple):
    """The curves of a case: by valuation's name, and the mean curve of all orders.

    ``seeds`` is how often each coalition was trained.
    """

    by_name: dict[str, RemovalCurves]
    at_random: Tensor
    seeds: int


def case_curves(
    values: Values, retrained: Lines, case: str, names: Iterable[str]
) -> CaseCurves | None:
    """Return the mean curves of a case, or ``None`` if its coalitions were not trained.

    Parameters
    ----------
    values : mapping
        The members' values, by (valuation, case, rule) and then by seed.
    retrained : sequence of mapping
        The lines of the coalitions that were trained from scratch.
    case : str
        The case.
    names : iterable of str
        The valuations; those without values are left out. The Shapley values of retraining itself
        are added, and come first.
    """
    losses = coalition_figures(retrained, case, "test_loss")
    if not losses:
        return None
    accuracy = torch.stack(coalition_figures(retrained, case, "test_accuracy")).mean(dim=0)
    # Shapley values are linear in the game: those of the mean game are the mean over seeds.
    truth = shapley_of(-torch.stack(losses).mean(dim=0))
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
