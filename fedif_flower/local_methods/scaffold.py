"""SCAFFOLD [Karimireddy et al., 2020]: control variates against the drift of clients.

Paper: https://arxiv.org/abs/1910.06378
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedif_flower.local_methods.local_method import LocalMethod, LocalRound, LocalTerm

_CONTROL = "scaffold-control"  # c_i, as far as the server has taken it in.
_CHANGE = "scaffold-change"  # What the client has sent since.
_CHANGE_ROUND = "scaffold-change-round"  # In which round.
_MOST_TIMES_USUAL = 10  # Honest clients' changes differ in length, by less than this.


class Scaffold(LocalMethod):
    r"""Each step is corrected by how the client's gradients differ from everybody's.

    .. math::
        y \leftarrow y - \eta \, (\nabla \ell_i(y) + c - c_i), \qquad
        c_i^+ = c_i - c + \frac{w_{t-1} - y}{\eta \, W_K}

    (the paper's option II) with c the server's control variate, :math:`c_i` the client's, both 0
    at first, and :math:`W_K = \sum_{j=1}^{K} \sum_{i=0}^{j-1} \beta^i` what K steps with momentum
    :math:`\beta` count for: K without momentum, as in the paper. The client sends
    :math:`\Delta c_i = c_i^+ - c_i`. The server takes in :math:`f_i \Delta c_i`, and c is the mean
    of all N clients' control variates:

    .. math::
        c \leftarrow c + \frac{1}{N} \sum_{i \in S} f_i \, \Delta c_i,
        \qquad c_i \leftarrow c_i + f_i \, \Delta c_i

    (see :meth:`shortened` for :math:`f_i`; in the paper it is 1). The client moves its
    :math:`c_i` when it is asked again, and is told :math:`f_i` then. A change that the server has
    not taken in, from a reply that was lost or refused, is dropped on both sides: or c would be the
    mean of the :math:`c_i` no more, and steps would go astray in all later rounds.
    """

    sends_vector = True
    remembers = True

    def term(self, local: LocalRound) -> LocalTerm:
        """Return the correction :math:`c - c_i`."""
        _settle(local)
        return LocalTerm(_server_control(local) - _client_control(local))

    def finish(self, local: LocalRound, term: LocalTerm, sent: Tensor) -> Tensor:
        """Remember by how much the client's control variate is to change, and return that."""
        scale = local.training.learning_rate * summed_steps(term.steps, local.training.momentum)
        change = (local.received - sent) / scale - _server_control(local)  # [d]
        local.memory[_CHANGE] = change.cpu()
        local.memory[_CHANGE_ROUND] = torch.tensor(local.server_round)
        return change

    def shortened(self, lengths: Tensor, usual_length: float) -> Tensor:
        r"""Return the factors by which the server takes in changes of control variates.

        .. math::
            f_i = \min(1, \min(2 \operatorname{median}_j \lVert \Delta c_j \rVert, 10 \ell) /
            \lVert \Delta c_i \rVert)

        They bound what a hostile client can do to c, which forgets nothing. The median of a round's
        m clients alone is no bound where half of them are hostile, as in each round of one. So
        :math:`\ell` is the ``usual_length``: as long as fewer than half of all clients of the last
        20 rounds are hostile, it lies within the lengths of the honest ones. All clients count
        alike beside that, whatever weights move the model: by weights that change from round to
        round, c would be the mean of nothing.
        """
        bound = (2 * lengths.quantile(0.5)).clamp(max=_MOST_TIMES_USUAL * usual_length)
        factors: Tensor = (bound / lengths).clamp(max=1)
        return factors.nan_to_num(1.0)  # 0 / 0: nothing to shorten.


def summed_steps(steps: int, momentum: float) -> float:
    r"""Return :math:`W_K`: what a constant gradient moves the parameters by, in learning rates.

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
    """Move the client's control variate by its last change, as far as the server took it in."""
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
    assert local.vector is not None  # sends_vector: a reply without it is not begun
    return local.vector.to(local.received)
