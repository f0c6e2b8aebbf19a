"""Examine a held-out set before clients are judged by it: wrong labels, classes, copies."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from fedif_flower.errors import ConfigError, is_count, require
from fedif_flower.seeding import torch_generator
from fedif_flower.valuation.class_noise import (
    enough_of_each_class,
    likely_transitions,
    surest_transitions,
)
from fedif_flower.valuation.cross_fit import (
    CrossFit,
    Models,
    cross_fit,
    fit_in_time,
    untrained_models,
)
from fedif_flower.valuation.examples import count_held_out, input_digests, labelled_examples
from fedif_flower.valuation.fit_grid import Way
from fedif_flower.valuation.held_out import RARE, HeldOut
from fedif_flower.valuation.noise_profile import Profile, find_suspects, profile
from fedif_flower.valuation.subsets import count_answers
from fedif_flower.valuation.validation import Validation

LEAST_EXAMPLES = 50  # Fewer say nothing about the share of wrong labels.
_SURE_PROBABILITY = 0.9  # A model is sure of a class that it gives a larger probability.
logger = logging.getLogger(__name__)


def vet(
    validation: Validation,
    *,
    test: Validation | None = None,
    build: Callable[[int], nn.Module] | None = None,
    seed: int = 0,
    seconds: float = 60.0,
    way: Way | None = None,
) -> HeldOut:
    r"""Examine a held-out set: wrong labels, missing classes, inputs that occur twice.

    The share of wrong labels is estimated from the held-out set alone, so that no client can steer
    it. The model is trained anew on four of five folds, and predicts the fifth
    (:func:`~fedif_flower.valuation.cross_fit.cross_fit`). The estimate is the share that makes the
    labels likeliest (:func:`~fedif_flower.valuation.noise_profile.profile`). A model that cannot be
    trained in time is replaced by a logistic regression on the inputs of its last layer.

    Parameters
    ----------
    validation : Validation
        The set, with the model and its loss; both are left alone.
    test : Validation, optional
        Another split, in which the same inputs are looked for.
    build : callable, optional
        ``build(seed)`` -> an untrained model. Default: a copy of the validation's own model, whose
        layers with ``reset_parameters`` are reset, unless they are frozen.
    seed : int
        All that is drawn depends on it alone, >= 0.
    seconds : float
        How long the estimate may take, > 0. If it would take longer, fewer models are trained.
    way : Way, optional
        The way of an earlier examination, which is repeated however long it takes.

    Returns
    -------
    HeldOut
        It has no estimate of wrong labels, and says why, if there are fewer than 50 examples; if
        they do not fit into one batch (as with sequences that each batch pads to its own length);
        if the loss is not a cross-entropy of torch on integer labels ``[n]``; if there is not
        enough time; or if training fails (as with a model that returns more than logits in train
        mode, or that takes one batch size only).

    Raises
    ------
    ConfigError
        If an argument is out of its range or of a wrong type, or these examples cannot be examined
        in the given ``way``.

    References
    ----------
    Patrini et al., 2017, arXiv 1609.03683; Northcutt et al., 2021, arXiv 1911.00068.
    """
    require(isinstance(validation, Validation), "validation", validation, "a Validation")
    require(test is None or isinstance(test, Validation), "test", test, "a Validation")
    require(is_count(seed), "seed", seed, "an integer >= 0")
    require(isinstance(seconds, Real) and seconds > 0, "seconds", seconds, "a number > 0")
    began = time.perf_counter()
    time_limit = seconds
    if way is not None:
        time_limit = math.inf
    held_out = _examine(validation, test, build, seed, time_limit, way)
    if way is not None and held_out.way != way:
        words = f"way = {way}: {held_out.examples} examples cannot be examined like this"
        raise ConfigError(f"{words}: {held_out.why_none}" if held_out.why_none else words)
    return replace(held_out, seconds=round(time.perf_counter() - began, 3))


def _examine(
    validation: Validation,
    test: Validation | None,
    build: Callable[[int], nn.Module] | None,
    seed: int,
    seconds: float,
    way: Way | None,
) -> HeldOut:
    """Return the examination that :func:`vet` returns, without its duration."""
    held_out = _with_copies(validation, test)
    try:
        batch, places = _labelled(validation)
        labels = batch[-1]
        # Now without the examples of classes that weigh 0.
        held_out = replace(held_out, examples=len(labels))
        num_classes = _count_classes(validation, labels)
        held_out = _with_counts(held_out, labels, num_classes)
        _require_estimable(validation, labels)
        began = time.perf_counter()
        models = untrained_models(validation, build, seed)
        fitted, way_taken = _fit(models, batch, num_classes, seed, seconds, way)
    except _NoEstimateError as error:  # What was found until then is kept.
        return replace(held_out, why_none=str(error))
    estimate = profile(fitted.logits, labels, torch_generator("held-out-bootstrap", seed))
    held_out = _with_estimate(replace(held_out, way=way_taken), estimate, labels)
    if way_taken.model == "own":  # Otherwise there was no time to train the model even once.
        left = seconds - (time.perf_counter() - began)
        held_out = _with_estimate_by_class(held_out, fitted, models, batch, seed, left)
    return _with_suspects(held_out, estimate, labels, places)


def _with_copies(validation: Validation, test: Validation | None) -> HeldOut:
    """Return an examination with the numbers of inputs that occur twice, or in the test split."""
    inputs = input_digests(validation)
    shared = None
    if test is not None:
        test_inputs = set(input_digests(test))
        shared = sum(row in test_inputs for row in inputs)
    copies = len(inputs) - len(set(inputs))
    return HeldOut(count_held_out(validation), copies=copies, shared=shared)


class _NoEstimateError(Exception):
    """Raised if the share of wrong labels cannot be estimated; its message says why."""


def _labelled(validation: Validation) -> tuple[Any, Tensor]:
    """Return all labelled examples as one batch, and their indices in the data."""
    if "accuracy" not in validation.metrics:
        raise _NoEstimateError("targets are no classes")
    batch, places = labelled_examples(validation)
    if batch is None:
        raise _NoEstimateError(
            "its batches cannot be divided into examples that fit into one batch"
        )
    return batch, places


def _count_classes(validation: Validation, labels: Tensor) -> int:
    """Return how many classes the model has, after a check that all labels are among them."""
    num_classes = count_answers(validation)
    if not 0 <= int(labels.min()) <= int(labels.max()) < num_classes:
        raise _NoEstimateError(
            f"its labels are not among the model's classes, 0 to {num_classes - 1}"
        )
    return num_classes


def _require_estimable(validation: Validation, labels: Tensor) -> None:
    """Raise _NoEstimateError for a loss that cannot be corrected, or too few examples."""
    if validation.judge.objective.class_mean is None:
        raise _NoEstimateError("the loss is no cross-entropy of torch")
    if len(labels) < LEAST_EXAMPLES:
        raise _NoEstimateError(
            f"{len(labels)} examples are too few; at least {LEAST_EXAMPLES} are needed"
        )


def _fit(
    models: Models, batch: Any, num_classes: int, seed: int, seconds: float, way: Way | None
) -> tuple[CrossFit, Way]:
    """Return what cross-fitted models predict, and how they were trained."""
    try:
        fit = fit_in_time(models, batch, num_classes, seed, seconds, way)
    except Exception as error:  # The user's model was tried in eval mode only, and may raise here.
        raise _NoEstimateError(_not_trained(error)) from error
    if fit is None:
        if way is None:
            raise _NoEstimateError(f"it would take more than {seconds:g} s")
        raise _NoEstimateError("it cannot be examined in the way that is recorded")
    fitted, way_taken = fit
    if not bool(fitted.logits.isfinite().all()):
        raise _NoEstimateError("models trained on it give no finite numbers")
    return fitted, way_taken


def _with_counts(held_out: HeldOut, labels: Tensor, num_classes: int) -> HeldOut:
    """Return the examination with the classes that have no label, or only a few."""
    counts = labels.bincount(minlength=num_classes).tolist()
    return replace(
        held_out,
        missing=tuple(label for label, count in enumerate(counts) if not count),
        rare={label: count for label, count in enumerate(counts) if 0 < count < RARE},
    )


def _with_estimate(held_out: HeldOut, estimate: Profile, labels: Tensor) -> HeldOut:
    """Return the examination with the share of wrong labels and the models' accuracy."""
    right = estimate.probabilities.argmax(dim=1) == labels.cpu()
    return replace(
        held_out,
        noise=estimate.noise,
        low=estimate.low,
        high=estimate.high,
        lower_quartile=estimate.lower_quartile,
        accuracy=float(right.double().mean()),
    )


