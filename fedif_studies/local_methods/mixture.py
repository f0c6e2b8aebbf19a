"""Two groups of clients, or of examples, by a mixture of two Gaussians."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

_FITS = 9
_MOST_MEDIANS = 10.0
_ROUNDING = 16 * torch.finfo(torch.float32).eps  # Clients take their figures in float32.


def on_one_scale(figures: Tensor, classes: int = 1) -> Tensor:
    r"""Return columns of clients' figures on the scale of all clients.

    .. math:: \bar x_{ic} = \frac{x_{ic} - \min_j x_{jc}}{\max_j x_{jc} - \min_j x_{jc}}

    A missing figure counts as the column's least. A figure above both ten times the column's median
    and log(classes), which guessing costs, counts as the larger of the two: one absurd report must
    not hide the others' differences.

    Parameters
    ----------
    figures : Tensor
        ``[k, f]``, float64, >= 0; NaN where client i has none.
    classes : int
        >= 1.

    Returns
    -------
    Tensor
        ``[k, f]``, in [0, 1]; 0 in a column where all are equal but for rounding.
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
    """Return the clients of ``ids`` whose figures ``[k, f]`` are in the higher component."""
    higher = in_higher(on_one_scale(figures, classes), seed, fits)
    return frozenset(i for i, is_noisy in zip(ids, higher, strict=True) if is_noisy)


def in_higher(points: Tensor, seed: int, fits: int = _FITS) -> list[bool]:
    """Tell which points are in the higher of two Gaussian components.

    Parameters
    ----------
    points : Tensor
        ``[k, f]``, k >= 2, finite.
    seed : int
        Of the first fit.
    fits : int
        So many mixtures are fitted from different seeds; the split found most often counts.

    Returns
    -------
    list of bool
        ``[k]``; no point is where all are alike, or none would be in the lower one.
    """
    # Imported here: it takes a second, of every client and command line.
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
