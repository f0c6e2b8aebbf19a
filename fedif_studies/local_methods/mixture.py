"""Splits clients or examples into two groups, by a mixture of two Gaussians."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

_FITS = 9  # The number of mixtures that vote on the split of clients.
_MOST_MEDIANS = 10.0  # A figure is capped at so many times the median.
_ROUNDING = 16 * torch.finfo(torch.float32).eps  # Clients compute their figures in float32.


def on_one_scale(figures: Tensor, classes: int = 1) -> Tensor:
    r"""Return clients' figures with each column scaled to [0, 1].

    .. math:: \bar x_{ic} = \frac{x_{ic} - \min_j x_{jc}}{\max_j x_{jc} - \min_j x_{jc}}

    with :math:`x_{ic}` the figure of client i in column c. A missing figure counts as the column's
    least. A figure is capped at ten times the column's median, or at log(classes), the loss of a
    guess, if that is larger: one absurd report must not hide the differences between the others.

    Parameters
    ----------
    figures : Tensor
        ``[k, f]``, float64, >= 0: f figures of k clients; NaN if a client lacks one.
    classes : int
        The number of classes that a guess is among, >= 1.

    Returns
    -------
    Tensor
        ``[k, f]``, in [0, 1]; 0 in a column whose figures are equal up to rounding.
    """
    most = (_MOST_MEDIANS * figures.nanquantile(0.5, dim=0)).clamp_min(math.log(classes))
    capped = torch.minimum(figures, most)  # NaN stays.
    low = capped.nan_to_num(torch.inf).amin(dim=0)  # [f]
    filled = torch.where(capped.isnan(), low, capped)
    high = filled.amax(dim=0)
    span = high - low
    return torch.where(span > _ROUNDING * high, (filled - low) / span, 0.0)


def noisy_of(
    ids: Sequence[int], figures: Tensor, seed: int, *, classes: int = 1, fits: int = _FITS
) -> frozenset[int]:
    """Return the ids of the clients whose figures ``[k, f]`` are in the higher component."""
    higher = in_higher(on_one_scale(figures, classes), seed, fits)
    return frozenset(i for i, is_noisy in zip(ids, higher, strict=True) if is_noisy)


def in_higher(points: Tensor, seed: int, fits: int = _FITS) -> list[bool]:
    """Return whether each point is in the higher one of two Gaussian components.

    Parameters
    ----------
    points : Tensor
        ``[k, f]``, k >= 2, finite.
    seed : int
        The seed of the first fit.
    fits : int
        The number of mixtures, fitted from different seeds. The most frequent split counts.

    Returns
    -------
    list of bool
        ``[k]``; all are ``False`` if all points are equal, or if none is in the lower component.
    """
    # Imported here, since it takes a second that clients and command lines should not wait for.
    from sklearn.mixture import GaussianMixture

    values = points.numpy()
    nobody = [False] * len(values)
    if bool((points == points[0]).all()):
        return nobody
    votes: Counter[tuple[bool, ...]] = Counter()
    for number in range(fits):
        mixture = GaussianMixture(2, random_state=seed + number).fit(values)
        higher = mixture.means_.sum(axis=1).argmax()
        is_higher = mixture.predict(values) == higher
        votes[tuple(is_higher.tolist())] += 1
    split = votes.most_common(1)[0][0]
    if all(split):
        return nobody
    return list(split)
