"""Cross-fitting: a model is trained on some folds of a data set, and predicts the other fold."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedif_flower.devices import torch_threads
from fedif_flower.errors import ValuationError
from fedif_flower.seeding import derive_seed, torch_generator
from fedif_flower.tasks.dtypes import widened
from fedif_flower.tasks.modules import (
    copy_module,
    evaluation_mode,
    last_layer_inputs,
    seeded_randomness,
    trainable_parameters,
)
from fedif_flower.tasks.rows import take_rows
from fedif_flower.valuation.fit_grid import FOLDS, FitGrid, Way, grids, steps_of
from fedif_flower.valuation.label_noise import corrected, log_chance_of_label
from fedif_flower.valuation.validation import Validation

LEARNING_RATE = 4e-3  # Of Adam. The task's own learning rate is for its clients' optimizer.
_TRIED_STEPS = 8  # Steps of each fold that are timed before the training.
_TIMING_FACTOR = 4  # A single step tells how long a training takes within this factor.
_AT_ONCE = 256  # Examples in one forward pass.
# Parameters: a model with no more is trained by one thread, since several would spend their time
# waiting for each other.
_MOST_IN_ONE_THREAD = 100_000

Models = Callable[[int], nn.Module]  # Returns the untrained model of a fold, on the data's device.
logger = logging.getLogger(__name__)


class CrossFit(NamedTuple):
    """What models predict for the examples that they were not trained on.

    Attributes
    ----------
    logits : Tensor
        ``[settings, n, C]``: a setting is one correction with one number of epochs.
    grid : FitGrid
        The corrections and numbers of epochs that were trained.
    is_reduced : bool
        Whether that is less than the whole grid, which would have taken too long.
    """

    logits: Tensor
    grid: FitGrid
    is_reduced: bool


class Folds(NamedTuple):
    """Which examples the model of each fold is trained on, and which it predicts.

    All folds have the same number of columns, so that one tensor holds them all.

    Attributes
    ----------
    training : Tensor
        ``[k, t]``: t rows of the other folds; a surplus one is left out.
    tested : Tensor
        ``[k, a]``: the rows of the fold itself; a fold with a - 1 rows has its last one twice.
    """

    training: Tensor
    tested: Tensor


def draw_folds(count: int, generator: torch.Generator) -> Folds:
    """Cut ``count`` examples into folds at random, whose sizes differ by one at most."""
    order = torch.randperm(count, generator=generator)
    folds = [order[fold::FOLDS] for fold in range(FOLDS)]
    # The first fold is among the largest.
    most_tested = len(folds[0])
    fewest_trained = count - most_tested
    training = []
    tested = []
    for fold, rows in enumerate(folds):
        others = torch.cat(folds[:fold] + folds[fold + 1 :])
        training.append(others[:fewest_trained])
        repeated = rows[-1:].expand(most_tested - len(rows))
        tested.append(torch.cat([rows, repeated]))
    return Folds(torch.stack(training), torch.stack(tested))


def cross_fit(
    models: Models,
    batch: Any,
    num_classes: int,
    *,
    seed: int,
    seconds: float,
    transitions: Tensor | None = None,
    size: tuple[int, int] | None,
) -> CrossFit | None:
    r"""Train models on four of five folds by the corrected loss, and let them predict the fifth.

    Parameters
    ----------
    models : callable
        ``models(fold)`` -> the untrained model of a fold, on the data's device; it is trained in
        place.
    batch : tuple
        The model's arguments, and integer labels ``[n]`` in [0, C).
    num_classes : int
        C, the number of the model's outputs.
    seed : int
        Seeds the draw of folds, the order of examples and the randomness of training.
    seconds : float
        How long it may take, > 0. A few steps are timed first. If the whole grid would take longer,
        fewer corrections and epochs are trained. The log says beforehand how long it will take.
    transitions : Tensor, optional
        ``[C, C]``: the chances with which labels become others. The training loss is then corrected
        for them, in place of the grid's own corrections.
    size : tuple of int, optional
        The size (:attr:`~fedif_flower.valuation.fit_grid.FitGrid.size`) of the only grid that may
        be trained; ``None``: that of the most thorough grid that there is time for.

    Returns
    -------
    CrossFit, optional
        ``None`` if the smallest grid would take longer, too, or if no grid has that size.
    """
    *_, labels = batch
    folds = draw_folds(len(labels), torch_generator("held-out-folds", seed))
    choices = _choices(folds.training.shape[1], transitions, size)
    correction: float | Tensor = 0.0
    if transitions is not None:
        correction = transitions
    num_threads = torch.get_num_threads()
    if sum(parameter.numel() for parameter in models(0).parameters()) <= _MOST_IN_ONE_THREAD:
        num_threads = 1
    with torch_threads(num_threads):
        per_epoch = _seconds_per_epoch(models, batch, num_classes, folds, correction, seconds)
        for grid, is_reduced in choices:
            predicted = per_epoch * grid.epochs[-1] * len(grid.corrections)
            if predicted <= seconds:
                words = "the held-out set is examined: %s, about %.1f s"
                logger.info(words, grid.words(), predicted)
                steps = _Steps(folds, grid.epochs, torch_generator("held-out-order", seed))
                logits = _train(models, batch, num_classes, steps, grid.corrections, seed)
                return CrossFit(logits, grid, is_reduced)
    return None


class _Choice(NamedTuple):
    """A grid that may be trained; it is reduced unless it is the most thorough one."""

    grid: FitGrid
    is_reduced: bool


def _choices(
    num_training: int, transitions: Tensor | None, size: tuple[int, int] | None
) -> list[_Choice]:
    """Return the grids that may be trained, the most thorough first; see :func:`cross_fit`."""
    choices = []
    for place, whole_grid in enumerate(grids(num_training)):
        if size is not None and whole_grid.size != size:
            continue
        grid = whole_grid
        if transitions is not None:
            grid = whole_grid._replace(corrections=(transitions,))
        choices.append(_Choice(grid, is_reduced=place > 0))
    return choices


def untrained_models(
    validation: Validation, build: Callable[[int], nn.Module] | None, seed: int
) -> Models:
    """Return the function that makes the untrained model of a fold, on the validation's device.

    It calls ``build`` with a seed for the fold; without ``build`` it copies the validation's model
    and resets the layers that have ``reset_parameters``.
    """
    device = validation.device

    def model(fold: int) -> nn.Module:
        fold_seed = derive_seed("held-out-model", seed, fold)
        if build is not None:
            return build(fold_seed).to(device)
        with validation.alone() as judge:
            copied = copy_module(judge.model.module)
        with seeded_randomness(fold_seed, device):
            for module in copied.modules():
                parameters = list(module.parameters(recurse=False))
                reset = getattr(module, "reset_parameters", None)
                # A layer that is frozen stays as it is: its parameters were trained elsewhere.
                if reset is not None and all(value.requires_grad for value in parameters):
                    reset()
        return copied

    return model


def fit_in_time(
    models: Models, batch: Any, num_classes: int, seed: int, seconds: float, way: Way | None
) -> tuple[CrossFit, Way] | None:
    """Return what models trained in time predict, and how they were trained.

    A model that cannot be trained in time is replaced by a logistic regression on features: what
    the untrained model gives its last layer. The parameters are those of :func:`cross_fit`; with a
    ``way``, only this way is tried. ``None``: there is not enough time.
    """
    began = time.perf_counter()
    size = None if way is None else way.size
    if way is None or way.model == "own":
        fitted = cross_fit(models, batch, num_classes, seed=seed, seconds=seconds, size=size)
        if fitted is not None:
            return fitted, _way_of("own", fitted)
    left = seconds - (time.perf_counter() - began)
    features = features_of(models(0).eval(), batch, left)
    if features is None:
        return None
    labels = batch[-1]

    def regression(fold: int) -> nn.Module:
        with seeded_randomness(derive_seed("held-out-regression", seed, fold), labels.device):
            return nn.Linear(features.shape[1], num_classes, device=labels.device)

    left = seconds - (time.perf_counter() - began)
    fitted = cross_fit(
        regression, (features, labels), num_classes, seed=seed, seconds=left, size=size
    )
    if fitted is None:
        return None
    return fitted, _way_of("regression", fitted)


def _way_of(model: Literal["own", "regression"], fitted: CrossFit) -> Way:
    """Return the way in which models were trained."""
    trainings, epochs = fitted.grid.size
    return Way(model, trainings, epochs, fitted.is_reduced)


class _Steps:
    """The batches of a training, by epoch: each has rows ``[k, b]``, b examples for each fold.

    ``at_most`` ends the training after so many steps, to time them.
    """

    def __init__(
        self,
        folds: Folds,
        epochs: Sequence[int],
        generator: torch.Generator,
        at_most: int | None = None,
    ) -> None:
        self.folds = folds
        self.epochs = epochs
        size = folds.training.shape[1]
        self.by_epoch: list[list[Tensor]] = []
        left = math.inf if at_most is None else at_most
        for _ in range(epochs[-1]):
            orders = [torch.randperm(size, generator=generator) for _ in range(FOLDS)]
            rows = folds.training.gather(1, torch.stack(orders))
            batches = list(rows.tensor_split(steps_of(size), dim=1))
            self.by_epoch.append(batches[: int(min(left, len(batches)))])
            left -= len(self.by_epoch[-1])


def _seconds_per_epoch(
    models: Models,
    batch: Any,
    num_classes: int,
    folds: Folds,
    correction: float | Tensor,
    seconds: float,
) -> float:
    """Return how many seconds an epoch of all folds takes, as measured by a few steps of each.

    The result is infinite if two steps of one fold show that the model is much too slow for the
    smallest grid: timing must not take longer than training may.
    """
    size = folds.training.shape[1]
    per_epoch = FOLDS * steps_of(size)
    took = 0.0
    # The first step of a process takes longer, so that the second one counts.
    for _ in range(2):
        took = _seconds_of_step(models(0), batch, folds, correction)
    if took * per_epoch * grids(size)[-1].epochs[-1] > _TIMING_FACTOR * seconds:
        return math.inf
    few = _Steps(folds, (1,), torch.Generator().manual_seed(0), _TRIED_STEPS)
    began = time.perf_counter()
    _train(models, batch, num_classes, few, (correction,), 0)
    per_step = (time.perf_counter() - began) / min(FOLDS * _TRIED_STEPS, per_epoch)
    return per_step * per_epoch


def _seconds_of_step(
    model: nn.Module, batch: Any, folds: Folds, correction: float | Tensor
) -> float:
    """Return how long one step of the first fold's training takes."""
    *_, labels = batch
    few = _Steps(folds, (1,), torch.Generator().manual_seed(0), at_most=1)
    noise = _noise_of(correction, labels)
    with seeded_randomness(0, labels.device), torch.enable_grad():
        began = time.perf_counter()
        _train_epoch(model, _Adam(trainable_parameters(model)), batch, few.by_epoch[0], 0, noise)
        if labels.device.type == "cuda":
            torch.cuda.synchronize(labels.device)  # CUDA still computes when the calls return.
        return time.perf_counter() - began


