"""A bound on the validation loss after a step, and the step taken if another one exceeds it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from fedif_flower.aggregators.clipping import usual_length
from fedif_flower.errors import ValuationError, require
from fedif_flower.round import RoundUpdates
from fedif_flower.settings import Setting
from fedif_flower.stages.stage import Destination, Proposal, Stage
from fedif_flower.valuation.descent import descend_round
from fedif_flower.valuation.validation import Validation

HALVINGS = 4  # The shares of the step that are tried: 1/2, 1/4, 1/8 and 1/16.
_LEAST_SHARE = 0.5**HALVINGS
DESCENT_STEPS = 4

# The remark at the end of a run says that the loss fell if it fell by more than this share of the
# loss at the start.
_MUCH_OF_FIRST_LOSS = 0.1


@dataclass(eq=False)
class LossBound(Stage):
    r"""Takes a round's step if the validation loss does not rise too far, else a better step.

    A step from :math:`w_{t-1}` to :math:`w_t` is taken as it is if

    .. math:: \ell(w_t, D') \le \min_{s < t} \ell(w_s, D') + \rho\, |\ell(w_0, D')|

    with :math:`\ell(w, D')` the loss of the model w on the held-out set D', :math:`w_0` the first
    model with a finite loss (normally the initial one), and :math:`w_s` the models after earlier
    rounds, except those that were taken back. Otherwise the step of least validation loss among
    these is taken:

    - the step itself, and its half, quarter, eighth and sixteenth;
    - a step by other weights. Four steps of influence descent (see
      :func:`~fedif_flower.valuation.descent.descend_weights`) lead to them. The descent begins
      with the mean of the strategy's own weights and the clients' shares of the examples, and its
      result is scaled to the sum of the strategy's own weights. Updates shorter than a sixteenth of
      the usual length have no part in it: where all others raise the loss, a client that sends the
      model back would get all the weight, and the model would stay where it is. There is no such
      step if updates are hidden from the server, or if a weight is negative.

    While the loss of the model before the step is not finite, each step is taken as it is: there is
    no loss to keep. The bound never leaves the model where it was. The reason is that honest
    training with a high learning rate raises the loss for a while, so that a bound that waits for a
    step without a rise may wait for ever. With a server optimizer :math:`w_t` is the model that
    the optimizer leads to. If that misses the bound, the optimizer forgets the earlier rounds'
    steps, and all steps above are compared by where it leads without them.

    A round costs one pass over the validation set. A round that misses the bound costs five more
    passes (six with a server optimizer) and the descent: about four gradients and a pass.

    Parameters
    ----------
    validation : Validation, optional
        The held-out set D' with model and loss. Default: the strategy's own; if it has none, steps
        are not bounded.
    tolerance : float
        :math:`\rho`, >= 0.
    descent_steps : int
        The number of steps of influence descent, >= 0. With 0, only shares of the step are tried.

    Raises
    ------
    ConfigError
        If ``tolerance`` or ``descent_steps`` is out of range, or ``validation`` no Validation.
    """

    needs_lengths_alone = True  # If updates are hidden, only shares of the step are tried.

    validation: Validation | None = field(default=None, repr=False)
    tolerance: Annotated[float, Setting("rho, of the loss at the start", ge=0)] = 0.1
    descent_steps: Annotated[int, Setting("of influence descent, to other weights", ge=0)] = field(
        default=DESCENT_STEPS, repr=False
    )
    _first = math.nan  # The loss at the start; not finite until a model's loss was.
    _least = math.inf  # The least loss of a model so far.
    _least_before = math.inf  # `_least` before the last step, for when the model is taken back.
    _missed = 0  # The number of rounds that missed the bound.

    def __post_init__(self) -> None:
        """Raise ConfigError if a field is out of range or of a wrong type."""
        super().__post_init__()
        fits = self.validation is None or isinstance(self.validation, Validation)
        require(fits, "validation", self.validation, "a Validation")

    def begin(self, validation: Validation | None) -> None:
        """Use the strategy's validation set, unless this stage was given one."""
        self.validation = self.validation or validation

    def choose(self, proposal: Proposal) -> Destination:
        """Return where the proposed step leads, or a better one if it misses the bound.

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
            self._missed += 1
            if proposal.optimizer is not None:
                proposal.optimizer.restart()
        # A round that leaves the model where it is makes no step that could be taken back.
        if not _stays(proposal, best.step):
            self._least_before = self._least
            self._least = min(self._least, best.loss)
        return best.step

    def _has_loss_to_keep(self, validation: Validation, updates: RoundUpdates) -> bool:
        """Tell whether a model before a step has had a finite loss; measure it if none has yet."""
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
        """Return the step of least loss among the whole step, its shares, and one by other weights.

        ``whole`` is the whole step as it was tried; ``None`` if its loss was not finite. A server
        optimizer begins anew in such a round. The whole step leads elsewhere then, and is tried
        again.
        """
        if proposal.optimizer is None:
            return self._least_of_all(validation, proposal, whole)
        with proposal.optimizer.anew():
            whole = _try_step(validation, proposal, proposal.coefficients)
            return self._least_of_all(validation, proposal, whole)

    def _least_of_all(
        self, validation: Validation, proposal: Proposal, whole: _Candidate | None
    ) -> _Candidate:
        """Do what :meth:`_best_other` says, with the optimizer in the state that it is in."""
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
        """Return in how many rounds the bound was missed, and whether that is a reason to worry."""
        if not self._missed:
            return ""
        rounds = "1 round" if self._missed == 1 else f"{self._missed} rounds"
        missed = (
            f"in {rounds} the whole step exceeded the bound on the validation loss, and of several "
            "steps the one of least loss was taken"
        )
        fell = f"from {self._first:.4g} to {self._least:.4g}"
        if self._first - self._least > _MUCH_OF_FIRST_LOSS * abs(self._first):
            return f"{missed}: this is no reason to worry, since the loss fell {fell}"
        return (
            f"{missed}; the loss hardly fell ({fell} at best): try a lower learning-rate; perhaps "
            "the validation set is of another kind than the clients' data"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a checkpoint keeps."""
        return {
            "first": self._first,
            "least": self._least,
            "least_before": self._least_before,
            "held": self._missed,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
        self._first = state["first"]
        self._least = state["least"]
        # States that earlier versions saved lack this.
        self._least_before = state.get("least_before", self._least)
        self._missed = state["held"]


class _Candidate(NamedTuple):
    """A step that could be taken, and the validation loss after it."""

    loss: float
    step: Destination


def _stays(proposal: Proposal, step: Destination) -> bool:
    """Tell whether a step leaves the model where it is."""
    if proposal.optimizer is not None and proposal.optimizer.moves_on:
        return False  # Its momentum moves the model in any case.
    updates = proposal.updates
    is_same = torch.equal(step.params, updates.global_params.cpu())
    return is_same and torch.equal(step.buffers, updates.global_buffers.cpu())


def _try_step(
    validation: Validation, proposal: Proposal, coefficients: Tensor
) -> _Candidate | None:
    """Return the step by coefficients ``[m]`` and its loss; ``None`` if either is not finite."""
    updates = proposal.updates
    try:
        step = proposal.move(coefficients)
    except ValuationError:
        return None
    params = step.params
    if proposal.optimizer is not None:
        params = proposal.optimizer.lead(updates.global_params.cpu(), params)
    # `named_buffers` also has what is not averaged, such as counters and masks.
    buffers = {**updates.named_buffers, **updates.split_buffers(step.buffers)}
    loss = validation.loss(params, buffers)
    if not math.isfinite(loss):
        return None
    return _Candidate(loss, step)


def _reweighted(validation: Validation, proposal: Proposal, steps: int) -> Tensor | None:
    """Return the coefficients ``[m]`` of the step by other weights; ``None`` if there is none.

    The weights are those that influence descent leads to (see :class:`LossBound`).
    """
    updates = proposal.updates
    weights = proposal.weights
    if not steps or updates.unseen is not None:
        return None
    total = float(weights.sum())
    if not total > 0 or bool((weights < 0).any()):
        return None
    # The descent multiplies weights, so that a weight of 0 would stay 0, although that client may
    # be the only one that helps. The shares of the examples give each client a weight.
    examples = updates.num_examples.to(weights)
    shares = weights / total  # [m], sum to 1.
    shares_of_examples = examples / examples.sum()  # [m]
    start = (shares + shares_of_examples) / 2
    start = start.where(_move_the_model(updates).to(start.device), 0.0)
    if not bool(start.any()):
        return None
    try:
        descent = descend_round(updates, validation, start, steps=steps)
    except ValuationError:  # No weights lead to a finite loss.
        return None
    return total * descent.weights.to(weights) * updates.shortening


def _move_the_model(updates: RoundUpdates) -> Tensor:
    """Return which updates are no shorter than the least share of the usual length: ``[m]`` bool.

    An update of 0 never is. Lengths are those that the stages have left.
    """
    lengths = updates.squared_norms.cpu().sqrt() * updates.shortening  # [m]
    return (lengths > 0) & (lengths >= _LEAST_SHARE * usual_length(lengths))
