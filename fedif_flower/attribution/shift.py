r"""What contributions and shares would be on a held-out set with another mix of classes.

A member's contribution is a mean over held-out examples, so it is a mean over classes of what it
contributed to each class's own mean loss, :math:`c_{ik}`, weighed by how frequent the classes are
among the examples, :math:`p_k`. With another mix q it would be

.. math:: c_i(q) = \sum_k q_k c_{ik} = \sum_k \frac{q_k}{p_k} a_{ik},
          \qquad a_{ik} = p_k c_{ik}, \qquad \sum_k a_{ik} = c_i(p).

The columns ``contribution_class_k`` of ``attribution.csv`` are :math:`a_{ik}`: they are weighed by
:math:`p_k` already, and add up to the contribution. All functions here take them so, as
``by_class``.

How far a mix is from the held-out set's is told by its chi-square distance

.. math:: \chi^2(q, p) = \sum_k \frac{(q_k - p_k)^2}{p_k}.

A class that the held-out set lacks has :math:`p_k = 0`: no mix that holds it is at a finite
distance, and nobody's contribution to it is known. One to which the loss gives the weight 0 has
:math:`p_k = 0` as well, and nobody contributes to it, whatever the mix: it is left out.

References
----------
Ben-Tal et al., "Robust Solutions of Optimization Problems Affected by Uncertain Probabilities",
2013; Duchi and Namkoong, "Learning Models with Uniform Performance via Distributionally Robust
Optimization", 2021, arXiv 1810.08750.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedif_flower.errors import ValuationError, require

Array = NDArray[np.float64]
_EQUAL = 1e-12  # Values that differ by less, in parts of the largest, do not differ.
_MOST_STEPS = 100  # Of Dinkelbach's method, which needs five or so.


class Swap(NamedTuple):
    """The least change of the classes at which one member is level with another.

    Attributes
    ----------
    distance : float
        The mix's chi-square distance from the held-out set's; infinite: no mix will do.
    mix : NDArray, optional
        ``[C]``: q, which reaches it; ``None``: there is none.
    ratios : NDArray, optional
        ``[C]``: :math:`q_k / p_k`, how many times as frequent each class is there.
    """

    distance: float
    mix: Array | None = None
    ratios: Array | None = None

    @property
    def most_moved(self) -> int | None:
        """The class whose ratio is farthest from 1; ``None``: no mix will do."""
        if self.ratios is None:
            return None
        return int(np.abs(self.ratios - 1).argmax())

    def words(self, ahead: str, behind: str) -> str:
        """Say it in a sentence without its full stop.

        Parameters
        ----------
        ahead, behind : str
            What the two members are called.
        """
        label = self.most_moved
        if self.ratios is None or label is None:
            return f"no mix of the held-out classes puts {behind} level with {ahead}"
        return (
            f"{behind} would be level with {ahead} with another mix of classes, the nearest of "
            f"which has class {label} {self.ratios[label]:.2f} times as often"
        )


def share_intervals(credited: Array, contributed: Array, mix: Array, radius: float) -> Array:
    r"""Return between which values shares lie, for all mixes near the held-out set's.

    .. math:: s_i(q) = \frac{\hat c_i(q)}{D(q)}, \qquad
              D = \sum_{j:\, \hat c_j(p) > 0} \hat c_j
              \quad\text{or}\quad \sum_j c_j, \text{ which is larger at } p

    Who is paid, and which whole they have a share of, is as with the held-out mix: so a share is
    linear-fractional in q, and its ends are found exactly (Dinkelbach's method: a few ends of
    linear functions). Where nothing would be gained with some mix of the ball, it bounds no share.

    Parameters
    ----------
    credited, contributed : NDArray
        ``[n, C]``: what members are credited with, and contributed, by class.
    mix : NDArray
        ``[C]``: p, each class's part of the held-out examples, > 0; they sum to 1.
    radius : float
        :math:`\rho \ge 0`.

    Returns
    -------
    NDArray
        ``[n, 2]``, in [0, 1]; ``[0, 0]`` for members that are paid nothing.

    Raises
    ------
    ValuationError
        If a class has no example, naming it, or the shapes do not fit.
    ConfigError
        If the radius is negative.

    References
    ----------
    Dinkelbach, "On Nonlinear Fractional Programming", 1967.
    """
    shares, weighs = _mix_of(credited, mix, contributed)
    _require_radius(radius)
    credited = credited[:, weighs]
    contributed = contributed[:, weighs]
    is_paid = credited.sum(axis=1) > 0  # [n]
    ends = np.zeros((len(credited), 2))
    if not is_paid.any():
        return ends
    whole = credited[is_paid].sum(axis=0)  # [C]
    if contributed.sum() > whole.sum():
        whole = contributed.sum(axis=0)
    whole = whole / shares  # Of each class's own mean loss.
    least_whole = _farthest_mix(-whole, shares, radius) @ whole
    if least_whole <= 0:
        ends[is_paid] = 0.0, 1.0
        return ends
    for place in np.flatnonzero(is_paid):
        values = credited[place] / shares  # [C]
        ends[place, 0] = -_largest_ratio(-values, whole, shares, radius)
        ends[place, 1] = _largest_ratio(values, whole, shares, radius)
    bounded: Array = ends.clip(0.0, 1.0) + 0.0
    return bounded


def least_swap(ahead: Array, behind: Array, mix: Array) -> Swap:
    r"""Return the least change of the classes at which two members have contributed the same.

    .. math:: \rho^* = \min_{q \ge 0,\, \sum q = 1} \chi^2(q, p)
              \quad\text{where}\quad \sum_k q_k d_k = 0, \qquad d_k = c_{ik} - c_{jk}

    With :math:`D = \sum_k p_k d_k = c_i - c_j`, and while :math:`q \ge 0` holds by itself
    (Cauchy-Schwarz),

    .. math:: \rho^* = \frac{D^2}{\operatorname{Var}_p(d)}, \qquad
              q_k = p_k \Big(1 - \frac{D}{\operatorname{Var}_p(d)} (d_k - D)\Big).

    Beyond that, the classes that would be below 0 are at 0, and the same holds among the others: of
    a set A of classes with the part P of the examples, their mean m and variance v,
    :math:`1 + \rho^* = (1 + m^2 / v) / P`. Where the member that is ahead is so in every class, no
    mix puts the other one ahead.

    Parameters
    ----------
    ahead, behind : NDArray
        ``[C]``: what the two contributed, by class; the first no less in all.
    mix : NDArray
        ``[C]``: p, each class's part of the held-out examples, > 0; they sum to 1.

    Raises
    ------
    ValuationError
        If a class has no example, naming it, the shapes do not fit, or the first contributed less.
    """
    shares, weighs = _mix_of(np.stack([ahead, behind]), mix)
    gap = (ahead - behind)[weighs]  # [C]
    if math.fsum(gap) < 0:
        raise ValuationError("the member that is said to be ahead contributed less than the other")
    if math.fsum(gap) == 0:
        return _swap_to(shares, shares, weighs)
    differences = gap / shares  # d [C]
    differences = differences / np.abs(differences).max()
    smallest_first = np.argsort(differences, kind="stable")
    for size in range(len(shares), 0, -1):
        active = smallest_first[:size]
        part = _moments(differences[active], shares[active])
        if part.variance > 0:
            ratios = 1 - (differences[active] - part.mean) * part.mean / part.variance
        elif part.mean > _EQUAL:
            break  # In no class is the other one ahead.
        else:
            ratios = np.ones(size)
        if ratios.min() >= 0:
            return _swap_to(_spread_out(active, ratios, shares), shares, weighs)
    return Swap(math.inf)


def _swap_to(reached: Array, shares: Array, weighs: NDArray[np.bool_]) -> Swap:
    """Return a swap at a mix ``[k]`` of those classes ``[C]`` that weigh something."""
    distance = float(((reached - shares) ** 2 / shares).sum())
    mix = np.zeros(len(weighs))
    mix[weighs] = reached
    ratios = np.ones(len(weighs))
    ratios[weighs] = reached / shares
    return Swap(distance, mix, ratios)


class _Moments(NamedTuple):
    """A set of classes' part of the examples; mean and variance of values in it."""

    weight: float
    mean: float
    variance: float


