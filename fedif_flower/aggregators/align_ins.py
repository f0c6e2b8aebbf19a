"""AlignIns: leave out updates whose direction or signs differ from those of the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedif_flower.aggregators.clipping import bounded_mean, length_factors
from fedif_flower.aggregators.linear_algebra import inner_products, product_error
from fedif_flower.arithmetic import share_of
from fedif_flower.constructors import CheckedFields
from fedif_flower.round import Aggregation, RoundUpdates
from fedif_flower.settings import Setting

# Relative tolerance of the threshold. Two values are both exactly one standard deviation from their
# median: rounding must not put them beyond the default threshold of 1.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class AlignIns(CheckedFields):
    r"""Average the updates whose direction and signs agree with most others, at bounded length.

    .. math:: z_i = \frac{|x_i - \operatorname{median}_j x_j|}{\operatorname{std}_j x_j}, \quad
              x_i \in \{\cos(u_i, w_{t-1}),\ \operatorname{signs}_i\}

    with :math:`u_i` client i's update and :math:`w_{t-1}` the model that it received.
    :math:`\operatorname{signs}_i` is the share of the update's largest coordinates that have the
    principal sign, :math:`\operatorname{sgn} \sum_j \operatorname{sgn} u_j`. An update is left out
    if its z exceeds the threshold for either x. The others are averaged; those longer than the
    median of their lengths are shortened to it (of an even number, the lower one of the middle
    two). If no update is left, the model stays as it is.

    Parameters
    ----------
    threshold : float
        Updates further than this many standard deviations from the median are left out, > 0.
    share : float
        Share of the coordinates, in (0, 1], that count as an update's largest.

    References
    ----------
    Xu et al., 2025 (Detecting backdoor attacks in federated learning via direction alignment
    inspection), section 4.
    """

    gives_weights = True
    sets_lengths = True

    threshold: Annotated[
        float,
        Setting(
            "updates further than this from the median are left out, in standard deviations", gt=0
        ),
    ] = 1.0
    share: Annotated[
        float, Setting("share of the coordinates that counts as an update's largest", gt=0, le=1)
    ] = 0.3

    def __call__(self, updates: RoundUpdates) -> Aggregation:
        """Return the coefficients ``[m]`` of the updates that are kept, 0 for the others."""
        client_updates = updates.client_updates  # [m, d]
        params = updates.global_params  # [d]
        products = inner_products(client_updates, params)
        norms = products.squared_norms.sqrt()  # [m]
        length = norms * products.squared_norm.sqrt()
        cosines = torch.where(length > 0, products.inner / length, 0.0)  # [m]
        # Cosines of equal directions still differ by rounding: that of the products, which are
        # taken in float64, and that of the updates in their own dtype.
        rounding = product_error(cosines.dtype, len(params)) + torch.finfo(client_updates.dtype).eps
        furthest = self.threshold * (1 + _ROUNDING)
        aligned = _distance(sign_alignment(client_updates, self.share)) <= furthest
        similar = _distance(cosines, 4 * rounding) <= furthest  # 4: a margin.
        selected = aligned & similar  # [m]
        bound = norms.new_zeros(())
        if bool(selected.any()):
            bound = norms[selected].median()
        shortening = updates.shortening.to(norms.device)
        factors = length_factors(norms, bound, shortening)
        weights = bounded_mean(selected, factors)
        return Aggregation(weights=weights.cpu(), rescaling=factors.cpu())


def sign_alignment(updates: Tensor, share: float) -> Tensor:
    """Return which share of each update's largest coordinates has the principal sign, ``[m]``."""
    signs = updates.sign()  # [m, d]
    principal = signs.sum(dim=0).sign()  # [d]
    count = share_of(updates.shape[1], share, 1)
    largest = updates.abs().topk(count, dim=1).indices  # [m, count]
    same = signs.gather(1, largest) == principal[largest]
    return same.double().mean(dim=1)


def _distance(values: Tensor, resolution: float = 0.0) -> Tensor:
    """Return each value's distance from the median in standard deviations; 0 without spread.

    There is no spread if the standard deviation is at most ``resolution``: rounding alone.
    """
    std = values.std(correction=0)
    middle = values.quantile(0.5)
    return torch.where(std > resolution, (values - middle).abs() / std, 0.0)
