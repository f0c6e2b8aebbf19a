"""Norm clipping: no update counts for more than a few times the usual length."""

from __future__ import annotations

import torch
from torch import Tensor


def clipping_factors(squared_norms: Tensor, multiple: float) -> Tensor:
    r"""Return what to multiply each update by so that none is much longer than the others.

    .. math:: c_i = \min\left(1, \frac{\lambda M}{\lVert \Delta_i \rVert}\right), \qquad
              M = \operatorname{median}_{j: \Delta_j \ne 0} \lVert \Delta_j \rVert

    with :math:`\Delta_i` client i's update; of an even number of lengths the median is the
    lower one. Clients without a change do not lower it, and have factor 1.

    Parameters
    ----------
    squared_norms : Tensor
        ``[m]``, finite, >= 0: :math:`\lVert \Delta_i \rVert^2`.
    multiple : float
        :math:`\lambda` > 0.

    Returns
    -------
    Tensor
        ``[m]``, float64, in (0, 1].

    References
    ----------
    Sun et al., "Can You Really Backdoor Federated Learning?", 2019, section "Norm thresholding
    of updates"; with a bound from the round's own median.
    """
    norms = squared_norms.double().sqrt()  # [m]
    moving = norms[norms > 0]
    if len(moving) == 0:
        return torch.ones_like(norms)
    bound = multiple * moving.median()
    return torch.where(norms > bound, bound / norms, 1.0)