def _moments(values: Array, shares: Array) -> _Moments:
    """Return the moments of values ``[k]``, whose sizes are 1 at most, with weights ``[k]``."""
    weight = float(shares.sum())
    mean = float(shares @ values) / weight
    variance = float(shares @ (values - mean) ** 2) / weight
    # What is left of equal values is the rounding of their mean.
    if variance <= _EQUAL**2:
        variance = 0.0
    return _Moments(weight, mean, variance)


def _farthest_mix(values: Array, shares: Array, radius: float) -> Array:
    r"""Return the mix q ``[C]`` in the ball with the largest :math:`\sum_k q_k v_k`.

    Its ratios to the held-out shares are :math:`(v_k - \nu)_+` up to a factor. Among the classes A
    above :math:`\nu`, with mean m, variance v and weight P,
    :math:`m - \nu = \sqrt{v / (P (1 + \rho) - 1)}`. The classes are tried from all of them down to
    the one of the largest value: whenever the lowest of A has a ratio below 0, it is at 0.
    """
    largest = np.abs(values).max()
    if largest == 0:
        return shares
    scaled = values / largest
    largest_first = np.argsort(-scaled, kind="stable")
    active = largest_first
    ratios = _ratios_within(scaled, shares, active, radius)
    while ratios.min() < 0:
        active = active[:-1]
        ratios = _ratios_within(scaled, shares, active, radius)
    return _spread_out(active, ratios, shares)