def _train(
    models: Models,
    batch: Any,
    num_classes: int,
    steps: _Steps,
    corrections: Sequence[float | Tensor],
    seed: int,
) -> Tensor:
    """Train a model for each fold and correction; return all logits ``[settings, n, C]``."""
    *_, labels = batch
    settings = (len(corrections), len(steps.epochs))
    logits = torch.empty(*settings, len(labels), num_classes, device=labels.device)
    for place, correction in enumerate(corrections):
        noise = _noise_of(correction, labels)
        for fold in range(FOLDS):
            drawn = derive_seed("held-out-training", seed, place, fold)
            with seeded_randomness(drawn, labels.device), torch.enable_grad():
                rows = steps.folds.tested[fold]
                logits[place, :, rows] = _train_fold(models(fold), batch, steps, fold, noise)
    return logits.flatten(0, 1)


def _noise_of(correction: float | Tensor, labels: Tensor) -> Tensor:
    """Return a share of wrong labels, or chances ``[C, C]``, on the labels' device."""
    return torch.as_tensor(correction, dtype=torch.float32, device=labels.device)


def _train_fold(model: nn.Module, batch: Any, steps: _Steps, fold: int, noise: Tensor) -> Tensor:
    """Train one model; return its logits for its fold at the grid's epochs, [epochs, a, C]."""
    optimizer = _Adam(trainable_parameters(model))
    answers = []
    for epoch, batches in enumerate(steps.by_epoch, 1):
        _train_epoch(model, optimizer, batch, batches, fold, noise)
        if epoch in steps.epochs:
            model.eval()
            answers.append(answers_of(model, batch, steps.folds.tested[fold]))
    return torch.stack(answers)


