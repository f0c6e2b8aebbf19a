"""How far a round may raise the validation loss, and what is taken where it would go further."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from fedif_flower.errors import ValuationError, require
from fedif_flower.stages.stage import Destination, Proposal, Stage
from fedif_flower.valuation.descent import descend_round
from fedif_flower.valuation.validation import Validation

TOLERANCE = 0.1
HALVINGS = 4
DESCENT_STEPS = 4

# A loss that fell below this share of what it was first has fallen.
ENOUGH_OF_FIRST = 0.9
logger = logging.getLogger(__name__)


class _Candidate(NamedTuple):
    """A step that may be taken, and the validation loss there; infinite if it is not finite."""

    title: str
    step: Destination
    loss: float


class LossBound(Stage):
    r"""Takes a round's step where it keeps the validation loss, else the best step there is.

    A step is taken as it is if

    .. math:: \ell(w_t, D') \le \min_{s < t} \ell(w_s, D') + \rho\, |\ell(w_0, D')|.

    If it misses that, the one of least validation loss among these is taken:

    - the step itself, and its half, quarter, eighth and sixteenth;
    - the step by the weights that four steps of influence descent lead to (see
      :func:`~fedif_flower.valuation.descent.descend_weights`) from the mean of the strategy's own
      and the shares of the examples, with the sum of the strategy's own. Where updates are summed
      as they come or are masked, or a weight is negative, there is no such step.

    The model never stays where it was: honest training with a high learning rate loses for a
    while, and a bound that waits for a step without loss may wait for ever. With a server
    optimizer :math:`w_t` is where that leads, and a step that missed the bound makes it begin anew.

    A round costs one pass over the validation set; one that misses the bound also four passes and
    the descent's: three or four gradients and a pass.

    Parameters
    ----------
    validation : Validation, optional
        The held-out set D' with model and loss. Default: the strategy's own; where it has none,
        steps are not bounded.
    tolerance : float
        :math:`\rho`, >= 0.
    descent_steps : int
        Steps of influence descent to the other weights, >= 0; 0: only shares of the step are tried.

    Raises
    ------
    ConfigError
        If the tolerance or the steps lie outside their range.
    """

    def __init__(
        self,
        validation: Validation | None = None,
        tolerance: float = TOLERANCE,
        descent_steps: int = DESCENT_STEPS,
    ) -> None:
        require(math.isfinite(tolerance) and tolerance >= 0, "tolerance", tolerance, "finite, >= 0")
        require(descent_steps >= 0, "descent_steps", descent_steps, ">= 0")
        self.validation = validation
        self.tolerance = tolerance
        self.descent_steps = descent_steps
        self._first: float | None = None  # Loss at the start.
        self._least = math.inf
        self._held = 0  # Rounds that took another than the whole step.

    def __repr__(self) -> str:
        """Name the stage and its setting."""
        return f"LossBound(tolerance={self.tolerance:g})"

    def begin(self, validation: Validation | None) -> None:
        """Take the strategy's validation set, unless another was given."""
        self.validation = self.validation or validation

    def needs_sight(self) -> str:
        """Return nothing: without updates, shares of the step are tried."""
        return ""

    def choose(self, proposal: Proposal) -> Destination:
        """Return the step that a round takes.

        Raises
        ------
        ValuationError
            If no step leads to a finite validation loss.
        """
        validation, updates = self.validation, proposal.updates
        if validation is None:
            return proposal.move(proposal.coefficients)
        tried = _Tried(validation, proposal)
        if self._first is None or not math.isfinite(self._first):
            before = updates.global_params.cpu(), updates.global_buffers.cpu()
            self._first = self._least = tried.loss(*before)
        if not math.isfinite(self._first):
            # Where no loss was ever finite there is nothing to keep.
            return proposal.move(proposal.coefficients)
        whole = tried.candidate("the whole step", proposal.coefficients)
        if whole is not None and whole.loss <= self._least + self.tolerance * abs(self._first):
            return self._take(whole)
        if proposal.optimizer is not None:
            proposal.optimizer.restart()
        found = [] if whole is None else [whole]
        found += tried.smaller()
        if self.descent_steps:
            found += tried.reweighted(self.descent_steps)
        best = min(found, key=lambda candidate: candidate.loss, default=None)
        if best is None:
            raise ValuationError("no step leads to a finite validation loss")
        self._held += 1
        logger.debug(
            "round %d: the validation loss would rise from %.4g to %.4g; %s is taken, with %.4g",
            updates.server_round,
            self._least,
            math.inf if whole is None else whole.loss,
            best.title,
            best.loss,
        )
        return self._take(best)

    def _take(self, candidate: _Candidate) -> Destination:
        self._least = min(self._least, candidate.loss)
        return candidate.step

    def remark(self) -> str:
        """Say in how many rounds the bound held, and whether that is bad."""
        if not self._held or self._first is None:
            return ""
        rounds = "1 round" if self._held == 1 else f"{self._held} rounds"
        held = f"in {rounds} the whole step would have raised the validation loss"
        if self._least < ENOUGH_OF_FIRST * self._first:
            return (
                f"{held}, and a better one was taken: this is no reason to worry, since the loss "
                f"fell from {self._first:.4g} to {self._least:.4g}"
            )
        return (
            f"{held}, and it hardly fell: from {self._first:.4g} to {self._least:.4g} at best; try "
            "a lower learning-rate, and see whether clients and validation set fit together"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on."""
        return {"first": self._first, "least": self._least, "held": self._held}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""
        self._first, self._least, self._held = state["first"], state["least"], state["held"]


class _Tried:
    """Tries steps of a round: where they lead, and with which validation loss."""

    def __init__(self, validation: Validation, proposal: Proposal) -> None:
        self._validation = validation
        self._proposal = proposal

    def smaller(self) -> Iterator[_Candidate]:
        """Yield shares of the whole step."""
        for halving in range(1, HALVINGS + 1):
            share = 0.5**halving
            coefficients = share * self._proposal.coefficients
            found = self.candidate(f"{share:g} of the step", coefficients)
            if found is not None:
                yield found

    def reweighted(self, steps: int) -> Iterator[_Candidate]:
        """Yield the step by weights that descend the loss, if there is one."""
        updates, weights = self._proposal.updates, self._proposal.weights
        total = float(weights.sum())
        if updates.summed is not None or bool((weights < 0).any()) or not total > 0:
            return
        # Half by examples: who has no weight would keep none, though it may be all that helps.
        examples = updates.num_examples.to(weights)
        start = weights / total + examples / examples.sum()
        factors = updates.shortening
        try:
            descent = descend_round(
                updates,
                self._validation,
                start,
                factors,
                updates.buffer_shortening,
                steps=steps,
            )
        except ValuationError:  # No update leads to a finite loss.
            return
        coefficients = total * descent.weights.to(weights) * factors
        found = self.candidate("the step reweighted", coefficients)
        if found is not None:
            yield found

    def candidate(self, title: str, coefficients: Tensor) -> _Candidate | None:
        """Return a step with its loss; ``None`` where model or loss are not finite."""
        try:
            step = self._proposal.move(coefficients)
        except ValuationError:
            return None
        params, optimizer = step.params, self._proposal.optimizer
        if optimizer is not None:
            params = optimizer.lead(self._proposal.updates.global_params.cpu(), params)
        loss = self.loss(params, step.buffers)
        return _Candidate(title, step, loss) if math.isfinite(loss) else None

    def loss(self, params: Tensor, buffers: Tensor) -> float:
        """Return the validation loss of a model."""
        return self._validation.loss(params, self._proposal.updates.split_buffers(buffers))
