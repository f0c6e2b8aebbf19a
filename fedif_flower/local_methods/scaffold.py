"""SCAFFOLD [Karimireddy et al., 2020]: control variates against the drift of clients.

Paper: https://arxiv.org/abs/1910.06378
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedif_flower.local_methods.local_method import LocalMethod, LocalRound, LocalTerm

_CONTROL = "scaffold-control"


class Scaffold(LocalMethod):
    r"""Each step is corrected by how the client's gradients differ from everybody's.

    .. math::
        y \leftarrow y - \eta \, (\nabla \ell_i(y) + c - c_i), \qquad
        c_i^+ = c_i - c + \frac{w_{t-1} - y}{\eta \, W_K}

    (the paper's option II) with c the server's control variate, :math:`c_i` the client's, both 0
    at first, and :math:`W_K = \sum_{j=1}^{K} \sum_{i=0}^{j-1} \beta^i` what K steps with momentum
    :math:`\beta` count for: K without momentum, as in the paper. The client sends
    :math:`c_i^+ - c_i`; the server's half is :meth:`moved`.
    """

    sends_vector = True
    remembers = True

    def term(self, local: LocalRound) -> LocalTerm:
        """Return the correction :math:`c - c_i`."""
        return LocalTerm(_server_control(local) - _client_control(local))

    def finish(self, local: LocalRound, term: LocalTerm, sent: Tensor) -> Tensor:
        """Keep the client's new control variate, and return by how much it changed."""
        control = _client_control(local)  # [d]
        scale = local.training.learning_rate * summed_steps(term.steps, local.training.momentum)
        change = (local.received - sent) / scale - _server_control(local)  # [d]
        local.memory[_CONTROL] = (control + change).cpu()
        return change

    def moved(self, vector: Tensor, changes: Tensor, share: float) -> Tensor:
        r"""Return the server's control variate after a round.

        .. math::
            c \leftarrow c + \frac{|S|}{N} \cdot \frac{1}{|S|} \sum_{i \in S} f_i \, \Delta c_i,
            \qquad f_i = \min(1, 2 \operatorname{median}_j
            \lVert \Delta c_j \rVert / \lVert \Delta c_i \rVert)

        With :math:`f_i = 1` this is the paper's: the mean of all N clients' control variates,
        whatever weights move the model. By weights that change from round to round, c would be the
        mean of nothing. What a hostile client can do to c is bounded by :math:`f_i`.
        """
        lengths = torch.linalg.vector_norm(changes.double(), dim=1)  # [m]
        bound = 2 * lengths.quantile(0.5)
        factors = (bound / lengths).clamp(max=1).nan_to_num(1.0)  # 0 / 0: nothing to shorten.
        weights = share * factors / len(changes)  # [m]
        control: Tensor = vector + weights.to(changes) @ changes
        return control


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


def _client_control(local: LocalRound) -> Tensor:
    """Return the client's control variate ``[d]``: 0 in its first round."""
    control = local.memory.get(_CONTROL)
    if control is None:
        return torch.zeros_like(local.received)
    return control.to(local.received)


def _server_control(local: LocalRound) -> Tensor:
    """Return the server's control variate ``[d]``."""
    assert local.vector is not None  # sends_vector: a reply without it is not begun
    return local.vector.to(local.received)
