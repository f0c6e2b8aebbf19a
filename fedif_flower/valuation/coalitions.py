"""The value of a coalition of clients: the validation score of its members' mean model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

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


def coalition_scores(
    validation: Validation,
    client_params: Tensor,
    masks: Tensor,
    global_params: Tensor,
    *,
    metric: Metric,
    client_buffers: Mapping[str, Tensor] | None = None,
    global_buffers: Mapping[str, Tensor] | None = None,
    memory_budget: int = MEMORY_BUDGET,
) -> Tensor:
    r"""Return what the unweighted mean of each coalition's models is worth.

    .. math:: u(C) = \mathrm{acc}\Bigl(\tfrac{1}{|C|} \sum_{i \in C} w_i\Bigr),
              \qquad u(\emptyset) = \mathrm{acc}(w_{t-1})

    with acc the accuracy on the validation set, or another metric of it.

    Parameters
    ----------
    validation : Validation
        The held-out set with model and loss.
    client_params : Tensor
        ``[m, d]``: the clients' models w_i.
    masks : Tensor
        ``[c, m]``, bool: who belongs to each coalition C.
    global_params : Tensor
        ``[d]``: w_{t-1}.
    metric : {"accuracy", "loss", "score"}
        The mean of what; NaN where it is not defined.
    client_buffers : mapping of str to Tensor, optional
        Floating-point buffers by name, ``[m, ...]`` each: averaged like the parameters.
    global_buffers : mapping of str to Tensor, optional
        The global model's, for the empty coalition.
    memory_budget : int
        Bytes that coalition models and the threads' replicas of the model may take at a time,
        > 0; at least one coalition model is formed.

    Returns
    -------
    Tensor
        ``[c]``, float64, on the CPU.
    """
    client_buffers, global_buffers = client_buffers or {}, global_buffers or {}
    if not len(masks):
        return torch.empty(0, dtype=torch.float64)
    affordable = memory_budget // (client_params[0].numel() * client_params.itemsize)
    # Each replica is a model of its own beside the coalition models that it evaluates.
    pool = validation.side_by_side(at_most=affordable // 2)
    threads = len(pool.judges) if pool else 1
    rows_at_once = affordable // threads - 1 if pool else affordable
    blocks = max(-(-len(masks) // max(rows_at_once, 1)), _BLOCKS * threads)

    def score(judge: Judge, block: Tensor) -> Tensor:
        means = coalition_means(client_params, block, global_params)  # [rows, d]
        buffers = _mean_buffers(client_buffers, block, global_buffers)
        models = zip(means, buffers, strict=True)
        return torch.cat([validation.mean_by(judge, *model, metric) for model in models])

    parts = masks.to(client_params.device).tensor_split(min(blocks, len(masks)))
    if pool:
        scores = pool.map(score, parts)
    else:
        with validation.alone() as judge:
            scores = [score(judge, part) for part in parts]
    return torch.cat(scores).cpu().double()


def _mean_buffers(
    client_buffers: Mapping[str, Tensor], masks: Tensor, global_buffers: Mapping[str, Tensor]
) -> Iterator[dict[str, Tensor]]:
    """Yield each coalition's buffers: integer ones stay the global model's."""
    means = {
        name: coalition_means(values.flatten(1), masks, global_buffers[name].flatten()).view(
            -1, *values.shape[1:]
        )
        for name, values in client_buffers.items()
        if values.is_floating_point()
    }
    for row in range(masks.shape[0]):
        yield {name: values[row] for name, values in means.items()}