def _with_estimate_by_class(
    held_out: HeldOut,
    fitted: CrossFit,
    models: Models,
    batch: Any,
    seed: int,
    seconds: float,
) -> HeldOut:
    """Return the examination with the chances with which labels of each class became others.

    It is returned as it is if some class has too few labels, if training the same grid once more
    takes more than ``seconds``, or if training fails.
    """
    *_, labels = batch
    labels = labels.cpu()
    logits = fitted.logits.cpu()
    num_classes = logits.shape[2]
    if seconds <= 0 or not enough_of_each_class(labels, num_classes):
        return held_out
    first = surest_transitions(logits, labels)
    try:
        again = cross_fit(
            models,
            batch,
            num_classes,
            seed=seed,
            seconds=seconds,
            transitions=first,
            size=fitted.grid.size,
        )
    except Exception as error:  # The user's model may raise anything.
        logger.warning("no chances by class: %s", _not_trained(error))
        return held_out
    if again is None or not bool(again.logits.isfinite().all()):
        return held_out
    class_noise = likely_transitions(again.logits.cpu(), labels, first)
    rows = tuple(tuple(row) for row in class_noise.transitions.tolist())
    return replace(held_out, by_class=class_noise.share, transitions=rows)


def _with_suspects(held_out: HeldOut, estimate: Profile, labels: Tensor, places: Tensor) -> HeldOut:
    """Return the examination with the examples whose labels look wrong.

    There are at most as many as the upper end of the estimate allows, or as many as may be confused
    by class, if that is more. There are none if neither the loss is corrected nor labels may be
    confused.
    """
    most_wrong = held_out.confused  # As a share of the labels.
    if held_out.correction:
        most_wrong = max(most_wrong, estimate.high)
    most = math.ceil(most_wrong * len(labels))
    suspects = []
    for suspect in find_suspects(estimate.probabilities, labels.cpu(), most):
        # The examples that do not count were left out: it is named by its index among all.
        index = int(places[suspect.index])
        suspects.append(replace(suspect, index=index))
    return replace(held_out, suspects=tuple(suspects))


