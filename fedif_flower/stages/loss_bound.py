"""How far a round may raise the validation loss, and what is taken where it would go further."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from fedif_flower.errors import ValuationError, require
from fedif_flower.round import RoundUpdates
from fedif_flower.settings import Setting
from fedif_flower.stages.stage import Destination, Proposal, Stage
from fedif_flower.valuation.descent import descend_round
from fedif_flower.valuation.validation import Validation

HALVINGS = 4
DESCENT_STEPS = 4

# A loss that fell by more than this share of its first size has fallen.
ENOUGH_OF_FIRST = 0.1


@dataclass(eq=False)
class LossBound(Stage):
    r"""Takes a round's step where it keeps the validation loss, else the best step there is.

    A step is taken as it is if

    .. math:: \ell(w_t, D') \le \min_{s < t} \ell(w_s, D') + \rho\, |\ell(w_0, D')|.

    A model that was taken back is none of the :math:`w_s`. If the step misses that, the one of
    least validation loss among these is taken:

    - the step itself, and its half, quarter, eighth and sixteenth;
    - the step by the weights that four steps of influence descent lead to (see
      :func:`~fedif_flower.valuation.descent.descend_weights`) from the mean of the strategy's own
      and the shares of the examples, with the sum of the strategy's own. Where nobody sees
      updates, or a weight is negative, there is no such step.

    As long as the loss of the model before the step is not finite there is nothing to keep: each
    step is taken as it is. The model never stays where it was: honest training with a high learning
    rate loses for a while, and a bound that waits for a step without loss may wait for ever. With a
    server optimizer :math:`w_t` is where that leads, and a step that missed the bound makes it
    begin anew.

    A round costs one pass over the validation set; one that misses the bound also five passes, six
    with a server optimizer, and the descent's: about four gradients and a pass.

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

    needs_lengths_alone = True  # Without updates, shares of the step are tried.

    validation: Validation | None = field(default=None, repr=False)
    tolerance: Annotated[float, Setting("rho, of the loss at the start", ge=0)] = 0.1
    descent_steps: Annotated[int, Setting("of influence descent, to other weights", ge=0)] = field(
        default=DESCENT_STEPS, repr=False
    )
    _first = math.nan  # Loss at the start.
    _least = math.inf
    _least_before = math.inf  # Before the last step.
    _held = 0  # Rounds that took another than the whole step.

    def __post_init__(self) -> None:
        """Raise ConfigError for what is out of range, or of another kind."""
        super().__post_init__()
        fits = self.validation is None or isinstance(self.validation, Validation)
        require(fits, "validation", self.validation, "a Validation")

    def begin(self, validation: Validation | None) -> None:
        """Take the strategy's validation set, unless another was given."""
        self.validation = self.validation or validation

    def choose(self, proposal: Proposal) -> Destination:
        """Return the step that a round takes.

        Raises
        ------
        ValuationError
            If no step leads to a finite validation loss.
        """
        validation = self.validation
        if validation is None or not self._has_loss_to_keep(validation, proposal.updates):
            return proposal.move(proposal.coefficients)
        whole = _try_step(validation, proposal, proposal.coefficients)
        if whole is not None and whole.loss <= self._least + self.tolerance * abs(self._first):
            best = whole
        else:
            best = self._best_other(validation, proposal, whole)
            self._held += 1
            if proposal.optimizer is not None:
                proposal.optimizer.restart()
        if not _stays(proposal, best.step):
            self._least_before = self._least
            self._least = min(self._least, best.loss)
        return best.step

    def _has_loss_to_keep(self, validation: Validation, updates: RoundUpdates) -> bool:
        """Tell whether a loss has been finite, from the model on that a round begins with."""
        if not math.isfinite(self._first):
            params = updates.global_params.cpu()
            self._first = validation.loss(params, updates.named_buffers)
            self._least = self._first
        return math.isfinite(self._first)

    def take_back(self) -> None:
        """Forget the loss of a model that is taken back."""
        self._least = self._least_before

    def _best_other(
        self, validation: Validation, proposal: Proposal, whole: _Candidate | None
    ) -> _Candidate:
        """Return the step of least loss among the whole one, shares of it, and another.

        A server optimizer begins anew with it, and so leads elsewhere with the whole one, too.
        """
        if proposal.optimizer is None:
            return self._least_of_all(validation, proposal, whole)
        with proposal.optimizer.anew():
            whole = _try_step(validation, proposal, proposal.coefficients)
            return self._least_of_all(validation, proposal, whole)

    def _least_of_all(
        self, validation: Validation, proposal: Proposal, whole: _Candidate | None
    ) -> _Candidate:
        """Return what :meth:`_best_other` does, once the optimizer is as it has to be."""
        coefficients = proposal.coefficients
        shares = [0.5**halving for halving in range(1, HALVINGS + 1)]
        candidates = [whole]
        candidates += [_try_step(validation, proposal, share * coefficients) for share in shares]
        other = _reweighted(validation, proposal, self.descent_steps)
        if other is not None:
            candidates.append(_try_step(validation, proposal, other))
        finite = [candidate for candidate in candidates if candidate is not None]
        if not finite:
            raise ValuationError("no step leads to a finite validation loss")
        return min(finite, key=lambda candidate: candidate.loss)

    def remark(self) -> str:
        """Say in how many rounds the bound held, and whether that is bad."""
        if not self._held:
            return ""
        rounds = "1 round" if self._held == 1 else f"{self._held} rounds"
        held = f"in {rounds} the whole step would have raised the validation loss"
        fell = f"from {self._first:.4g} to {self._least:.4g}"
        if self._first - self._least > ENOUGH_OF_FIRST * abs(self._first):
            words = "and a better one was taken: this is no reason to worry, since the loss fell"
            return f"{held}, {words} {fell}"
        words = "a lower learning-rate, and see whether clients and validation set fit together"
        return f"{held}, and it hardly fell: {fell} at best; try {words}"

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on."""
        return {
            "first": self._first,
            "least": self._least,
            "least_before": self._least_before,
            "held": self._held,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""
        self._first = state["first"]
        self._least = state["least"]
        # Earlier versions did not keep what goes back with a model.
        self._least_before = state.get("least_before", self._least)
        self._held = state["held"]


class _Candidate(NamedTuple):
    """A step that could be taken, and the validation loss that it leads to."""

    loss: float
    step: Destination


def _stays(proposal: Proposal, step: Destination) -> bool:
    """Tell whether a step leaves the model where it is, so that there is none to take back."""
    if proposal.optimizer is not None and proposal.optimizer.moves_on:
        return False
    updates = proposal.updates
    is_same = torch.equal(step.params, updates.global_params.cpu())
    return is_same and torch.equal(step.buffers, updates.global_buffers.cpu())


def _try_step(
    validation: Validation, proposal: Proposal, coefficients: Tensor
) -> _Candidate | None:
    """Return a step and its loss; ``None`` where model or loss are not finite."""
    updates = proposal.updates
    try:
        step = proposal.move(coefficients)
    except ValuationError:
        return None
    params = step.params
    if proposal.optimizer is not None:
        params = proposal.optimizer.lead(updates.global_params.cpu(), params)
    # What is not averaged, as counters and masks, belongs to the model as well.
    buffers = {**updates.named_buffers, **updates.split_buffers(step.buffers)}
    loss = validation.loss(params, buffers)
    if not math.isfinite(loss):
        return None
    return _Candidate(loss, step)


def _reweighted(validation: Validation, proposal: Proposal, steps: int) -> Tensor | None:
    """Return coefficients ``[m]`` by weights that descend the loss, if there are any."""
    updates = proposal.updates
    weights = proposal.weights
    if not steps or updates.unseen is not None:
        return None
    total = float(weights.sum())
    if not total > 0 or bool((weights < 0).any()):
        return None
    # Half by examples: who has no weight would keep none, though it may be all that helps.
    examples = updates.num_examples.to(weights)
    shares = weights / total  # [m], sum to 1.
    shares_of_examples = examples / examples.sum()  # [m]
    start = (shares + shares_of_examples) / 2
    try:
        descent = descend_round(updates, validation, start, steps=steps)
    except ValuationError:  # No update leads to a finite loss.
        return None
    return total * descent.weights.to(weights) * updates.shortening
