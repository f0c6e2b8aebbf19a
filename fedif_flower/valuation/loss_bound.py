"""How far a round may raise the validation loss, and what is taken where it would go further."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from fedif_flower.aggregators.server_momentum import ServerMomentum
from fedif_flower.errors import ValuationError, require
from fedif_flower.round import RoundUpdates
from fedif_flower.valuation.descent import descend_round
from fedif_flower.valuation.validation import Validation

TOLERANCE = 0.1
HALVINGS = 4
DESCENT_STEPS = 4

logger = logging.getLogger(__name__)


class BoundedStep(NamedTuple):
    """Where a round leads: parameters ``[d]``, buffers ``[b]``, and the coefficients applied.

    ``coefficients`` [m] are what the updates of the parameters were multiplied by.
    """

    params: Tensor
    buffers: Tensor
    coefficients: Tensor


Move = Callable[[Tensor], BoundedStep]
"""Takes coefficients ``[m]`` and returns where they lead; raises ValuationError if nowhere."""


class _Candidate(NamedTuple):
    """A step that may be taken, and the validation loss there; infinite if it is not finite."""

    title: str
    step: BoundedStep
    loss: float


class LossBound:
    r"""Takes a round's step where it keeps the validation loss, else the best step there is.

    A step is taken as it is if

    .. math:: \ell(w_t, D') \le \min_{s < t} \ell(w_s, D') + \rho\, |\ell(w_0, D')|.

    If it misses that, the one of least validation loss among these is taken:

    - the step itself, and its half, quarter, eighth and sixteenth;
    - the step by the weights that four steps of influence descent lead to (see
      :func:`~fedif_flower.valuation.descent.descend_weights`) from the mean of the strategy's own
      and the shares of the examples, with the sum of the strategy's own. Where updates are summed
      as they come, or a weight is negative, there is no such step.

    The model never stays where it was: honest training with a high learning rate loses for a
    while, and a bound that waits for a step without loss may wait for ever. With server momentum
    :math:`w_t` is where the running mean leads, and a step that missed the bound begins a new mean.

    A round costs one pass over the validation set; one that misses the bound also four passes and
    the descent's: three or four gradients and a pass.

    Parameters
    ----------
    validation : Validation
        The held-out set D' with model and loss.
    tolerance : float
        :math:`\rho`, >= 0.
    momentum : ServerMomentum, optional
        How the model moves on; ``None``: by each round's own step.

    Raises
    ------
    ConfigError
        If the tolerance lies outside its range.
    """

    def __init__(
        self,
        validation: Validation,
        tolerance: float = TOLERANCE,
        momentum: ServerMomentum | None = None,
    ) -> None:
        require(math.isfinite(tolerance) and tolerance >= 0, "tolerance", tolerance, "finite, >= 0")
        self.validation = validation
        self.tolerance = tolerance
        self.momentum = momentum or ServerMomentum()
        self._first: float | None = None  # Loss at the start.
        self._least = math.inf

    def choose(
        self,
        updates: RoundUpdates,
        weights: Tensor,
        factors: Tensor,
        buffer_factors: Tensor,
        move: Move,
    ) -> BoundedStep:
        """Return the step that a round takes.

        Parameters
        ----------
        updates : RoundUpdates
            The round's replies.
        weights : Tensor
            ``[m]``: how much each would count if nothing were bounded.
        factors, buffer_factors : Tensor
            ``[m]``: by which the updates of parameters, and of buffers, are shortened.
        move : callable
            Where coefficients lead.

        Raises
        ------
        ValuationError
            If no step leads to a finite validation loss.
        """
        if self._first is None or not math.isfinite(self._first):
            before = updates.global_params.cpu(), updates.global_buffers.cpu()
            self._first = self._least = self._loss(updates, *before)
        coefficients = weights * factors
        if not math.isfinite(self._first):
            return move(coefficients)  # Where no loss was ever finite there is nothing to keep.
        whole = self._candidate("the whole step", updates, coefficients, move)
        if whole is not None and whole.loss <= self._least + self.tolerance * abs(self._first):
            return self._take(whole)
        self.momentum.restart()
        found = [] if whole is None else [whole]
        found += self._smaller(updates, coefficients, move)
        found += self._reweighted(updates, weights, factors, buffer_factors, move)
        best = min(found, key=lambda candidate: candidate.loss, default=None)
        if best is None:
            raise ValuationError("no step leads to a finite validation loss")
        logger.info(
            "round %d: the validation loss would rise from %.4g to %.4g; %s is taken, with %.4g",
            updates.server_round,
            self._least,
            math.inf if whole is None else whole.loss,
            best.title,
            best.loss,
        )
        return self._take(best)

    def _take(self, candidate: _Candidate) -> BoundedStep:
        self._least = min(self._least, candidate.loss)
        return candidate.step

    def _smaller(
        self, updates: RoundUpdates, coefficients: Tensor, move: Move
    ) -> Iterator[_Candidate]:
        for halving in range(1, HALVINGS + 1):
            share = 0.5**halving
            found = self._candidate(f"{share:g} of the step", updates, share * coefficients, move)
            if found is not None:
                yield found

    def _reweighted(
        self,
        updates: RoundUpdates,
        weights: Tensor,
        factors: Tensor,
        buffer_factors: Tensor,
        move: Move,
    ) -> Iterator[_Candidate]:
        total = float(weights.sum())
        if updates.summed is not None or bool((weights < 0).any()) or not total > 0:
            return
        # Half by examples: who has no weight would keep none, though it may be all that helps.
        examples = updates.num_examples.to(weights)
        start = weights / total + examples / examples.sum()
        try:
            descent = descend_round(
                updates, self.validation, start, factors, buffer_factors, steps=DESCENT_STEPS
            )
        except ValuationError:  # No update leads to a finite loss.
            return
        coefficients = total * descent.weights.to(weights) * factors
        found = self._candidate("the step reweighted", updates, coefficients, move)
        if found is not None:
            yield found

    def _candidate(
        self, title: str, updates: RoundUpdates, coefficients: Tensor, move: Move
    ) -> _Candidate | None:
        """Return a step with its loss; ``None`` where model or loss are not finite."""
        try:
            step = move(coefficients)
        except ValuationError:
            return None
        params = self.momentum.moved(updates.global_params.cpu(), step.params)
        loss = self._loss(updates, params, step.buffers)
        return _Candidate(title, step, loss) if math.isfinite(loss) else None

    def _loss(self, updates: RoundUpdates, params: Tensor, buffers: Tensor) -> float:
        return self.validation.loss(params, updates.split_buffers(buffers))

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on."""
        return {"first": self._first, "least": self._least}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""
        self._first, self._least = state["first"], state["least"]
