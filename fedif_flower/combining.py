"""The new model: what a round's updates and their weights are combined to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedif_flower.arithmetic import all_finite
from fedif_flower.errors import ValuationError
from fedif_flower.round import RoundUpdates


def combine(global_values: Tensor, client_updates: Tensor, weights: Tensor) -> Tensor:
    """Return ``global + sum_i weights_i update_i`` in one pass over the clients.

    Parameters
    ----------
    global_values : Tensor
        ``[d]``.
    client_updates : Tensor
        ``[m, d]``.
    weights : Tensor
        ``[m]``.

    Returns
    -------
    Tensor
        ``[d]``, a new tensor.
    """
    return torch.addmv(global_values, client_updates.T, weights.to(client_updates))


def combine_buffers(global_values: Tensor, client_updates: Tensor, weights: Tensor) -> Tensor:
    """Return ``global + sum_i weights_i update_i``, held within what was sent or received.

    Weights that sum to more than 1 carry parameters further along; a variance they would carry
    below 0. Parameters and result as in :func:`combine`.
    """
    combined = combine(global_values, client_updates, weights)
    return hold_within(combined, global_values, client_updates)


def hold_within(combined: Tensor, global_values: Tensor, client_updates: Tensor) -> Tensor:
    """Return ``combined``, held within the values that the server sent and the clients did.

    Parameters
    ----------
    combined : Tensor
        ``[b]``: the new values.
    global_values : Tensor
        ``[b]``: those that the server sent.
    client_updates : Tensor
        ``[m, b]``: the clients' differences from them.
    """
    lowest, highest = client_updates.aminmax(dim=0)  # [b]
    return combined.clamp(global_values + lowest.clamp_max(0), global_values + highest.clamp_min(0))


def move_model(
    updates: RoundUpdates, coefficients: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the new parameters ``[d]`` and buffers ``[b]``, on the CPU.

    Parameters
    ----------
    updates : RoundUpdates
        The round's replies.
    coefficients, weights : Tensor
        ``[m]``: by which the updates of parameters, and of buffers, are multiplied.

    Raises
    ------
    ValuationError
        If the model is not finite.
    """
    if updates.unseen is not None:
        params = updates.global_params.cpu() + updates.unseen.summed(coefficients.cpu())
    else:
        params = combine(updates.global_params, updates.client_updates, coefficients).cpu()
    buffers = combine_buffers(updates.global_buffers, updates.buffer_updates, weights).cpu()
    if updates.sent is not None:
        before = updates.model
        sent = updates.sent
        params = _take_over(
            params, before.params, updates.client_updates, sent.params, coefficients
        )
        buffers = _take_over(buffers, before.buffers, updates.buffer_updates, sent.buffers, weights)
    if not (all_finite(params) and all_finite(buffers)):
        raise ValuationError("the aggregated model is not finite")
    return params, buffers


def _take_over(
    combined: Tensor, before: Tensor, updates: Tensor, sent: Tensor, coefficients: Tensor
) -> Tensor:
    r"""Return the one model that counts as it was sent, bit for bit; else ``combined``.

    In floating point :math:`w_0 + (w_i - w_0)` is not :math:`w_i`. Values whose update was bounded,
    shortened or discounted are not those that were sent: they stay as they were combined.

    Parameters
    ----------
    combined : Tensor
        ``[d]``, on the CPU: the sum of the updates times their coefficients.
    before : Tensor
        ``[d]``: the model that the clients received.
    updates : Tensor
        ``[m, d]``: of the clients.
    sent : Tensor
        ``[m, d]``, on the CPU: their models.
    coefficients : Tensor
        ``[m]``: of the updates.
    """
    counting = coefficients.nonzero().flatten().tolist()
    if len(counting) != 1:
        return combined
    (chosen,) = counting
    if float(coefficients[chosen]) != 1.0:
        return combined
    model = sent[chosen]  # [d]
    update = updates[chosen].cpu()  # [d]
    is_as_sent = model - before.cpu() == update
    return torch.where(is_as_sent, model, combined)


def largest_counters(
    before: Mapping[str, Tensor], received: Sequence[Mapping[str, Tensor]], weights: Tensor
) -> dict[str, Tensor]:
    """Return each integer buffer's maximum over the clients whose weight is not 0.

    Over all of them where every weight is 0. No counter falls below the one ``before`` the round:
    a late reply has counted from an older model's.
    """
    if not received:
        return {}
    weighed = [
        counters for counters, weight in zip(received, weights.tolist(), strict=True) if weight
    ]
    if not weighed:
        weighed = list(received)
    largest = {}
    for name in received[0]:
        counted = [counters[name].numpy() for counters in weighed]
        if name in before:
            counted.append(before[name].cpu().numpy())
        # NumPy: torch knows no maximum of uint16, uint32 and uint64.
        values = np.maximum.reduce(counted)
        largest[name] = torch.from_numpy(np.asarray(values))
    return largest