def _train_epoch(
    model: nn.Module,
    optimizer: _Adam,
    batch: Any,
    batches: Sequence[Tensor],
    fold: int,
    noise: Tensor,
) -> None:
    """Train one model on the batches of an epoch, rows ``[k, b]`` each."""
    model.train()
    trained = trainable_parameters(model)
    for rows in batches:
        *inputs, labels = take_rows(batch, rows[fold])
        loss = _loss(model(*inputs), labels, noise)
        slopes = torch.autograd.grad(loss, trained, materialize_grads=True)
        optimizer.step(slopes)


class _Adam:
    """Adam (Kingma and Ba, 2015) with its usual settings.

    ``torch.optim`` takes a second or more to import, and nothing else in a server needs it. Running
    means are at least in float32: in float16, squares of gradients and the 1e-8 in the divisor
    would be 0.
    """

    def __init__(self, params: Sequence[Tensor]) -> None:
        self.params = [value.detach() for value in params]
        # What is updated: the parameters themselves, or float32 copies of half-precision ones.
        self.wide = [widened(value) for value in self.params]
        self.means = [torch.zeros_like(value) for value in self.wide]
        self.squares = [torch.zeros_like(value) for value in self.wide]
        self.steps = 0

    def step(self, slopes: Sequence[Tensor]) -> None:
        """Take one step by the gradients ``slopes``: the parameters change in place."""
        self.steps += 1
        # The gradients of an embedding may be sparse, which running means cannot be.
        gradients = [
            slope.detach().to_dense().to(value.dtype)
            for slope, value in zip(slopes, self.wide, strict=True)
        ]
        torch._foreach_lerp_(self.means, gradients, 1 - 0.9)
        torch._foreach_mul_(self.squares, 0.999)
        torch._foreach_addcmul_(self.squares, gradients, gradients, 1 - 0.999)
        roots = torch._foreach_sqrt(self.squares)
        torch._foreach_div_(roots, math.sqrt(1 - 0.999**self.steps))
        torch._foreach_add_(roots, 1e-8)
        rate = LEARNING_RATE / (1 - 0.9**self.steps)
        torch._foreach_addcdiv_(self.wide, self.means, roots, -rate)
        for value, wide in zip(self.params, self.wide, strict=True):
            if value is not wide:
                value.copy_(wide)


