"""ShapFed's valuation: agreement with the aggregate, class by class, in the last layer."""

from __future__ import annotations

import torch
from torch import Tensor


def class_contributions(last_layer_updates: Tensor, weights: Tensor) -> Tensor:
    r"""Return each client's contribution to each class.

    .. math:: \gamma_{ic} = \cos(\Delta_{ic}, \Delta_c), \qquad
              \Delta_c = \sum_j p_j \Delta_{jc}

    with :math:`\Delta_{ic}` client i's update of the last layer's row for class c and
    :math:`p_j` the aggregation weights. It is 0 where either vector is zero.

    Parameters
    ----------
    last_layer_updates : Tensor
        ``[m, classes, features]``, finite; a bias may be one of the features.
    weights : Tensor
        ``[m]``: :math:`p_j`, >= 0; only their ratios matter.

    Returns
    -------
    Tensor
        ``[m, classes]``, float64, in [-1, 1].

    References
    ----------
    Tastan et al., "Redefining Contributions: Shapley-Driven Federated Learning", IJCAI 2024.
    """
    updates = last_layer_updates.to(torch.float64)
    aggregate = torch.einsum("m,mcf->cf", weights.to(updates), updates)  # [classes, features]
    lengths = torch.linalg.vector_norm(updates, dim=2) * torch.linalg.vector_norm(aggregate, dim=1)
    inner = torch.einsum("mcf,cf->mc", updates, aggregate)
    return torch.where(lengths > 0, inner / lengths, 0.0).clamp(-1.0, 1.0)


def shapfed_contributions(last_layer_updates: Tensor, weights: Tensor) -> Tensor:
    r"""Return each client's contribution, the mean over classes.

    .. math:: \gamma_i = \frac{1}{|C|} \sum_{c \in C} \gamma_{ic}

    with C the classes and :math:`\gamma_{ic}` from :func:`class_contributions`, which has the same
    parameters.

    Returns
    -------
    Tensor
        ``[m]``, float64, in [-1, 1].
    """
    return class_contributions(last_layer_updates, weights).mean(dim=1)
