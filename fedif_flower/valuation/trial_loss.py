"""Try a model and its loss on held-out data: whether the loss is pure, a mean, and not constant."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedif_flower.errors import ConfigError, ValuationError
from fedif_flower.tasks.modules import seed_all
from fedif_flower.tasks.rows import class_labels, count_rows, take_rows
from fedif_flower.tasks.structures import describe
from fedif_flower.valuation.class_mean import takes_log_probabilities
from fedif_flower.valuation.flat_model import FlatModel
from fedif_flower.valuation.objective import Batch, Objective, PairObjective
from fedif_flower.valuation.trial_functions import (
    Divided,
    Sized,
    at_two_models,
    divide,
    require_pairs,
    some_examples,
    why_no_mean,
    with_noise,
)

logger = logging.getLogger(__name__)
_SEED = 0
_ROUNDINGS = 1000  # Tolerance in roundings (eps) of the loss.
_OF_PROBABILITY = 1e-3  # How far rounding may take the sum of probabilities, and log(1), away.
_FOR_ONE_OUTPUT = (
    "nn.BCEWithLogitsLoss() for the logit of a yes or no, nn.BCELoss() for its probability, "
    "nn.MSELoss() for a quantity"
)


def try_outputs(model: nn.Module, objective: Objective, batch: Any) -> None:
    """Try whether the model gives what the loss takes, if it is one of torch's whose form is known.

    Raises
    ------
    ConfigError
        If cross-entropy gets a single output, or a loss of log-probabilities gets something else.
        Cross-entropy of probabilities is warned of.
    """
    of_logarithms = takes_log_probabilities(objective.loss_fn)
    if objective.class_mean is None and not of_logarithms:
        return
    with torch.no_grad():
        outputs, _ = objective.metric_arguments(model, batch)
    if not isinstance(outputs, Tensor):
        return
    if objective.class_mean is not None:
        _require_classes(outputs)
    if of_logarithms:
        _require_log_probabilities(outputs, objective)
    else:
        _warn_of_probabilities(outputs, objective)


def _require_classes(outputs: Tensor) -> None:
    """Raise ConfigError if a model has a single output, of which cross-entropy is always 0."""
    if outputs.dim() == 1 or outputs.shape[1:2] == (1,):
        raise ConfigError(
            f"the model gives {describe(outputs)}, one number for each example, of which "
            f"cross-entropy, the default loss, says nothing; allowed as loss_fn (a Task's loss): "
            f"{_FOR_ONE_OUTPUT}; or a model with an output for each class"
        )


def _require_log_probabilities(outputs: Tensor, objective: Objective) -> None:
    """Raise ConfigError if outputs are no log-probabilities, which the loss takes.

    Torch's negative log-likelihood does not normalise. Of logits it has no lower bound: whatever
    makes them longer lowers it, and nothing else would show that.
    """
    highest = float(outputs.max())
    if highest > _OF_PROBABILITY:
        raise ConfigError(
            f"the model gives outputs up to {highest:.3g}, where {objective.call} takes "
            "log-probabilities, which are <= 0; allowed: a model that ends with "
            "nn.LogSoftmax(dim=1), or nn.CrossEntropyLoss() for logits"
        )


def _warn_of_probabilities(outputs: Tensor, objective: Objective) -> None:
    """Warn if outputs ``[n, C, ...]`` are probabilities instead of logits, for cross-entropy.

    Cross-entropy takes the softmax of them once more. A model that is sure and right then still has
    a loss of log(1 + (C - 1) / e) for C classes, and its gradient hardly tells updates apart.
    """
    sums = outputs.sum(dim=1)
    are_probabilities = bool((outputs >= 0).all()) and torch.allclose(
        sums, torch.ones_like(sums), atol=_OF_PROBABILITY
    )
    if are_probabilities:
        logger.warning(
            "the model gives probabilities, of which %s takes the softmax once more: it can say "
            "little then; leave out the model's own softmax",
            objective.call,
        )


def settle_evaluation_mode(model: FlatModel, objective: Objective, batch: Any) -> None:
    """Let a model whose loss fails in inference mode be evaluated in another one.

    If the loss fails there for another reason, it fails in the other mode as well.
    """
    try:
        with model.evaluation_mode():
            objective.loss(model.module, batch)
    except Exception:  # Whatever a user's model raises.
        model.allow_own_gradients()


def require_pure(
    model: FlatModel, objective: Objective, batch: Any, before: Mapping[str, Tensor]
) -> None:
    """Raise ValuationError if the result of a pass depends on the passes before it.

    Parameters
    ----------
    model : FlatModel
        The model, in eval mode. At least one pass over ``batch`` was made already.
    objective : Objective
        The loss.
    batch : any
        Some of the data.
    before : mapping of str to Tensor
        Copies of the model's buffers from before the first pass.
    """
    module = model.module
    in_state = module.state_dict().keys()
    names = _changed(module, {name: before[name] for name in before if name in in_state})
    if names:
        raise ValuationError(f"the model changes {names} in eval mode, {_ALLOWED}")
    # Buffers that are no part of the state may be filled once, as a table that grows with the
    # longest input is. A second pass must not change them any more.
    filled = buffers_of(module)
    first = seeded_loss(model, objective, batch)
    names = _changed(module, filled)
    if names:
        raise ValuationError(f"the model changes {names} in eval mode, {_ALLOWED}")
    second = seeded_loss(model, objective, batch)
    apart = float((first - second).abs())
    if apart > _ROUNDINGS * torch.finfo(first.dtype).eps * float(first.abs()):
        raise ValuationError(
            f"{objective.call} gives {float(first):.6g} and then {float(second):.6g} for the same "
            f"model and batch, {_ALLOWED}. What is drawn from torch's, NumPy's and Python's own "
            "generators is seeded here; from others it is not"
        )


_ALLOWED = (
    "so that a loss depends on what was looked at before; allowed: a model and a loss that in "
    "eval mode remember nothing from one batch to the next"
)


def buffers_of(module: nn.Module) -> dict[str, Tensor]:
    """Return copies of a module's buffers by name."""
    return {name: buffer.detach().clone() for name, buffer in module.named_buffers()}


