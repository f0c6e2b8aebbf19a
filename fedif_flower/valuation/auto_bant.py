"""AutoBANT: aggregation weights by mirror steps on the loss of trial batches."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from fedif_flower.aggregators.linear_algebra import inner_products
from fedif_flower.errors import ValuationError, require
from fedif_flower.round import combine
from fedif_flower.valuation.descent import LossGradient


class TrialWeights(NamedTuple):
    """Where the mirror steps led.

    Attributes
    ----------
    weights : Tensor
        ``[m]``, float64, >= 0; they sum to 1 less what was cut off.
    evaluations : int
        How many trial batches were looked at.
    """

    weights: Tensor
    evaluations: int


def auto_bant_weights(
    global_params: Tensor,
    client_updates: Tensor,
    batches: Iterable[LossGradient],
    *,
    step_size: float = 1.0,
    momentum: float = 0.05,
    least: float = 0.5,
) -> TrialWeights:
    r"""Return the weights of the least trial loss on the way of the mirror steps.

    .. math:: q_i \propto p_i e^{-\eta \langle u_i, g \rangle}, \qquad
              p \leftarrow (1 - \beta) p + \beta q, \qquad
              g = \nabla \ell_b\Big(w_{t-1} + \sum_i p_i u_i\Big)

    from :math:`p_i = 1 / m` on, one step for each batch b of trial data, with u_i client i's
    update. Those p are kept at which a batch had the least loss; of them, what is less than
    :math:`c / m` becomes 0.

    Parameters
    ----------
    global_params : Tensor
        ``[d]``: :math:`w_{t-1}`.
    client_updates : Tensor
        ``[m, d]``: :math:`u_i`, m >= 1.
    batches : iterable of callable
        For each step ``(params [d], weights [m])`` -> a batch's loss and gradient ``[d]``.
    step_size : float
        :math:`\eta` > 0, one over a loss.
    momentum : float
        :math:`\beta` in (0, 1].
    least : float
        c in [0, 1]: a share of the equal weight.

    Returns
    -------
    TrialWeights
        Weights and cost.

    Raises
    ------
    ConfigError
        If a parameter lies outside its range.
    ValuationError
        If no batch has a finite loss, or a gradient is not finite.

    References
    ----------
    Molodtsov et al., "Bant: Byzantine Antidote via Trial Function and Trust Scores",
    arXiv:2505.07614, AutoBANT, with the constants of its authors' code.
    """
    require(math.isfinite(step_size) and step_size > 0, "step_size", step_size, "a number > 0")
    require(0 < momentum <= 1, "momentum", momentum, "a number > 0 and <= 1")
    require(0 <= least <= 1, "least", least, "a number >= 0 and <= 1")
    m = len(client_updates)
    weights = torch.full((m,), 1.0 / m, dtype=torch.float64)
    best, least_loss, evaluations = weights, math.inf, 0
    for loss_gradient in batches:
        params = combine(global_params, client_updates, weights)
        loss, gradient = loss_gradient(params, weights)
        evaluations += 1
        if loss < least_loss:
            best, least_loss = weights, loss
        slopes = inner_products(client_updates, gradient.to(client_updates.device)).inner.cpu()
        stepped = (weights.log() - step_size * slopes).softmax(0)  # [m]
        weights = (1 - momentum) * weights + momentum * stepped
    if not math.isfinite(least_loss):
        raise ValuationError("the trial loss is finite at none of the weights")
    return TrialWeights(torch.where(best < least / m, 0.0, best), evaluations)
