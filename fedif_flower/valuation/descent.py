"""Influence descent: aggregation weights that descend the validation loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedif_flower.aggregators.clipping import usual_length
from fedif_flower.aggregators.linear_algebra import orthonormal
from fedif_flower.combining import combine, combine_buffers
from fedif_flower.errors import DivergedError, ValuationError
from fedif_flower.round import RoundUpdates
from fedif_flower.tasks.dtypes import widened
from fedif_flower.valuation.influence import project_updates
from fedif_flower.valuation.validation import Validation

# Takes params [d] and weights [m]; returns the loss and its gradient [d].
LossGradient = Callable[[Tensor, Tensor], tuple[float, Tensor]]
_MOST_GAIN = 2.0  # The 2 in the formula for z_i, in deviations.
# In usual lengths: a longer update is left out unless the loss is higher without it.
_LONG_UPDATE = 10.0
_ABSURD_UPDATE = 100.0  # In usual lengths and in model lengths: a longer update is always left out.


class Descent(NamedTuple):
    """The result of a descent.

    Attributes
    ----------
    weights : Tensor
        ``[m]``, float64, >= 0, sums to 1.
    losses : tuple of float
        The validation loss at the start and after each step taken; it never rises.
    evaluations : int
        How often the loss was evaluated, with its gradient or without.
    slopes : Tensor
        ``[m]``, float64: how fast the loss rises along each update at the start. Where all are 0,
        the weights stay as they are at the start.
    """

    weights: Tensor
    losses: tuple[float, ...]
    evaluations: int
    slopes: Tensor


def descend_weights(
    global_params: Tensor,
    client_updates: Tensor,
    initial_weights: Tensor,
    loss_gradient: LossGradient,
    *,
    loss: Callable[[Tensor, Tensor], float] | None = None,
    steps: int = 8,
    step_size: float = 1.0,
    last_step: Tensor | None = None,
    relative: bool = False,
) -> Descent:
    r"""Descend the validation loss over the simplex of aggregation weights.

    .. math:: L(p) = \ell\Big(w_{t-1} + \sum_i p_i u_i, D'\Big), \qquad
              p_i \leftarrow \frac{p_i e^{-\eta z_i}}{\sum_j p_j e^{-\eta z_j}}, \qquad
              z_i = \max(d_i / \sigma, -2)

    .. math:: d_i = \langle u_i, g \rangle - \sum_j p_j \langle u_j, g \rangle, \qquad
              \sigma^2 = \sum_j p_j d_j^2

    with :math:`u_i = w_i - w_{t-1}` client i's update, :math:`\ell` the validation loss on
    :math:`D'`, and :math:`g` its gradient at :math:`w_{t-1} + \sum_i p_i u_i`. This is mirror
    descent with the entropy as its distance (exponentiated gradient). At p = 0 the slope
    :math:`-\partial L / \partial p_i` is FedIF's influence without its normalisation. A step that
    would raise the loss is not taken, and :math:`\eta` is halved.

    Before the start some updates are left out: first those more than a hundred times as long as
    both the model and the usual update; then those more than ten times as long as the usual update,
    if the loss is not higher without them; then the longest, until the loss is finite.

    Parameters
    ----------
    global_params : Tensor
        ``[d]``: :math:`w_{t-1}`.
    client_updates : Tensor
        ``[m, d]``: :math:`u_i`, m >= 1.
    initial_weights : Tensor
        ``[m]``, >= 0, not all 0; they are divided by their sum. A client with weight 0 keeps it.
    loss_gradient : callable
        ``(params [d], weights [m])`` -> loss and gradient ``[d]`` at ``params``. It also gets the
        weights that led to these parameters, to combine the buffers of a model that has some.
    loss : callable, optional
        The same without the gradient. It is enough after the last step, since no other one follows.
    steps : int
        How many steps are tried, >= 0; each evaluates the loss once.
    step_size : float
        :math:`\eta` > 0, without a unit: a client that is one deviation :math:`\sigma` worse than
        the weighted mean loses the share :math:`1 - e^{-\eta}` of its weight, before the weights
        are divided by their sum.
    last_step : Tensor, optional
        ``[d]``: the global step of the round before, for ``relative``.
    relative : bool
        Remove from g the directions in which the server could move by itself: along
        :math:`\sum_i p_i u_i` (a longer or shorter step) and along ``last_step`` (momentum). Then
        no client gains weight by shortening or lengthening the step, nor by sending the last step
        again. If the server has chosen both lengths best, g has no components along them anyway.

    Returns
    -------
    Descent
        Weights, losses and cost.

    Raises
    ------
    ValuationError
        If no update leads to a finite loss.
    DivergedError
        If the loss at ``global_params`` itself is not finite either.

    References
    ----------
    Kivinen and Warmuth, "Exponentiated Gradient versus Gradient Descent for Linear Predictors",
    1997; Beck and Teboulle, "Mirror descent and nonlinear projected subgradient methods for convex
    optimization", 2003.
    """
    # In half precision, the squares of a usual update are 0, and those of a long one infinite.
    wide = widened(client_updates)
    squared_norms = torch.linalg.vecdot(wide, wide).double()  # [m]
    landscape = _Landscape(
        global_params,
        client_updates,
        squared_norms,
        loss_gradient,
        loss,
        relative=relative,
        last_step=last_step,
    )
    initial = initial_weights.double().cpu()
    model_length = float(torch.linalg.vector_norm(global_params.double()))
    lengths = squared_norms.sqrt().cpu()  # [m]
    current = _start(landscape.look, initial / initial.sum(), lengths, model_length)
    losses = [current.loss]
    slopes_at_start = current.slopes
    rounding = math.sqrt(torch.finfo(client_updates.dtype).eps)
    for steps_left in range(steps, 0, -1):
        slopes = current.slopes - current.weights @ current.slopes  # [m]
        deviation = (current.weights @ slopes.square()).sqrt()
        # A step lowers the loss by about the deviation. If the deviation is rounding alone, a step
        # would give unlike weights to clients that sent the same update: divided by the deviation,
        # rounding errors are no longer small. Only updates with weight set the scale of rounding,
        # since one that was left out may be very long.
        steepest = current.slopes[current.weights > 0].abs().max()
        if not deviation > rounding * steepest:
            break
        # A client without weight keeps none, whatever its slope.
        worse = torch.where(current.weights > 0, slopes / deviation, 0.0)  # [m]
        # A client of little weight may be many deviations better than the mean. Without a bound it
        # would get all the weight at once.
        worse = worse.clamp(min=-_MOST_GAIN)
        exponents = current.weights.log() - step_size * worse
        # No step starts where the last one ends, so that the slopes there are not needed.
        candidate = landscape.look(exponents.softmax(0), slopes=steps_left > 1)
        if candidate.loss <= current.loss:
            current = candidate
            losses.append(current.loss)
        else:
            step_size /= 2
    return Descent(current.weights, tuple(losses), landscape.evaluations, slopes_at_start)


def descend_round(
    updates: RoundUpdates,
    validation: Validation,
    initial_weights: Tensor,
    *,
    steps: int,
    last_step: Tensor | None = None,
    relative: bool = False,
) -> Descent:
    """Descend the validation loss over the weights of a round's updates, as stages shorten them.

    Parameters
    ----------
    updates : RoundUpdates
        The round's replies.
    validation : Validation
        The held-out set, or a part of it, with model and loss.
    initial_weights : Tensor
        ``[m]``, as in :func:`descend_weights`.
    steps, last_step, relative
        As in :func:`descend_weights`.
    """
    shortened = updates.shortened().client_updates

    def buffers(weights: Tensor) -> dict[str, Tensor]:
        combined = combine_buffers(
            updates.global_buffers, updates.buffer_updates, weights * updates.buffer_shortening
        )
        return {**updates.named_buffers, **updates.split_buffers(combined)}

    return descend_weights(
        updates.global_params,
        shortened,
        initial_weights,
        lambda params, weights: validation.loss_and_gradient(params, buffers(weights)),
        loss=lambda params, weights: validation.loss(params, buffers(weights)),
        steps=steps,
        last_step=last_step,
        relative=relative,
    )


class _Place(NamedTuple):
    """A point of the simplex: weights [m], the loss there, and its slopes dL/dp [m]."""

    weights: Tensor
    loss: float
    slopes: Tensor


@dataclass
class _Landscape:
    """The validation loss over the simplex of weights, and how often it was evaluated.

    The attributes are the arguments of :func:`descend_weights`, beside ``squared_norms`` ``[m]``,
    those of the updates, and ``evaluations``.
    """

    global_params: Tensor
    client_updates: Tensor
    squared_norms: Tensor
    loss_gradient: LossGradient
    loss: Callable[[Tensor, Tensor], float] | None
    relative: bool
    last_step: Tensor | None
    evaluations: int = 0

    def look(self, weights: Tensor, *, slopes: bool = True) -> _Place:
        """Return the place at weights ``[m]``; ``slopes=False``: only the loss has to be right."""
        self.evaluations += 1
        params = combine(self.global_params, self.client_updates, weights)
        if not slopes and self.loss is not None:
            loss = self.loss(params, weights)
            if not math.isfinite(loss):
                loss = math.inf
            return _Place(weights, loss, slopes=weights)  # A stand-in: these slopes are not read.
        loss, gradient = self.loss_gradient(params, weights)
        gradient = gradient.to(self.client_updates.device)
        directions = self._server_directions(params)
        if directions:
            gradient = _without_parts_along(directions, gradient)
        projections = project_updates(self.client_updates, gradient, self.squared_norms)
        slopes_here = -projections.inner.cpu()
        if not math.isfinite(loss) or not bool(slopes_here.isfinite().all()):
            loss = math.inf
        return _Place(weights, loss, slopes_here)

    def _server_directions(self, params: Tensor) -> list[Tensor]:
        """Return the directions ``[d]`` that ``relative`` removes from the gradient; else none."""
        if not self.relative:
            return []
        this_step = params - self.global_params
        if self.last_step is None:
            return [this_step]
        return [this_step, self.last_step]


def _without_parts_along(directions: Sequence[Tensor], gradient: Tensor) -> Tensor:
    """Return a gradient ``[d]`` without its components along some directions ``[d]``."""
    remainder = gradient.double()
    for unit in orthonormal([direction.to(remainder) for direction in directions], least=1e-6):
        remainder = remainder - (remainder @ unit) * unit
    if remainder.norm() <= 1e-6 * gradient.double().norm():  # What remains is rounding.
        return torch.zeros_like(gradient)
    return remainder.to(gradient)


def _start(
    look: Callable[[Tensor], _Place], weights: Tensor, lengths: Tensor, model_length: float
) -> _Place:
    """Return the place to begin at: the initial weights, without updates that are too long.

    A model with far too large parameters gives the same answer for every input. Its loss may be
    lower than that of any mixture with other models, but no client could train it further. So
    absurdly long updates are left out whatever the loss is, and long ones if the loss is not higher
    without them. ``lengths`` [m] are those of the updates, ``model_length`` is that of the model.
    """
    usual = usual_length(lengths)
    weights = _without(weights, lengths > _ABSURD_UPDATE * max(usual, model_length))
    place = look(weights)
    shorter = _without(weights, lengths > _LONG_UPDATE * usual)
    if not torch.equal(shorter, weights):
        without = look(shorter)
        # Of equal losses the first one is taken: without the long updates.
        place = min(without, place, key=lambda at: at.loss)
        weights = place.weights
    while not math.isfinite(place.loss):
        longest = torch.where(weights > 0, lengths, -1.0)
        weights = torch.where(longest == longest.max(), 0.0, weights)
        if not bool(weights.any()):
            nowhere = look(weights)
            reason = "the validation loss is not finite, whichever updates are left out"
            if math.isfinite(nowhere.loss):
                raise ValuationError(reason)
            raise DivergedError(reason)  # Without any update, it is the global model's own loss.
        weights = weights / weights.sum()
        place = look(weights)
    return place


def _without(weights: Tensor, left_out: Tensor) -> Tensor:
    """Return weights ``[m]`` that sum to 1 without some clients; unchanged if none would remain."""
    remaining = torch.where(left_out, 0.0, weights)
    if not bool(left_out.any()) or not bool(remaining.any()):
        return weights
    return remaining / remaining.sum()