def _changed(module: nn.Module, before: Mapping[str, Tensor]) -> str:
    """Return, in words, the first few names of buffers that no longer have their old values."""
    now = dict(module.named_buffers())
    names = [name for name, old in before.items() if not _is_same(now.get(name), old)]
    return ", ".join(map(repr, names[:3]))


def _is_same(now: Tensor | None, before: Tensor) -> bool:
    """Tell whether a buffer still exists and has its old values, which may be NaN."""
    if now is None or now.shape != before.shape:
        return False
    return bool(((now == before) | (now.isnan() & before.isnan())).all())


@torch.no_grad()
def seeded_loss(model: FlatModel, objective: Objective, batch: Any) -> Tensor:
    """Return the loss of a batch, computed with the same random draws each time."""
    seed_all(_SEED, model.params.device)
    return objective.loss(model.module, batch).detach()


def require_slope(model: FlatModel, objective: Objective, batches: Sequence[Batch]) -> None:
    """Raise ConfigError if the loss cannot tell the given model from any other.

    That is so if its gradient is exactly 0 on all batches, or if its value is the same at very
    different parameters.
    """
    counted = [batch.content for batch in batches if batch.weight]
    for_one_output = f"{_FOR_ONE_OUTPUT}, where there is a single output"
    if not any(has_slope(gradients(model, objective, content)) for content in counted):
        raise ConfigError(
            f"the gradient of {objective.call} is exactly 0 on all validation examples at the "
            "first model: no update could be told from another; allowed: a loss that changes with "
            f"the parameters ({for_one_output})"
        )
    if not any(_can_differ(model, objective, content) for content in counted):
        raise ConfigError(
            f"{objective.call} is the same at very different parameters on all validation "
            "examples: no model could be told from another; allowed: a loss that changes with the "
            f"parameters ({for_one_output})"
        )