def _not_trained(error: Exception) -> str:
    """Return that training failed, with its error on one line, as the reason for no estimate."""
    return f"the model cannot be trained on it: {' '.join(repr(error).split()):.200}"


def contradicted_share(
    validation: Validation, params: Tensor, buffers: Mapping[str, Tensor]
) -> float | None:
    r"""Return the share of labels that a model contradicts: it predicts another with p > 0.9.

    Parameters
    ----------
    validation : Validation
        A held-out set with integer labels ``[n]``.
    params : Tensor
        ``[d]``: the model's parameters.
    buffers : mapping of str to Tensor
        Buffers and frozen parameters by name.

    Returns
    -------
    float, optional
        In [0, 1]; ``None`` if an output is not finite.
    """
    objective = validation.judge.objective
    contradicted = torch.zeros((), device=validation.device)
    examples = torch.zeros((), device=validation.device)  # How many count.
    finite = torch.ones((), dtype=torch.bool, device=validation.device)
    with validation.alone() as judge:
        judge.model.load(params, buffers)
        with judge.model.evaluation_mode():
            for batch in validation.batches:
                *inputs, labels = batch.content
                outputs = judge.model.module(*inputs).float()
                finite &= outputs.isfinite().all()
                probability, answer = outputs.softmax(dim=1).max(dim=1)
                is_other = (probability > _SURE_PROBABILITY) & (answer != labels)
                counts = objective.counts(labels)
                contradicted += (is_other & counts).sum()
                examples += counts.sum()
    if not bool(finite):
        return None
    return float(contradicted) / float(examples)
