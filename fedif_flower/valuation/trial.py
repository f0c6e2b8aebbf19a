"""Try a model, its loss, its scores and its data together, before any client works for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import nn

from fedif_flower.errors import ValuationError
from fedif_flower.tasks.modules import (
    fastest_memory_format,
    own_randomness,
    random_state,
    to_memory_format,
)
from fedif_flower.tasks.rows import count_rows, first_two
from fedif_flower.tasks.structures import map_tensors
from fedif_flower.valuation.flat_model import FlatModel
from fedif_flower.valuation.objective import Batch, Objective, PairObjective
from fedif_flower.valuation.trial_functions import named
from fedif_flower.valuation.trial_loss import (
    buffers_of,
    gradients,
    require_mean,
    require_pure,
    require_slope,
    settle_evaluation_mode,
    try_batch_loss,
    try_company,
    try_outputs,
)
from fedif_flower.valuation.trial_scores import try_scores


class Tried(NamedTuple):
    """What a trial found.

    Attributes
    ----------
    batches : list of Batch
        The data, in the memory format that is fastest, with the size of each batch.
    metrics : frozenset of str
        The metrics that are defined on the data.
    whole : frozenset of str
        The scores that are computed of all examples at once.
    is_random : bool
        Whether model, loss or scores draw at random, from generators that can be seeded.
    """

    batches: list[Batch]
    metrics: frozenset[str]
    whole: frozenset[str]
    is_random: bool


def try_batches(model: FlatModel, objective: Objective, batches: Iterator[Any]) -> Tried:
    """Try model, loss and scores on the data; return the batches, and what the trial found.

    The other batches are read only after the first one has shown that model, loss and data fit.

    Parameters
    ----------
    model : FlatModel
        The model; its gradients stay as they are.
    objective : Objective
        The loss, and scores if there are some.
    batches : iterator
        The data, on the model's device.

    Raises
    ------
    ValuationError, ConfigError
        If there are no examples, or model, loss, scores and data do not go together.
    """
    device = model.params.device
    first = next(batches, None)
    if first is None:
        raise ValuationError("the validation set is empty")
    objective.check(first)
    with own_randomness(device):
        objective.check_with(model.module, first)
        batch, fastest = _fit(model, objective, first)
        metrics = objective.metrics
        if "accuracy" in metrics and not _has_accuracy(model, objective, batch):
            metrics = metrics - {"accuracy"}
    # The data are read with the process's own random state: with a seeded one, two data sets that
    # are drawn at random would be the same.
    contents = [_formatted(content, fastest) for content in chain([first], batches)]
    with own_randomness(device):
        require_mean(model, objective, contents)
        before = random_state(device)
        sized_batches = _sized(model.module, objective, contents)
        is_random = random_state(device) != before
        if not is_random:  # With random draws, two passes over the same examples differ anyway.
            try_batch_loss(model, objective, sized_batches)
            try_company(model, objective, sized_batches)
        whole = try_scores(model, objective, sized_batches, is_random=is_random)
        # The scores may draw at random although model and loss do not.
        is_random = random_state(device) != before
        require_slope(model, objective, sized_batches)
    return Tried(sized_batches, metrics, whole, is_random)


def _fit(model: FlatModel, objective: Objective, first: Any) -> tuple[Any, torch.memory_format]:
    """Try model and loss on the first batch; return it in the fastest format, and this format.

    Raises
    ------
    ValuationError, ConfigError
        If they fail on it, or if the loss does not depend on a trainable parameter, or depends on
        earlier passes.
    """
    before = buffers_of(model.module)

    def attempt(memory_format: torch.memory_format) -> None:
        gradients(model, objective, _formatted(first_two(first), memory_format))

    fastest = fastest_memory_format(model.module, attempt)
    batch = _formatted(first, fastest)
    is_pair = isinstance(objective, PairObjective)
    failure = f"{objective.call} fails on validation batch 1"
    with named(failure, batch, model.module, is_pair=is_pair):
        try_outputs(model.module, objective, batch)
        by_parameter = gradients(model, objective, batch)
        if all(gradient is None for gradient in by_parameter):
            raise ValuationError(
                f"the loss of {objective.call} does not depend on a trainable parameter of this "
                "model, which is a copy of yours: nothing to train"
            )
        settle_evaluation_mode(model, objective, batch)
        require_pure(model, objective, batch, before)
    return batch, fastest


def _formatted(batch: Any, memory_format: torch.memory_format) -> Any:
    """Return a batch with all its images in a memory format."""
    return map_tensors(lambda tensor: to_memory_format(tensor, memory_format), batch)


def _has_accuracy(model: FlatModel, objective: Objective, batch: Any) -> bool:
    """Tell whether an accuracy is defined: whether outputs and targets are those of classes."""
    failure = "the accuracy cannot be taken of validation batch 1"
    with named(failure, batch), model.evaluation_mode():
        arguments = objective.metric_arguments(model.module, batch)
        (num_right,) = objective.metric_figures(arguments, ["accuracy"])
    return not bool(num_right.isnan())


@torch.no_grad()
def _sized(model: nn.Module, objective: Objective, contents: Sequence[Any]) -> list[Batch]:
    """Return the batches with their sizes, but for those in which no example counts.

    Raises
    ------
    ValuationError
        If the loss fails on a batch, or counts no target of any batch.
    """
    batches = []
    skipped = 0
    is_pair = isinstance(objective, PairObjective)
    for number, content in enumerate(contents, 1):
        failure = f"{objective.call} fails on validation batch {number}"
        with named(failure, content, model, is_pair=is_pair):
            batch = objective.batch_with_size(model, content, tried=False)
        if batch.size:
            batches.append(batch._replace(skipped=skipped))
        else:
            skipped += count_rows(content)
    if not any(batch.weight for batch in batches):
        raise ValuationError("the validation set is empty: the loss counts none of its targets")
    return batches
