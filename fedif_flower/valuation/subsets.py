"""Subsets of a held-out data set: drawn at random, in blocks, by class."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedif_flower.errors import ValuationError, is_count, require
from fedif_flower.tasks.rows import class_labels, count_rows, join, take_of_all
from fedif_flower.valuation.parallel import Passes

BLOCKS = 20
MIN_EXAMPLES = 20  # Fewer say nothing about how much a result depends on the examples.
_SEED = 0x5EED  # Fixed, so that the same examples are always cut into the same blocks.
AnyGenerator = torch.Generator | np.random.Generator
_Whole = TypeVar("_Whole", bound=Passes)  # In use, a Validation.

logger = logging.getLogger(__name__)


def draw_rows(labels: Tensor, count: int, generator: AnyGenerator) -> Tensor:
    r"""Draw k of n examples, each with the chance :math:`k / n`, stratified by class.

    The examples are shuffled and sorted by class. From a random place on, every :math:`n / k`-th
    example is taken (systematic sampling), so that a class of :math:`n_c` examples gives
    :math:`k n_c / n`, rounded up or down.

    Parameters
    ----------
    labels : Tensor
        ``[n]``, of any integer type.
    count : int
        k, in [1, n].
    generator : torch.Generator or numpy.random.Generator
        PyTorch's, on the CPU, takes only 32 bits of its seed, so that all draws that it can make
        can be tried. Draws that must stay secret take NumPy's.

    Returns
    -------
    Tensor
        ``[k]`` int64, ascending.

    References
    ----------
    Madow and Madow, "On the Theory of Systematic Sampling", 1944.
    """
    total = len(labels)
    if isinstance(generator, np.random.Generator):
        shuffled = torch.from_numpy(generator.permutation(total))
        start = generator.random()
    else:
        shuffled = torch.randperm(total, generator=generator)
        start = float(torch.rand((), generator=generator, dtype=torch.float64))
    by_class = shuffled[torch.argsort(labels.cpu()[shuffled], stable=True)]
    places = ((torch.arange(count, dtype=torch.float64) + start) * total / count).long()
    return by_class[places.clamp_max(total - 1)].sort().values


def draw_batches(batches: Sequence[Any], count: int, generator: AnyGenerator) -> list[Any] | None:
    """Return ``count`` examples, drawn by :func:`draw_rows`, in batches about as large as before.

    Examples from batches that cannot be joined, such as sequences that each batch pads to its own
    length, stay in separate batches.

    Returns
    -------
    list, optional
        ``None`` if there are no more than ``count`` examples, or if single examples cannot be taken
        out of a batch, since its tensors do not have one length.
    """
    total = _num_rows(batches)
    if total <= count:
        return None
    labels = _labels(batches)
    if labels is None:
        labels = torch.zeros(total)  # Without classes, examples are drawn as if of one class.
    return _take(batches, draw_rows(labels, count, generator))


def block_validations(validation: _Whole, blocks: int = BLOCKS) -> list[_Whole]:
    r"""Return the validation on each of b blocks into which its examples are cut at random.

    .. math:: \ell(w, D') = \sum_{k=1}^b \frac{|D'_k|}{|D'|} \ell(w, D'_k)

    with :math:`\ell` the mean loss, D' all examples and :math:`D'_k` those of block k. If the loss
    has class weights, their sums take the place of the counts. Blocks' sizes differ by one example
    at most, and the same examples are always cut alike. All blocks share one copy of the model.
    Blocks are not stratified by class on purpose: the held-out set was drawn without regard to
    classes, and so would another one be.

    Parameters
    ----------
    validation : Validation
        A validation from whose batches single examples can be taken out.
    blocks : int
        b >= 2. If there were fewer than two examples in a block, there are fewer blocks. 0: none.

    Returns
    -------
    list of Validation
        Empty if there are fewer than 20 examples, if single examples cannot be taken out, or if no
        target counts in one of the blocks; the log says so.

    Raises
    ------
    ConfigError
        If b is 1, from which no interval follows, or is negative.
    """
    fits = is_count(blocks) and blocks != 1
    require(fits, "blocks", blocks, "an integer >= 2, or 0 for none")
    batches = [batch.content for batch in validation.batches]
    total = _num_rows(batches)
    if not blocks:
        return []
    if total < MIN_EXAMPLES:
        why = f"there are {total} examples, and at least {MIN_EXAMPLES} are needed"
        if not total:
            why = "single examples cannot be taken out of its batches"
        logger.warning("no intervals for another held-out set: %s", why)
        return []
    count = min(blocks, total // 2)
    order = torch.randperm(total, generator=torch.Generator().manual_seed(_SEED))
    validations = []
    for first in range(count):
        rows = order[first::count].sort().values  # Blocks' sizes differ by one at most.
        validations.append(validation.with_batches(_take(batches, rows)))
    if not all(block.total_weight for block in validations):
        logger.warning("no intervals for another held-out set: in a block, no target counts")
        return []
    return validations


def block_weights(blocks: Sequence[Passes]) -> Tensor:
    """Return each block's share of the examples' weight ``[b]``, float64; they sum to 1."""
    weights = torch.tensor([block.total_weight for block in blocks], dtype=torch.float64)
    return weights / weights.sum()


def class_validations(validation: _Whole) -> list[_Whole]:
    r"""Return the validation on the examples of each class, in the order of the classes.

    .. math:: \ell(w, D') = \sum_c \frac{|D'_c|}{|D'|} \ell(w, D'_c)

    with :math:`\ell` the mean loss, D' all examples and :math:`D'_c` those of class c. If the loss
    has class weights, their sums take the place of the counts. So the gradients by class, times
    their weights, add up to the gradient on the whole. Examples whose target is ignored belong to
    no class. A class of weight 0 has no mean loss: its validation has the total weight 0, and must
    not be evaluated. All share one copy of the model.

    Parameters
    ----------
    validation : Validation
        A validation on batches ``(inputs, targets)`` with integer targets ``[n]``, in which every
        number from 0 to the highest occurs.

    Raises
    ------
    ValuationError
        If the targets are no classes, one of them is negative, or a class has no example.
    """
    batches = [batch.content for batch in validation.batches]
    present = _classes_present(validation)
    labels = _labels(batches) if _num_rows(batches) else None
    if labels is None or not present:
        raise ValuationError("the validation set has no classes to tell contributions apart by")
    if min(present) < 0:
        raise ValuationError(
            f"the validation set has the target {min(present)}; contributions by class need "
            "targets from 0 on, and only torch's cross-entropy can leave out others (ignore_index)"
        )
    missing = set(range(max(present) + 1)) - present
    if missing:
        raise ValuationError(
            f"the validation set has no example of the classes {sorted(missing)}; contributions "
            "by class need one of each"
        )
    validations = []
    weightless = []
    for label in sorted(present):
        rows = (labels == label).nonzero().flatten()
        class_validation = validation.with_batches(_take(batches, rows))
        if not class_validation.total_weight:
            weightless.append(label)
        validations.append(class_validation)
    if weightless:
        logger.info(
            "the loss gives the classes %s weight 0: no contribution is measured for them",
            weightless,
        )
    return validations


def missing_classes(validation: Passes) -> list[int]:
    """Return the classes of the model that have no example in the validation set.

    The model's classes are the columns of its outputs ``[n, classes]``. The list is empty if the
    targets are no classes.
    """
    present = _classes_present(validation)
    if not present:
        return []
    return sorted(set(range(count_answers(validation))) - present)


def count_answers(validation: Passes) -> int:
    """Return how many classes the model has; the validation must have an accuracy.

    The model is called with a whole batch, since it may take no other size.
    """
    *inputs, _ = validation.batches[0].content
    with validation.alone() as judge, judge.model.evaluation_mode():
        return int(judge.model.module(*inputs).shape[1])


def _classes_present(validation: Passes) -> set[int]:
    """Return the classes that have an example; the set is empty if targets are no classes.

    A target that the loss ignores is no class.
    """
    labels = _labels([batch.content for batch in validation.batches])
    if labels is None or "accuracy" not in validation.metrics:
        return set()
    return set(labels.tolist()) - {validation.judge.objective.ignored}


def _labels(batches: Sequence[Any]) -> Tensor | None:
    """Return the classes of all examples ``[n]``, on the CPU; ``None``: targets are no classes."""
    labels = []
    for batch in batches:
        labels_of_batch = class_labels(batch)
        if labels_of_batch is None:
            return None
        labels.append(labels_of_batch.cpu())
    return torch.cat(labels)


def _num_rows(batches: Sequence[Any]) -> int:
    """Return how many examples batches have; 0 where single ones cannot be taken out."""
    lengths = [count_rows(batch) for batch in batches]
    return 0 if 0 in lengths else sum(lengths)


def _take(batches: Sequence[Any], rows: Tensor) -> list[Any]:
    """Return the examples at ``rows`` [k], ascending, in batches about as large as these.

    Batches are smaller where examples of several batches cannot be joined.
    """
    pieces = take_of_all(batches, rows)  # What is taken of each batch.
    largest = max(count_rows(batch) for batch in batches)
    # So many pieces make up about one batch: on average a piece has k / len(batches) examples.
    at_once = max(len(batches) * largest // max(len(rows), 1), 1)
    joined: list[Any] = []
    for start in range(0, len(pieces), at_once):
        joined += _together(pieces[start : start + at_once])
    return joined


def _together(pieces: list[Any]) -> list[Any]:
    """Return pieces of batches as a single batch, or as they are if they cannot be joined."""
    try:
        return [join(pieces)]
    except ValuationError:
        return pieces
