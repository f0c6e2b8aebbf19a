"""Norm clipping: no update counts for more than a few times the usual length."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def usual_length(norms: Tensor) -> float:
    r"""Return the median of the lengths that are not 0; infinity if all lengths are 0.

    Parameters
    ----------
    norms : Tensor
        ``[n]``, finite, >= 0. The median of an even number is the lower one of the middle two.
    """
    moving = norms[norms > 0]
    if not len(moving):
        return math.inf
    return float(moving.median())


def clipping_factors(squared_norms: Tensor, bound: float) -> Tensor:
    r"""Return the factors that make no update longer than a bound.

    .. math:: c_i = \min\left(1, \frac{B}{\lVert \Delta_i \rVert}\right)

    with :math:`\Delta_i` client i's update. An update of length 0 has factor 1.

    Parameters
    ----------
    squared_norms : Tensor
        ``[m]``, finite, >= 0: :math:`\lVert \Delta_i \rVert^2`.
    bound : float
        B > 0, in the parameters' own unit; infinity shortens nothing.

    Returns
    -------
    Tensor
        ``[m]``, float64, in (0, 1].

    References
    ----------
    Sun et al., "Can You Really Backdoor Federated Learning?", 2019, section "Norm thresholding
    of updates".
    """
    norms = squared_norms.double().sqrt()  # [m]
    return torch.where(norms > bound, bound / norms, 1.0)


def bounded_mean(selected: Tensor, factors: Tensor) -> Tensor:
    r"""Return the coefficients ``[m]`` of the mean of selected updates, each times its factor.

    .. math:: a_i = \frac{f_i}{|A|} \text{ for } i \in A, \text{ otherwise } 0

    with A the updates that are ``selected`` [m] and :math:`f_i` the ``factors`` [m], such as those
    of :func:`length_factors`. If A is empty, every coefficient is 0: the model stays as it is.
    """
    return selected * factors / selected.sum().clamp_min(1)


def length_factors(norms: Tensor, bound: Tensor, shortening: Tensor | float = 1.0) -> Tensor:
    r"""Return the factors ``[m]``, float64, in [0, 1], that make updates at most S long.

    .. math:: f_i = \min\left(1, \frac{S}{s_i \lVert u_i \rVert}\right)

    with S the ``bound``, :math:`\lVert u_i \rVert` the lengths ``norms`` [m], and :math:`s_i` the
    factors ``shortening`` [m], by which stages shorten the updates as well. An update is used at
    length :math:`f_i s_i \lVert u_i \rVert`: as long as the tighter of the two bounds allows.
    """
    remaining = norms * shortening  # [m]
    return torch.where(remaining > bound, bound / remaining, 1.0).double()
