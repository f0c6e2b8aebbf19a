"""AlignIns: updates whose direction or signs are not those of the others are left out."""

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

# Of two values each is one deviation from their median, but for rounding: that is not further.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class AlignIns(CheckedFields):
    r"""Average the updates whose direction and signs are those of the others, at bounded length.

    .. math:: z_i = \frac{|x_i - \operatorname{median} x|}{\operatorname{std} x}, \quad
              x \in \{\cos(u_i, w_{t-1}),\ \operatorname{signs}_i\}

    signs is the share of an update's largest coordinates whose sign is the principal one,
    :math:`\operatorname{sgn} \sum_j \operatorname{sgn} u_j`. An update is left out where either z
    exceeds the threshold. The others are shortened to the median of their lengths, of an even
    number the lower one of the two in the middle, and averaged. Where nobody is left, the model
    stays as it is.

    Parameters
    ----------
    threshold : float
        Updates further than this many standard deviations from the median are left out, > 0.
    share : float
        Of the coordinates, in (0, 1], that count as an update's largest.

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
        # Products are taken in float64; the updates themselves are rounded as their own dtype is.
        rounding = product_error(cosines.dtype, len(params)) + torch.finfo(client_updates.dtype).eps
        furthest = self.threshold * (1 + _ROUNDING)
        aligned = _distance(sign_alignment(client_updates, self.share)) <= furthest
        similar = _distance(cosines, 4 * rounding) <= furthest
        selected = aligned & similar  # [m]
        bound = norms.new_zeros(())
        if bool(selected.any()):
            bound = norms[selected].median()
        shortening = updates.shortening.to(norms.device)
        factors = length_factors(norms, bound, shortening)
        weights = bounded_mean(selected, factors)
        return Aggregation(weights=weights.cpu(), rescaling=factors.cpu())


def sign_alignment(updates: Tensor, share: float) -> Tensor:
    """Return the share of each update's largest coordinates with the principal sign, ``[m]``."""
    signs = updates.sign()  # [m, d]
    principal = signs.sum(dim=0).sign()  # [d]
    count = share_of(updates.shape[1], share, 1)
    largest = updates.abs().topk(count, dim=1).indices  # [m, count]
    same = signs.gather(1, largest) == principal[largest]
    return same.double().mean(dim=1)


def _distance(values: Tensor, resolution: float = 0.0) -> Tensor:
    """Return how many standard deviations each value is from the median; 0 without spread.

    Values whose standard deviation is no larger than ``resolution`` differ by rounding alone.
    """
    std = values.std(correction=0)
    middle = values.quantile(0.5)
    return torch.where(std > resolution, (values - middle).abs() / std, 0.0)
