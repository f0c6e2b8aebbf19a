"""A validation set cut into blocks of examples, each as good as the others."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from torch import Tensor

from fedif_flower.tasks.batches import join, num_rows, take_of_all
from fedif_flower.valuation.validation import Validation

BLOCKS = 20
MIN_EXAMPLES = 20  # Fewer say nothing about how much depends on the examples.
_SEED = 0x5EED

logger = logging.getLogger(__name__)


def block_validations(validation: Validation, blocks: int = BLOCKS) -> list[Validation]:
    r"""Return the same validation on each of b blocks of its examples, drawn at random.

    .. math:: \ell(w, D') = \sum_{k=1}^b \frac{|D'_k|}{|D'|} \ell(w, D'_k)

    with :math:`D'_k` the examples of block k, and sums of class weights in place of counts where
    the loss has some. Blocks' sizes differ by one example at most; the same examples are always cut
    alike. All parts use the one copy of the model. Classes are not spread evenly on purpose: the
    held-out set is drawn without regard to them, and so would another one be.

    Parameters
    ----------
    validation : Validation
        On batches whose tensors count examples.
    blocks : int
        b, >= 2; where there are fewer than two examples for each, there are fewer blocks. 0: none.

    Returns
    -------
    list of Validation
        Empty with fewer than 20 examples, and where single examples cannot be taken out.
    """
    batches = [batch.content for batch in validation.batches]
    lengths = [num_rows(batch) or 0 for batch in batches]
    total = sum(lengths)
    if not blocks:
        return []
    if total < MIN_EXAMPLES or 0 in lengths:
        words = "no intervals for another held-out set: %d examples can be taken out, not %d"
        logger.warning(words, 0 if 0 in lengths else total, MIN_EXAMPLES)
        return []
    count = min(blocks, total // 2)
    order = torch.randperm(total, generator=torch.Generator().manual_seed(_SEED))
    found = []
    for k in range(count):
        rows = order[k::count].sort().values
        taken = take_of_all(batches, rows)
        found.append(validation.part([join(taken)] if len(rows) <= max(lengths) else taken))
    if not all(block.total_weight for block in found):
        logger.warning("no intervals for another held-out set: in a block, no target counts")
        return []
    return found


def block_weights(blocks: Sequence[Validation]) -> Tensor:
    """Return each block's part of the examples' weight ``[b]``, float64; they sum to 1."""
    weights = torch.tensor([block.total_weight for block in blocks], dtype=torch.float64)
    return weights / weights.sum()
