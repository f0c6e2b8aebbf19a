"""The new global model, computed from a round's updates and weights."""

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
    """Return ``global + sum_i weights_i update_i``, clamped to the range of all models' values.

    Weights that sum to more than 1 make a longer step. With them, a variance of batch norm could
    fall below 0 without the clamp. Parameters and result are as in :func:`combine`.
    """
    combined = combine(global_values, client_updates, weights)
    return hold_within(combined, global_values, client_updates)


def hold_within(combined: Tensor, global_values: Tensor, client_updates: Tensor) -> Tensor:
    """Return ``combined``, clamped to the range of the server's and the clients' values.

    Parameters
    ----------
    combined : Tensor
        ``[b]``: the new values.
    global_values : Tensor
        ``[b]``: the values that the server sent.
    client_updates : Tensor
        ``[m, b]``: the clients' values minus the server's.
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
        ``[m]``: what the updates of parameters, and the updates of buffers, are multiplied by.

    Raises
    ------
    ValuationError
        If the new model is not finite.
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
    r"""Return ``combined``, or a single client's model bit for bit, if the rule chose one client.

    A rule such as Krum gives one client the coefficient 1 and all others 0. The new model should
    then be that client's, but in floating point :math:`w_0 + (w_i - w_0)` is not exactly
    :math:`w_i`. Values whose update was bounded, shortened or discounted after it was sent are kept
    as they were combined.

    Parameters
    ----------
    combined : Tensor
        ``[d]``, on the CPU: the model before, plus the sum of the updates times coefficients.
    before : Tensor
        ``[d]``: the model that the clients received.
    updates : Tensor
        ``[m, d]``: the clients' updates, as they are used.
    sent : Tensor
        ``[m, d]``, on the CPU: the models that the clients sent.
    coefficients : Tensor
        ``[m]``: the coefficients of the updates.
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

    If every weight is 0, the maximum is over all clients. No counter falls below its value before
    the round, as it otherwise could through a late reply, which has counted on from an older model.

    Parameters
    ----------
    before : mapping of str to Tensor
        The model's counters before the round, by name.
    received : sequence of mapping
        Each client's counters, by name.
    weights : Tensor
        ``[m]``.
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
        # In NumPy, since torch has no maximum of uint16, uint32 and uint64.
        values = np.maximum.reduce(counted)
        largest[name] = torch.from_numpy(np.asarray(values))
    return largest