def gradients(model: FlatModel, objective: Objective, batch: Any) -> Sequence[Tensor | None]:
    """Return the loss's gradient for each parameter, ``None`` where it does not depend on it.

    The result is empty if the loss depends on no parameter.

    Raises
    ------
    ValuationError
        If the loss is no floating-point scalar, or gradients are switched off by inference mode.
    """
    with torch.enable_grad():
        loss = objective.loss(model.module, batch)
        if not isinstance(loss, Tensor) or loss.dim() or not loss.is_floating_point():
            raise ValuationError(
                f"{objective.call} gives {describe(loss)}; expected a scalar tensor, "
                "the mean loss over the batch"
            )
        if torch.is_inference_mode_enabled():
            raise ValuationError(
                "under torch.inference_mode() no gradient can be taken; allowed: torch.no_grad(), "
                "or neither"
            )
        if not loss.requires_grad:
            return ()
        return torch.autograd.grad(loss, list(model.parameters), allow_unused=True)


def has_slope(by_parameter: Iterable[Tensor | None]) -> bool:
    """Tell whether any parameter's gradient is not exactly 0; NaN counts as not 0."""
    return any(gradient is not None and bool(gradient.any()) for gradient in by_parameter)


def _can_differ(model: FlatModel, objective: Objective, batch: Any) -> bool:
    """Tell whether the loss differs at parameters of zeros, or at parameters with much noise."""
    start = model.params.clone()
    at_start = seeded_loss(model, objective, batch)
    model.load(torch.zeros_like(start), {})
    try:
        if _differs(model, objective, batch, at_start):
            return True
    finally:
        model.load(start, {})
    with with_noise(model):
        return _differs(model, objective, batch, at_start)


def _differs(model: FlatModel, objective: Objective, batch: Any, at_start: Tensor) -> bool:
    """Tell whether the loss differs from the one at the start, or fails."""
    try:
        return bool(seeded_loss(model, objective, batch) != at_start)
    except Exception:  # The loss may refuse the outputs of such a model: so it tells it apart.
        return True


def require_mean(model: FlatModel, objective: Objective, batches: Sequence[Any]) -> None:
    """Raise ConfigError if a loss of some examples is not the mean of the losses of two parts.

    It is tried on the outputs of two models for examples from all over the data. Nothing is tried
    if it is known how the loss takes its mean: ``batch_loss`` returns its sizes, and torch's
    classification losses have known weights. If batches, outputs or targets cannot be divided, the
    loss is taken for a mean; if trying it fails, the log warns of that.
    """
    if not isinstance(objective, PairObjective) or objective.class_mean is not None:
        return
    loss_fn = objective.loss_fn

    def loss(pair: tuple[Any, Any]) -> Sized:
        return Sized(loss_fn(*pair), count_rows(pair))

    def attempt() -> str:
        arguments = objective.metric_arguments(model.module, examples)
        require_pairs("loss_fn", loss_fn, *arguments)
        return why_no_mean(loss, _sorted_by_label(arguments))

    try:
        examples = some_examples(batches)
        with model.evaluation_mode():
            why = at_two_models(model, attempt)
    except ConfigError:
        raise
    except Exception as error:
        _say_untried("loss_fn", batches, error)
        return
    if why:
        raise ConfigError(
            f"loss_fn {why}. Allowed: a mean over the examples; torch's cross_entropy, "
            "nll_loss, CrossEntropyLoss or NLLLoss (or a partial of one) for class weights and "
            "targets to ignore; else batch_loss(model, batch) -> (loss, what it divides by)"
        )


