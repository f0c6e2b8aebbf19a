r"""What contributions and shares would be on a held-out set with another mix of classes.

Member i's contribution is a mean over the held-out examples. So it is also a weighted mean over
classes: of :math:`c_{ik}`, what the member contributed to the mean loss of class k, with weights
:math:`p_k`, the class's share of the examples. With another mix q of the classes it would be

.. math:: c_i(q) = \sum_k q_k c_{ik} = \sum_k \frac{q_k}{p_k} a_{ik},
          \qquad a_{ik} = p_k c_{ik}, \qquad \sum_k a_{ik} = c_i(p).

The columns ``contribution_class_k`` of ``attribution.csv`` hold :math:`a_{ik}`, which are weighted
by :math:`p_k` already and add up to the contribution. All functions here take these values as
contributions (or credits) by class.

The chi-square distance says how far a mix q is from the held-out set's mix p:

.. math:: \chi^2(q, p) = \sum_k \frac{(q_k - p_k)^2}{p_k}.

A class that the held-out set lacks has :math:`p_k = 0`. No mix with such a class is at a finite
distance, and nobody's contribution to the class is known. A class to which the loss gives the
weight 0 has :math:`p_k = 0` as well. Nobody contributes to it, whatever the mix: it is left out.

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
_EQUAL = 1e-12  # Values that differ by less, relative to the largest, count as equal.
_MOST_STEPS = 100  # Iterations of Dinkelbach's method, which usually needs five.


class Swap(NamedTuple):
    """The smallest change of the class mix at which one member has contributed as much as another.

    Attributes
    ----------
    distance : float
        The chi-square distance of that mix from the held-out set's; infinite: there is no such mix.
    mix : NDArray, optional
        ``[C]``: that mix, q; ``None``: there is none.
    ratios : NDArray, optional
        ``[C]``: :math:`q_k / p_k`, how many times as frequent each class is in that mix; 1 for
        classes that are left out.
    """

    distance: float
    mix: Array | None = None
    ratios: Array | None = None

    @property
    def most_moved(self) -> int | None:
        """The class whose ratio is farthest from 1; ``None``: there is no such mix."""
        if self.ratios is None:
            return None
        return int(np.abs(self.ratios - 1).argmax())

    def words(self, ahead: str, behind: str) -> str:
        """Return the swap as a sentence without its full stop.

        Parameters
        ----------
        ahead, behind : str
            The names of the two members.
        """
        label = self.most_moved
        if self.ratios is None or label is None:
            return f"no mix of the held-out classes puts {behind} level with {ahead}"
        return (
            f"{behind} would be level with {ahead} with another mix of classes, the nearest of "
            f"which has class {label} {self.ratios[label]:.2f} times as often"
        )


def share_intervals(credited: Array, contributed: Array, mix: Array, radius: float) -> Array:
    r"""Return each member's lowest and highest share over all mixes near the held-out one.

    .. math:: s_i(q) = \frac{\hat c_i(q)}{D(q)}, \qquad \chi^2(q, p) \le \rho, \qquad
              D = \sum_{j:\, \hat c_j(p) > 0} \hat c_j
              \quad\text{or}\quad \sum_j c_j, \text{ whichever is larger at } p

    with :math:`\hat c_i` member i's credit. The held-out mix p decides who is paid, and which of
    the two sums D is. So a share is a ratio of two linear functions of q, and its extremes over the
    ball of mixes are exact (Dinkelbach's method, which maximises a linear function a few times).
    If D is 0 or negative for some mix of the ball, shares are not bounded: 0 to 1 is returned.

    Parameters
    ----------
    credited, contributed : NDArray
        ``[n, C]``: members' credits and contributions by class.
    mix : NDArray
        ``[C]``: p, each class's share of the held-out examples; they sum to 1. A share may be 0
        where nobody has credit or contribution.
    radius : float
        :math:`\rho \ge 0`.

    Returns
    -------
    NDArray
        ``[n, 2]``, in [0, 1]; ``[0, 0]`` for members without a positive credit.

    Raises
    ------
    ValuationError
        If a class that somebody contributed to has no example, if the shapes do not fit, or if the
        mix does not sum to 1.
    ConfigError
        If the radius is negative or not finite.

    References
    ----------
    Dinkelbach, "On Nonlinear Fractional Programming", 1967.
    """
    if contributed.shape != credited.shape:
        raise ValuationError(
            f"contributions by class are {contributed.shape}, credits {credited.shape}; allowed: "
            "[n, C] each"
        )
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
    whole = whole / shares  # By each class's own mean loss.
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
    r"""Return the smallest change of the class mix at which two members have contributed the same.

    .. math:: \rho^* = \min_{q \ge 0,\, \sum q = 1} \chi^2(q, p)
              \quad\text{where}\quad \sum_k q_k d_k = 0, \qquad d_k = c_{ik} - c_{jk}

    with i the member that is ahead and j the other one. Let :math:`D = \sum_k p_k d_k = c_i - c_j`.
    By Cauchy-Schwarz the solution without the constraint :math:`q \ge 0` is

    .. math:: \rho^* = \frac{D^2}{\operatorname{Var}_p(d)}, \qquad
              q_k = p_k \Big(1 - \frac{D}{\operatorname{Var}_p(d)} (d_k - D)\Big).

    If some :math:`q_k` were negative, these classes are set to 0, and the same formula holds among
    the others. For a set of classes with the share P of the examples, and with mean m and variance
    v of d among them, :math:`1 + \rho^* = (1 + m^2 / v) / P`. If the member that is ahead is ahead
    in every class, there is no such mix.

    Parameters
    ----------
    ahead, behind : NDArray
        ``[C]``: what the two members contributed, by class. The sum of the first is no less.
    mix : NDArray
        ``[C]``: p, each class's share of the held-out examples; they sum to 1. A share may be 0
        where neither member contributed.

    Raises
    ------
    ValuationError
        If a class that one of them contributed to has no example, if the shapes do not fit, if the
        mix does not sum to 1, or if the first member contributed less.
    """
    if ahead.shape != behind.shape:
        raise ValuationError(
            f"`ahead` is {ahead.shape}, `behind` {behind.shape}; allowed: [C] each"
        )
    shares, weighs = _mix_of(np.stack([ahead, behind]), mix)
    gap = (ahead - behind)[weighs]  # [C]
    if math.fsum(gap) < 0:
        raise ValuationError("`ahead` contributed less than `behind`: exchange the two arguments")
    if math.fsum(gap) == 0:
        return _swap_to(shares, shares, weighs)
    differences = gap / shares  # d [C]
    # The mix does not depend on the scale of d; _EQUAL does.
    differences = differences / np.abs(differences).max()
    smallest_first = np.argsort(differences, kind="stable")
    for size in range(len(shares), 0, -1):
        active = smallest_first[:size]
        part = _moments(differences[active], shares[active])
        if part.variance > 0:
            ratios = 1 - (differences[active] - part.mean) * part.mean / part.variance
        elif part.mean > _EQUAL:
            break  # The other member is ahead in none of the classes.
        else:
            ratios = np.ones(size)
        if ratios.min() >= 0:
            return _swap_to(_spread_out(active, ratios, shares), shares, weighs)
    return Swap(math.inf)


def _swap_to(reached: Array, shares: Array, weighs: NDArray[np.bool_]) -> Swap:
    """Return the swap at a mix of the classes that are not left out.

    Parameters
    ----------
    reached, shares : NDArray
        ``[k]``: that mix, and the held-out set's, of the k classes that are not left out.
    weighs : NDArray
        ``[C]``: which classes are not left out.
    """
    distance = float(((reached - shares) ** 2 / shares).sum())
    mix = np.zeros(len(weighs))
    mix[weighs] = reached
    ratios = np.ones(len(weighs))
    ratios[weighs] = reached / shares
    return Swap(distance, mix, ratios)


class _Moments(NamedTuple):
    """A set of classes' share of the examples, and mean and variance of values over the set."""

    weight: float
    mean: float
    variance: float


def _moments(values: Array, shares: Array) -> _Moments:
    """Return the moments of values ``[k]`` in [-1, 1], weighted by shares ``[k]``."""
    weight = float(shares.sum())
    mean = float(shares @ values) / weight
    variance = float(shares @ (values - mean) ** 2) / weight
    # Equal values have a variance of 0, but for the rounding of their mean.
    if variance <= _EQUAL**2:
        variance = 0.0
    return _Moments(weight, mean, variance)


def _farthest_mix(values: Array, shares: Array, radius: float) -> Array:
    r"""Return the mix q ``[C]`` in the ball with the largest :math:`\sum_k q_k v_k`.

    The ball holds all mixes within the chi-square distance ``radius``, :math:`\rho`, of ``shares``,
    p; ``values`` are :math:`v_k`. The solution is :math:`q_k \propto p_k \max(v_k - \nu, 0)` for
    some :math:`\nu`. Let A be the classes with :math:`v_k > \nu`, with mean m and variance v of the
    values among them and with the share P of the examples. Then
    :math:`m - \nu = \sqrt{v / (P (1 + \rho) - 1)}`. A is first taken to be all classes; while the
    class with the lowest value in it would have a negative ratio, it is removed.
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
    """Return the ratios ``[k]`` of the best mix of some classes to the held-out mix.

    The best mix is the one of :func:`_farthest_mix`. Ratios are up to a common factor. A negative
    ratio says that one active class too many was given. If all values are equal, or there is one
    class, the ratios are 1.

    Parameters
    ----------
    values, shares : NDArray
        ``[C]``: v and p.
    active : NDArray
        ``[k]``: the indices of the classes in the best mix; all others are at 0.
    radius : float
        The ball's.
    """
    part = _moments(values[active], shares[active])
    ratios = np.ones(len(active))
    if part.variance > 0:
        slack = max(part.weight * (1 + radius) - 1, 0.0)
        ratios += (values[active] - part.mean) * math.sqrt(slack / part.variance)
    return ratios


def _spread_out(active: NDArray[np.intp], ratios: Array, shares: Array) -> Array:
    """Return the mix ``[C]`` with these ratios in the active classes, and 0 in all others.

    ``ratios`` [k] are ratios to ``shares`` up to a common factor.
    """
    mix = np.zeros_like(shares)
    mix[active] = shares[active] * ratios
    spread: Array = mix / mix.sum()
    return spread


def _largest_ratio(values: Array, whole: Array, shares: Array, radius: float) -> float:
    """Return the largest ratio of two linear functions of the mix in the ball.

    They are the sums of ``values`` and of ``whole`` over classes, ``[C]`` each, weighted by the
    mix. The second is positive in all of the ball.
    """
    # Dinkelbach: the ratio rises until no mix makes values - ratio * whole positive.
    ratio = float(shares @ values) / float(shares @ whole)
    for _ in range(_MOST_STEPS):
        farthest = _farthest_mix(values - ratio * whole, shares, radius)
        higher = float(farthest @ values) / float(farthest @ whole)
        if higher <= ratio:
            break
        ratio = higher
    return ratio


def _mix_of(by_class: Array, mix: Array, *more: Array) -> tuple[Array, NDArray[np.bool_]]:
    """Return the shares ``[k]`` of the classes that are not left out, and which ``[C]`` these are.

    A class is left out if its share is 0 and nobody contributed to it.

    Parameters
    ----------
    by_class : NDArray
        ``[n, C]``: contributions by class.
    mix : NDArray
        ``[C]``: each class's share of the held-out examples.
    *more : NDArray
        ``[n, C]``: further figures by class, such as credits.

    Raises
    ------
    ValuationError
        If a class that somebody contributed to has no example, if the shapes do not fit, or if the
        mix does not sum to 1.
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
