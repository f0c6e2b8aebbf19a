"""SCAFFOLD [Karimireddy et al., 2020]: control variates against the drift of clients.

Paper: https://arxiv.org/abs/1910.06378
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedif_flower.local_methods.local_method import LocalMethod, LocalRound, LocalTerm

# Keys of the client's memory.
_CONTROL = "scaffold-control"  # c_i: the changes that the server is known to have taken in.
_CHANGE = "scaffold-change"  # The change that the client sent last.
_CHANGE_ROUND = "scaffold-change-round"  # The round in which it sent that change.

# A change may be this many times as long as usual. Lengths of honest clients' changes differ by
# less.
_MOST_TIMES_USUAL = 10


class Scaffold(LocalMethod):
    r"""Each step is corrected by how the client's gradients differ from all clients' mean.

    .. math::
        y \leftarrow y - \eta \, (\nabla \ell_i(y) + c - c_i), \qquad
        c_i^+ = c_i - c + \frac{w_{t-1} - y}{\eta \, W_K}

    (the paper's option II), where y are the parameters that client i trains, starting from
    :math:`w_{t-1}`, :math:`\ell_i` is its loss and :math:`\eta` the learning rate. The server's
    control variate is c and the client's is :math:`c_i`; both are 0 at first. K steps with momentum
    :math:`\beta` count for :math:`W_K = \sum_{j=1}^{K} \sum_{i=0}^{j-1} \beta^i`; without momentum
    that is K, as in the paper. The client sends :math:`\Delta c_i = c_i^+ - c_i`. The server takes
    in :math:`f_i \Delta c_i` from each client in S, the round's accepted replies, so that c is the
    mean of all N clients' control variates:

    .. math::
        c \leftarrow c + \frac{1}{N} \sum_{i \in S} f_i \, \Delta c_i,
        \qquad c_i \leftarrow c_i + f_i \, \Delta c_i

    (see :meth:`shortened` for :math:`f_i`; in the paper it is 1). The client moves its
    :math:`c_i` only when it is asked again, since it is told :math:`f_i` then. A change that the
    server did not take in, because the reply was lost or refused, is dropped on both sides.
    Otherwise c would no longer be the mean of the :math:`c_i`, and all later steps would be wrong.
    """

    sends_vector = True
    remembers = True

    def term(self, local: LocalRound) -> LocalTerm:
        """Return the term that adds :math:`c - c_i` to each step's gradient."""
        _settle(local)
        return LocalTerm(_server_control(local) - _client_control(local))

    def finish(self, local: LocalRound, term: LocalTerm, sent: Tensor) -> Tensor:
        """Return the change of the client's control variate ``[d]``, and remember it."""
        scale = local.training.learning_rate * summed_steps(term.steps, local.training.momentum)
        change = (local.received - sent) / scale - _server_control(local)  # [d]
        local.memory[_CHANGE] = change.cpu()
        local.memory[_CHANGE_ROUND] = torch.tensor(local.server_round)
        return change

    def shortened(self, lengths: Tensor, usual_length: float) -> Tensor:
        r"""Return the factors by which the server multiplies changes of control variates.

        .. math::
            f_i = \min(1, \min(2 \operatorname{median}_j \lVert \Delta c_j \rVert, 10 \ell) /
            \lVert \Delta c_i \rVert)

        where :math:`\ell` is the ``usual_length``. The factors bound the harm that a hostile client
        can do to c, which keeps every change for good. The median over a round's m clients bounds
        nothing by itself if half of them are hostile: the only client of a small round may be. The
        ``usual_length`` does: it lies within the lengths of honest clients as long as fewer than
        half of all clients of the last 20 rounds are hostile.

        Apart from these factors all clients count alike, and the weights that move the model play
        no part. With weights that change from round to round, c would be no mean of the
        :math:`c_i`.
        """
        bound = (2 * lengths.quantile(0.5)).clamp(max=_MOST_TIMES_USUAL * usual_length)
        factors: Tensor = (bound / lengths).clamp(max=1)
        return factors.nan_to_num(1.0)  # 0 / 0: a change of length 0 needs no bound.


def summed_steps(steps: int, momentum: float) -> float:
    r"""Return :math:`W_K`: how far K steps along a constant gradient go, in learning rates.

    Parameters
    ----------
    steps : int
        K >= 1.
    momentum : float
        :math:`\beta`, in [0, 1].
    """
    velocity = 0.0
    distance = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1.0
        distance += velocity
    return distance


def _settle(local: LocalRound) -> None:
    """Add the client's last change to its control variate, by the factor that the server used.

    A change that the server did not take in is dropped.
    """
    change = local.memory.pop(_CHANGE, None)
    sent_in = local.memory.pop(_CHANGE_ROUND, None)
    taken_in = local.taken_in
    if change is None or sent_in is None or taken_in is None:
        return
    if taken_in.server_round == int(sent_in):
        control = _client_control(local).cpu()  # [d]
        local.memory[_CONTROL] = control + taken_in.factor * change


def _client_control(local: LocalRound) -> Tensor:
    """Return the client's control variate ``[d]``: 0 until the server has taken in a change."""
    control = local.memory.get(_CONTROL)
    if control is None:
        return torch.zeros_like(local.received)
    return control.to(local.received)


def _server_control(local: LocalRound) -> Tensor:
    """Return the server's control variate ``[d]``."""
    assert local.vector is not None  # The server sends one to every method that sends_vector.
    return local.vector.to(local.received)