def try_company(model: FlatModel, objective: Objective, batches: Sequence[Batch]) -> None:
    """Warn if the model's output for an example depends on the other examples in its batch.

    That is so with a batch norm without running statistics. The loss of all examples is then not
    the mean of the losses of two parts, although the loss itself is a mean, as :func:`require_mean`
    has made sure. It is tried at two models, with parts that are unlike each other. Callers do not
    try a model that draws at random.
    """
    if not isinstance(objective, PairObjective):
        return

    def attempt() -> str:
        divided = divide(partial(_sized_loss, model, objective), examples)
        return str(divided) if divided is not None and divided.is_far else ""

    try:
        examples = _unlike_examples(batches)
        with model.evaluation_mode():
            why = at_two_models(model, attempt)
    except Exception:  # A model may take one batch size only; the batches were tried before.
        return
    if why:
        logger.warning(
            "the model's output for an example depends on the others in its batch, as with a batch "
            "norm without running statistics: %s %s",
            objective.call,
            why,
        )


def try_batch_loss(model: FlatModel, objective: Objective, batches: Sequence[Batch]) -> None:
    """Raise ConfigError if ``batch_loss`` gives the sum over a batch, or one size for all batches.

    A loss that is neither sum nor mean, such as one of pairs within a batch, is warned of. So is
    one size for all if there is a single batch, since the size cancels out there. The loss is tried
    as :func:`require_mean` tries a ``loss_fn``. Callers do not try a model that draws at random.
    """
    if isinstance(objective, PairObjective):
        return

    is_sum = False

    def attempt() -> str:
        nonlocal is_sum
        divided = divide(partial(_sized_loss, model, objective), examples)
        if divided is None:
            return ""
        if len(batches) > 1:
            _require_own_sizes(divided)
        if divided.is_mean:
            return ""
        is_sum = divided.is_sum
        sizes = [sized.size for sized in (divided.whole, divided.first, divided.second)]
        return f"{divided} (it returns {_and_last(sizes)} as what they divide by)"

    try:
        examples = _unlike_examples(batches)
        with model.evaluation_mode():
            why = at_two_models(model, attempt)
    except ConfigError:
        raise
    except Exception as error:
        _say_untried("batch_loss", batches, error)
        return
    if is_sum:
        raise ConfigError(
            f"batch_loss {why}. It is their sum: allowed: (mean loss, what it divides by)"
        )
    if why:
        logger.warning("batch_loss %s", why)


def _require_own_sizes(divided: Divided) -> None:
    """Raise ConfigError if a loss returns the same size for some examples and for parts of them.

    ``len(batch)`` of a dictionary does: it is the number of keys, and all batches would count
    alike, however many examples they have.
    """
    size = divided.whole.size
    if not size or size != divided.first.size or size != divided.second.size:
        return
    counts = (sum(divided.counts), *divided.counts)
    raise ConfigError(
        f"batch_loss returns {size:g} for {_and_last(counts)} examples; allowed: what the mean "
        'divides by, such as len(batch["label"])'
    )


def _and_last(numbers: Sequence[float]) -> str:
    """Return numbers as a list in words, such as ``64, 21 and 43``."""
    *others, last = [f"{number:g}" for number in numbers]
    return f"{', '.join(others)} and {last}"


def _sized_loss(model: FlatModel, objective: Objective, batch: Any) -> Sized:
    """Return a batch's mean loss with what this mean divides by."""
    figure, size = objective.loss_and_size(model.module, batch)
    return Sized(figure, size.weight)


def _unlike_examples(batches: Sequence[Batch]) -> Any:
    """Return some examples of batches that count, sorted so that the first are unlike the last."""
    return _sorted_by_label(some_examples([batch.content for batch in batches if batch.weight]))


def _sorted_by_label(examples: Any) -> Any:
    """Return examples in the order of their labels, if they have some.

    Two parts are then unlike each other, so that a loss that is no mean shows itself.
    """
    labels = class_labels(examples)
    if labels is None:
        return examples
    return take_rows(examples, labels.argsort(stable=True))


def _say_untried(name: str, batches: Sequence[Any], error: Exception) -> None:
    """Warn that a loss could not be tried, which matters only if there are several batches.

    One reason is a model that takes one batch size only.
    """
    if len(batches) > 1:
        logger.warning(
            "%s is taken for a mean over the examples of a batch; whether it is one could not be "
            "tried: %r",
            name,
            error,
        )
