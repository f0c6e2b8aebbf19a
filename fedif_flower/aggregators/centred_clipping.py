"""Centred clipping: the mean of updates that are bounded by their distance from a centre."""

from __future__ import annotations

import torch
from torch import Tensor

from fedif_flower.errors import ValuationError


def centred_clipping(
    updates: Tensor, centre: Tensor, *, radius: float | None = None, iterations: int = 3
) -> Tensor:
    r"""Return the centre, moved by the clipped mean of what the updates differ from it.

    .. math:: v \leftarrow v + \frac{1}{m} \sum_i (x_i - v)
              \min\left(1, \frac{\tau}{\lVert x_i - v \rVert}\right)

    Parameters
    ----------
    updates : Tensor
        ``[m, d]``: :math:`x_i`, m >= 1, finite.
    centre : Tensor
        ``[d]``: v at the start, such as the last round's step.
    radius : float, optional
        :math:`\tau` > 0. ``None``: the median of the distances from the centre, in each iteration.
    iterations : int
        >= 1.

    Returns
    -------
    Tensor
        ``[d]``.

    References
    ----------
    Karimireddy et al., 2021 (Learning from history), equation 2. The paper gives
    :math:`\tau` a fixed value; a median needs no knowledge of the model's scale.
    """
    if radius is not None and not radius > 0:
        raise ValuationError(f"radius is {radius}; allowed: > 0")
    if iterations < 1:
        raise ValuationError(f"iterations is {iterations}; allowed: >= 1")
    for _ in range(iterations):
        away = updates - centre  # [m, d]
        distances = away.double().norm(dim=1)  # [m]
        bound = distances.median() if radius is None else torch.as_tensor(radius)
        factors = torch.where(distances > bound, bound / distances, 1.0)
        centre = centre + (factors.to(away) @ away) / len(updates)
    return centre