def _loss(logits: Tensor, labels: Tensor, noise: Tensor) -> Tensor:
    """Return the mean corrected loss of logits [b, C]; ``noise``: a share, or chances [C, C]."""
    if noise.dim():
        return functional.nll_loss(corrected(logits.float(), noise), labels)
    log_p = logits.float().log_softmax(dim=1).gather(1, labels[:, None])[:, 0]
    return -log_chance_of_label(log_p, noise, logits.shape[1]).mean()


class _OutOfTimeError(Exception):
    """Raised when no time is left for the next forward pass."""


def answers_of(model: nn.Module, batch: Any, rows: Tensor) -> Tensor:
    """Return a model's outputs for the examples at ``rows``: ``[len(rows), C]``, float32."""
    outputs = []
    with evaluation_mode(model)():
        for chunk in torch.split(rows, _AT_ONCE):
            *inputs, _ = take_rows(batch, chunk)
            outputs.append(model(*inputs).float())
    return torch.cat(outputs)


def features_of(model: nn.Module, batch: Any, seconds: float) -> Tensor | None:
    """Return the inputs of a model's last fully connected layer, ``[n, features]``.

    They are those of :func:`~fedif_flower.tasks.modules.last_layer_inputs`, scaled to mean 0 and
    standard deviation 1 over the examples. ``None`` if reading them takes more than ``seconds``.

    Raises
    ------
    ValuationError
        If neither the layer's inputs nor the model's outputs have a row for each example.
    """
    ends = time.perf_counter() + seconds

    def read() -> Iterator[Any]:
        for rows in torch.split(torch.arange(len(batch[-1])), _AT_ONCE):
            if time.perf_counter() > ends:
                raise _OutOfTimeError
            yield take_rows(batch, rows)

    try:
        features = last_layer_inputs(model, read())
    except _OutOfTimeError:
        return None
    if features is None:
        raise ValuationError("the model does not return one row of outputs for each example")
    features = features.to(batch[-1].device)
    deviation = features.std(dim=0)
    return (features - features.mean(dim=0)) / deviation.clamp_min(1e-6)
