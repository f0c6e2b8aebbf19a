"""Influence descent: aggregation weights that go down the validation loss."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fedif_flower.errors import DivergedError, ValuationError, require
from fedif_flower.round import combine
from fedif_flower.valuation.influence import project_updates

LossGradient = Callable[[Tensor, Tensor], tuple[float, Tensor]]
Loss = Callable[[Tensor, Tensor], float]
_MOST_GAIN = 2.0  # Deviations.


class Descent(NamedTuple):
    """Where a descent ended.

    Attributes
    ----------
    weights : Tensor
        ``[m]``, float64, >= 0, sums to 1.
    losses : tuple of float
        The validation loss at the start and after each step taken; it never rises.
    evaluations : int
        How often the loss was asked for, with its gradient or without.
    """

    weights: Tensor
    losses: tuple[float, ...]
    evaluations: int


def descend_weights(
    global_params: Tensor,
    client_updates: Tensor,
    initial_weights: Tensor,
    loss_gradient: LossGradient,
    *,
    loss: Loss | None = None,
    steps: int = 8,
    step_size: float = 1.0,
) -> Descent:
    r"""Descend the validation loss over the simplex of aggregation weights.

    .. math:: L(p) = \ell\Big(w_{t-1} + \sum_i p_i u_i, D'\Big), \qquad
              p_i \leftarrow \frac{p_i e^{-\eta z_i}}{\sum_j p_j e^{-\eta z_j}}, \qquad
              z_i = \max(d_i / \sigma, -2)

    .. math:: d_i = \langle u_i, g \rangle - \sum_j p_j \langle u_j, g \rangle, \qquad
              \sigma^2 = \sum_j p_j d_j^2

    with :math:`u_i = w_i - w_{t-1}` client i's update and :math:`g` the gradient of the loss at
    :math:`w_{t-1} + \sum_i p_i u_i`: mirror descent with the entropy as its distance (exponentiated
    gradient). At p = 0 the slope :math:`-\partial L / \partial p_i` is FedIF's influence without
    its normalisation. A step that would raise the loss is not taken, and :math:`\eta` is halved. If
    the loss at the start is not finite, the longest updates are left out until it is.

    Parameters
    ----------
    global_params : Tensor
        ``[d]``: :math:`w_{t-1}`.
    client_updates : Tensor
        ``[m, d]``: :math:`u_i`, m >= 1.
    initial_weights : Tensor
        ``[m]``, >= 0, not all 0; they are divided by their sum. Who has 0 keeps it.
    loss_gradient : callable
        ``(params [d], weights [m])`` -> loss and gradient ``[d]`` at ``params``; the weights that
        led there are for a model with buffers to combine.
    loss : callable, optional
        The same without the gradient, for the last step, of which no further one comes.
    steps : int
        How many steps are tried, >= 0; each asks for the loss once.
    step_size : float
        :math:`\eta` > 0, without a unit: who is one deviation :math:`\sigma` worse than the
        weighted mean loses the share :math:`1 - e^{-\eta}`, before all are divided by their sum.

    Returns
    -------
    Descent
        Weights, losses and cost.

    Raises
    ------
    ConfigError
        If ``steps`` or ``step_size`` lies outside its range.
    ValuationError
        If the weights are no weights, or if no update leads to a finite loss.
    DivergedError
        If the loss at ``global_params`` itself is not finite either.

    References
    ----------
    Kivinen and Warmuth, "Exponentiated Gradient versus Gradient Descent for Linear Predictors",
    1997; Beck and Teboulle, "Mirror descent and nonlinear projected subgradient methods for convex
    optimization", 2003.
    """
    require(steps >= 0, "steps", steps, ">= 0")
    require(math.isfinite(step_size) and step_size > 0, "step_size", step_size, "a number > 0")
    landscape = _Landscape(global_params, client_updates, loss_gradient, loss)
    here = _start(landscape, _checked(initial_weights, len(client_updates)))
    losses = [here.loss]
    for left in range(steps, 0, -1):
        slopes = here.slopes - here.weights @ here.slopes  # [m]
        deviation = (here.weights @ slopes.square()).sqrt()
        if not deviation > 0:
            break
        # Who has no weight keeps none, whatever its slope.
        relative = torch.where(here.weights > 0, slopes / deviation, 0.0)  # [m]
        # One of little weight may be many deviations better, and would be all that is left.
        relative = relative.clamp(min=-_MOST_GAIN)
        exponents = here.weights.log() - step_size * relative
        there = landscape.look(exponents.softmax(0), slopes=left > 1)
        if there.loss <= here.loss:
            here = there
            losses.append(here.loss)
        else:
            step_size /= 2
    return Descent(here.weights, tuple(losses), landscape.evaluations)


class _Place(NamedTuple):
    """A point of the simplex: weights [m], the loss there, and its slopes dL/dp [m]."""

    weights: Tensor
    loss: float
    slopes: Tensor


class _Landscape:
    """The validation loss as a function of the weights."""

    def __init__(
        self,
        global_params: Tensor,
        client_updates: Tensor,
        loss_gradient: LossGradient,
        loss: Loss | None,
    ) -> None:
        self.global_params = global_params
        self.client_updates = client_updates
        self.squared_norms = torch.linalg.vecdot(client_updates, client_updates).double()  # [m]
        self._loss_gradient, self._loss = loss_gradient, loss
        self.evaluations = 0

    def look(self, weights: Tensor, *, slopes: bool = True) -> _Place:
        """Return what there is at ``weights`` [m]; a loss that is not finite is infinite."""
        params = combine(self.global_params, self.client_updates, weights)
        self.evaluations += 1
        if not slopes and self._loss is not None:
            loss = self._loss(params, weights)
            return _Place(weights, loss if math.isfinite(loss) else math.inf, weights)
        loss, gradient = self._loss_gradient(params, weights)
        inner = -project_updates(
            self.client_updates, gradient.to(self.client_updates.device), self.squared_norms
        ).inner.cpu()
        finite = math.isfinite(loss) and bool(inner.isfinite().all())
        return _Place(weights, loss if finite else math.inf, inner)


def _start(landscape: _Landscape, weights: Tensor) -> _Place:
    """Return the place to begin at: all clients, or those that lead to a finite loss."""
    place = landscape.look(weights)
    while not math.isfinite(place.loss):
        lengths = torch.where(weights > 0, landscape.squared_norms.cpu(), -1.0)
        weights = torch.where(lengths == lengths.max(), 0.0, weights)
        if not bool(weights.any()):
            nowhere = landscape.look(weights)
            error = ValuationError if math.isfinite(nowhere.loss) else DivergedError
            raise error("the validation loss is not finite, whichever updates are left out")
        weights = weights / weights.sum()
        place = landscape.look(weights)
    return place


def _checked(weights: Tensor, num_clients: int) -> Tensor:
    """Return weights ``[m]`` that sum to 1, float64, on the CPU."""
    weights = weights.double().cpu()
    fit = weights.shape == (num_clients,) and bool((weights.isfinite() & (weights >= 0)).all())
    if not fit or not bool(weights.any()):
        raise ValuationError(
            f"initial_weights is {weights.tolist()}; allowed: {num_clients} numbers >= 0, not all 0"
        )
    return weights / weights.sum()