def _ratios_within(values: Array, shares: Array, active: NDArray[np.intp], radius: float) -> Array:
    """Return by how much each active class is changed, where all others are at 0: ``[k]``.

    Those of the mix in the ball with the largest sum, up to a factor; below 0 where a class is
    active that ought to be at 0. Of one class, and of equal values, they are 1.
    """
    part = _moments(values[active], shares[active])
    ratios = np.ones(len(active))
    if part.variance > 0:
        slack = max(part.weight * (1 + radius) - 1, 0.0)
        ratios += (values[active] - part.mean) * math.sqrt(slack / part.variance)
    return ratios


def _spread_out(active: NDArray[np.intp], ratios: Array, shares: Array) -> Array:
    """Return the mix ``[C]`` with these ratios, up to a factor, in some classes and 0 elsewhere."""
    mix = np.zeros_like(shares)
    mix[active] = shares[active] * ratios
    spread: Array = mix / mix.sum()
    return spread


def _largest_ratio(values: Array, whole: Array, shares: Array, radius: float) -> float:
    """Return the largest ratio of two sums over classes in the ball; the second is > 0 there."""
    ratio = float(shares @ values) / float(shares @ whole)
    for _ in range(_MOST_STEPS):
        farthest = _farthest_mix(values - ratio * whole, shares, radius)
        higher = float(farthest @ values) / float(farthest @ whole)
        if higher <= ratio:
            break
        ratio = higher
    return ratio


def _mix_of(by_class: Array, mix: Array, *more: Array) -> tuple[Array, NDArray[np.bool_]]:
    """Return the shares ``[k]`` of the classes that weigh something, and which ``[C]`` they are.

    A class without a share weighs something if anything is contributed to it, in ``more`` too.
    """
    shares = np.asarray(mix, dtype=np.float64)
    if by_class.ndim != 2 or shares.shape != by_class.shape[1:] or not len(shares):
        raise ValuationError(
            f"contributions by class are {by_class.shape}, the mix of classes {shares.shape}; "
            "allowed: [n, C] and [C]"
        )
    weighs = shares != 0
    for values in (by_class, *more):
        weighs |= values.any(axis=0)
    missing = np.flatnonzero(~(shares > 0) & weighs).tolist()
    if missing:
        raise ValuationError(
            f"the held-out set has no example of the classes {missing}: what members contribute "
            "to them cannot be valued"
        )
    if not math.isclose(math.fsum(shares), 1.0, rel_tol=1e-6):
        raise ValuationError(f"the mix of classes sums to {math.fsum(shares):.6g}; allowed: 1")
    return shares[weighs], weighs


def _require_radius(radius: float) -> None:
    require(math.isfinite(radius) and radius >= 0, "radius", radius, "a number >= 0")
