"""Try scores on held-out data: of all examples at once if possible, else as means over batches."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from fedif_flower.errors import ConfigError, ValuationError
from fedif_flower.tasks.dtypes import is_half
from fedif_flower.tasks.structures import describe, tensors_of
from fedif_flower.valuation.flat_model import FlatModel
from fedif_flower.valuation.gathered import (
    MOST_BYTES,
    NotGatheredError,
    OutputsAndTargets,
    gather,
    on_cpu,
)
from fedif_flower.valuation.objective import Batch, Objective, PairObjective, as_figure
from fedif_flower.valuation.trial_functions import (
    Sized,
    at_two_models,
    named,
    require_pairs,
    some_examples,
    why_no_mean,
)

logger = logging.getLogger(__name__)


def try_scores(
    model: FlatModel, objective: Objective, batches: Sequence[Batch], *, is_random: bool
) -> frozenset[str]:
    """Try the scores; return the names of those that are computed of all examples at once.

    The others are means over batches.

    Parameters
    ----------
    model : FlatModel
        The model.
    objective : Objective
        The objective that has the scores.
    batches : sequence of Batch
        All of the data.
    is_random : bool
        Whether model or loss draw at random: two passes over one batch then differ.

    Raises
    ------
    ValuationError, ConfigError
        If a score is not finite on all of the data, compares every output with every target, or
        has to be a mean over batches and is none.
    """
    names = [name for name in objective.scores if name not in objective.known_metrics]
    if not names:
        return frozenset()
    with model.evaluation_mode():
        gathered, reason = _gathered(model, objective, batches)
        for name in names:
            if gathered is not None:
                _try_at_once(objective, name, gathered)
            else:
                total = _sum_by_batch(model, objective, name, batches)
                if len(batches) > 1:
                    _require_mean(model, objective, name, batches, reason, is_random=is_random)
                _require_finite(name, total)
    return frozenset() if gathered is None else frozenset(names)


def _gathered(
    model: FlatModel, objective: Objective, batches: Sequence[Batch]
) -> tuple[OutputsAndTargets | None, str]:
    """Return outputs and targets of all examples; or ``None``, and why they are not gathered."""
    if not isinstance(objective, PairObjective):
        return None, "the loss comes by batch_loss"
    pieces: list[OutputsAndTargets] = []
    held = 0
    try:
        for batch in batches:
            pair = objective.metric_arguments(model.module, batch.content)
            pieces.append(on_cpu(pair, objective.class_mean))
            held += sum(tensor.nbytes for tensor in tensors_of(pieces[-1]))
            if held > MOST_BYTES:
                return None, f"the outputs for all examples take more than {MOST_BYTES >> 20} MiB"
        return gather(pieces), ""
    except NotGatheredError as error:
        return None, str(error)


def _try_at_once(objective: Objective, name: str, gathered: OutputsAndTargets) -> None:
    """Raise an error unless a score gives a finite number for all outputs and targets."""
    # A few examples come first: a score that compares each output with every target would take all
    # memory if it got all examples.
    require_pairs(f"the {name}", objective.scores[name], *some_examples([gathered]))
    with named(f"the {name} cannot be taken of all validation examples", gathered):
        (figure,) = objective.metric_figures(gathered, [name])
        _require_scalar(figure)
    _require_finite(name, float(figure))


def _sum_by_batch(
    model: FlatModel, objective: Objective, name: str, batches: Sequence[Batch]
) -> float:
    """Return a score's sum over the batches, or raise an error if it gives no number for one."""
    total = 0.0
    for number, batch in enumerate(batches, 1):
        with named(f"the {name} cannot be taken of validation batch {number}", batch.content):
            pair = objective.metric_arguments(model.module, batch.content)
            (figure,) = objective.metric_figures(pair, [name])
            _require_scalar(figure)
        total += float(figure) * batch.size
    return total


def _require_scalar(figure: Tensor) -> None:
    """Raise ValueError, for :func:`named` to put into a sentence, if a score is no number."""
    if figure.dim():
        raise ValueError(f"it is {describe(figure)}; expected a number")


def _require_finite(name: str, figure: float) -> None:
    """Raise ValuationError if a score of all examples is not finite."""
    if not math.isfinite(figure):
        raise ValuationError(
            f"the {name} of all validation examples is {figure:g} at the first model; expected a "
            "finite number, such as 0 where nothing is predicted"
        )


def _require_mean(
    model: FlatModel,
    objective: Objective,
    name: str,
    batches: Sequence[Batch],
    reason: str,
    *,
    is_random: bool,
) -> None:
    """Raise ConfigError if a score of some examples is not the mean of the scores of two parts.

    ``reason`` says why the score is not computed of all examples at once. If trying it fails, the
    log warns of that.
    """
    try:
        if is_random and not isinstance(objective, PairObjective):
            raise ValuationError("the model draws at random")
        examples = some_examples([batch.content for batch in batches])
        why = at_two_models(model, lambda: _why_no_mean(model, objective, name, examples))
    except ConfigError:
        raise
    except Exception as error:  # A model may take one batch size only.
        logger.warning(
            "the %s is a mean over %d batches, since %s; whether it depends on how they are cut "
            "could not be tried: %r",
            name,
            len(batches),
            reason,
            error,
        )
        return
    if why:
        raise ConfigError(
            f"the {name} {why}. It is computed batch by batch, since {reason}: so it has to be a "
            "mean over the examples, or all validation examples have to be in one batch"
        )


def _why_no_mean(model: FlatModel, objective: Objective, name: str, examples: Any) -> str:
    """Return what :func:`why_no_mean` says about a score on some examples."""
    score = objective.scores[name]
    if isinstance(objective, PairObjective):
        pair = objective.metric_arguments(model.module, examples)
        require_pairs(f"the {name}", score, *pair)

        def score_pair(pair: OutputsAndTargets) -> Sized:
            return Sized(_narrowed_to_single(score(*pair)), objective.known_size(pair).examples)

        return why_no_mean(score_pair, pair)

    def score_batch(batch: Any) -> Sized:
        _, size = objective.loss_and_size(model.module, batch)
        return Sized(_narrowed_to_single(score(model.module, batch)), size.examples)

    return why_no_mean(score_batch, examples)


def _narrowed_to_single(value: Any) -> Tensor:
    """Return a figure in single precision, or in half precision if it has that.

    Its dtype decides how much rounding is tolerated, and outputs seldom have more digits.
    """
    figure = as_figure(value)
    return figure if is_half(figure) else figure.float()
