"""The game of a round: what the mean model of some of its clients is worth."""

from __future__ import annotations

import torch
from torch import Tensor

from fedif_flower.round import RoundUpdates
from fedif_flower.valuation.objective import Metric
from fedif_flower.valuation.parallel import Judge
from fedif_flower.valuation.validation import Validation

# Coalition models formed by one matrix product take no more than this.
MEMORY_BUDGET = 256 * 2**20

# Blocks of coalitions per thread: with fewer, threads would wait longer for the last one.
_BLOCKS = 16


def coalition_means(client_values: Tensor, masks: Tensor, global_values: Tensor) -> Tensor:
    """Return the unweighted mean of each coalition's members.

    Parameters
    ----------
    client_values : Tensor
        ``[m, d]``.
    masks : Tensor
        ``[c, m]``, bool.
    global_values : Tensor
        ``[d]``: what the empty coalition has.

    Returns
    -------
    Tensor
        ``[c, d]``.
    """
    members = masks.to(client_values)  # [c, m]
    size = members.sum(dim=1, keepdim=True)  # [c, 1]
    means = (members / size.clamp_min(1)) @ client_values  # [c, d]
    means[size[:, 0] == 0] = global_values
    return means


class RoundGame:
    r"""What the unweighted mean of each coalition's models is worth.

    .. math:: u(C) = \mathrm{acc}\Bigl(\tfrac{1}{|C|} \sum_{i \in C} w_i\Bigr),
              \qquad u(\emptyset) = \mathrm{acc}(w_{t-1})

    with acc the accuracy on the validation set, another metric of it, or its negative loss.
    Floating-point buffers are averaged like the parameters.

    Parameters
    ----------
    validation : Validation
        The held-out set with model and loss.
    updates : RoundUpdates
        The round.
    metric : {"accuracy", "loss", "score"}
        The mean of what; NaN where it is not defined.
    memory_budget : int
        Bytes that coalition models and the threads' replicas of the model may take at a time,
        > 0; at least one coalition model is formed.

    Attributes
    ----------
    largest : float
        The size of the largest worth so far.
    """

    def __init__(
        self,
        validation: Validation,
        updates: RoundUpdates,
        metric: Metric,
        memory_budget: int = MEMORY_BUDGET,
    ) -> None:
        self._validation, self._updates, self._metric = validation, updates, metric
        self._params, self._buffers = updates.client_params(), updates.named_client_buffers()
        self._affordable = memory_budget // (self._params[0].numel() * self._params.itemsize)
        self.largest = 0.0

    def __call__(self, masks: Tensor) -> Tensor:
        """Return the worths ``[c]``, float64, on the CPU, of coalitions ``[c, m]``, bool."""
        # Each replica is a model of its own beside the coalition models that it evaluates.
        pool = self._validation.side_by_side(at_most=self._affordable // 2)
        threads = len(pool.judges) if pool else 1
        rows_at_once = self._affordable // threads - 1 if pool else self._affordable
        blocks = max(-(-len(masks) // max(rows_at_once, 1)), _BLOCKS * threads)
        parts = masks.to(self._params.device).tensor_split(min(blocks, len(masks)))
        if pool:
            found = pool.map(self._score, parts)
        else:
            with self._validation.alone() as judge:
                found = [self._score(judge, part) for part in parts]
        scores = torch.cat(found).cpu().double()
        self.largest = max(self.largest, float(scores.abs().max()))
        return -scores if self._metric == "loss" else scores

    def _score(self, judge: Judge, masks: Tensor) -> Tensor:
        """Return the metric of some coalitions ``[rows, m]``, ``[rows]``."""
        before = self._updates.named_buffers
        params = coalition_means(self._params, masks, self._updates.global_params)  # [rows, d]
        buffers = {
            name: coalition_means(own.flatten(1), masks, before[name].flatten()).view(
                -1, *own.shape[1:]
            )
            for name, own in self._buffers.items()
        }
        found = [
            self._validation.mean_by(
                judge, mean, {name: own[row] for name, own in buffers.items()}, self._metric
            )
            for row, mean in enumerate(params)
        ]
        return torch.cat(found)
