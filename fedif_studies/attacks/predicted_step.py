"""The attack ACE: a member predicts the next global step from the last ones, and sends that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedif_flower.attacks.behaviour import Behaviour, ClientRound
from fedif_flower.settings import Setting

_MODELS = "models"
_ROUNDS = "rounds"


@dataclass
class PredictedStep(Behaviour):
    r"""Sends the global step that it expects, instead of what it has trained.

    .. math:: \hat\Delta_t = \Delta_{t-1} + B (w_{t-1} - w_{t-2}), \qquad
              u \leftarrow c\, \min\bigl(1, \lVert \Delta_{t-1} \rVert
              / \lVert \hat\Delta_t \rVert\bigr)\, \hat\Delta_t

    with :math:`\Delta_{t-1}` the last global step, and B the L-BFGS estimate of how steps change as
    the model moves (:func:`curvature_product`), from the models that the member has received. If it
    is not drawn in every round, the mean step between its rounds counts as the step. It is honest
    until it knows two steps.

    Parameters
    ----------
    factor : float
        c > 0.
    window : int
        From how many changes of the step B is estimated at most, >= 1.

    References
    ----------
    Xu et al., "ACE: A Model Poisoning Attack on Contribution Evaluation Methods in Federated
    Learning", USENIX Security 2024, arXiv:2405.20975. The bound on the length is an addition of
    this project: a prediction that goes astray would be conspicuously long. A valuation by cosines
    does not see the length.
    """

    factor: Annotated[float, Setting("c: factor by which the step is multiplied", gt=0)] = 1.0
    window: Annotated[int, Setting("changes of the step to predict from", ge=1)] = 5

    def poison_update(self, own: ClientRound) -> Tensor:
        """Return the received parameters plus the predicted step."""
        models, rounds = self._remember(own)  # [k, d], [k]
        if len(models) < 3:  # Three models make two steps, and so one change of the step.
            return own.trained
        moves = models.diff(dim=0)  # [k - 1, d]
        steps = moves / rounds.diff()[:, None]  # [k - 1, d]
        last = steps[-1]
        predicted = last + curvature_product(moves[:-1], steps.diff(dim=0), moves[-1])
        length = predicted.norm()
        factor = self.factor
        if length > 0:
            factor = factor * (last.norm() / length).clamp_max(1.0)
        return own.received + (factor * predicted).to(own.received)

    def _remember(self, own: ClientRound) -> tuple[Tensor, Tensor]:
        """Return the models received so far ``[k, d]`` and their rounds ``[k]``, in float64."""
        models = own.received.detach().cpu()[None]
        rounds = torch.tensor([own.server_round])
        if _MODELS in own.memory:
            models = torch.cat([own.memory[_MODELS], models])[-self.window - 2 :]
            rounds = torch.cat([own.memory[_ROUNDS], rounds])[-self.window - 2 :]
        own.memory[_MODELS] = models
        own.memory[_ROUNDS] = rounds
        return models.double(), rounds.double()


def curvature_product(moves: Tensor, changes: Tensor, vector: Tensor) -> Tensor:
    r"""Return the L-BFGS estimate B v of the product of a curvature with a vector.

    .. math:: B v = \sigma v - \begin{pmatrix} Y & \sigma S \end{pmatrix}
              \begin{pmatrix} -D & L^\top \\ L & \sigma S^\top S \end{pmatrix}^{-1}
              \begin{pmatrix} Y^\top v \\ \sigma S^\top v \end{pmatrix}, \qquad
              \sigma = \frac{\langle y_k, s_k \rangle}{\langle s_k, s_k \rangle}

    with S and Y the moves :math:`s_j` and the changes :math:`y_j` as columns, D the diagonal of
    :math:`S^\top Y`, and L its part below the diagonal. B is symmetric, and :math:`B s_k = y_k` for
    the last move.

    Parameters
    ----------
    moves : Tensor
        ``[k, d]``: the moves of the argument, the oldest first, k >= 1.
    changes : Tensor
        ``[k, d]``: the change of the gradient (or of what stands for it) by each move.
    vector : Tensor
        ``[d]``: v.

    Returns
    -------
    Tensor
        ``[d]``: B v; 0 if the last move is 0.

    References
    ----------
    Byrd, Nocedal, Schnabel, "Representations of quasi-Newton matrices and their use in limited
    memory methods", 1994, theorem 2.3.
    """
    squared = moves[-1] @ moves[-1]
    if not squared > 0:
        return torch.zeros_like(vector)
    sigma = (changes[-1] @ moves[-1]) / squared
    products = moves @ changes.T  # [k, k]
    below = products.tril(-1)
    upper = torch.cat([-products.diagonal().diag(), below.T], dim=1)
    lower = torch.cat([below, sigma * (moves @ moves.T)], dim=1)
    middle = torch.cat([upper, lower])  # [2k, 2k]
    pairs = torch.cat([changes, sigma * moves])  # [2k, d]
    # A pseudoinverse, since the matrix is singular if moves or changes depend on each other.
    parts: Tensor = torch.linalg.pinv(middle, hermitian=True) @ (pairs @ vector)  # [2k]
    return sigma * vector - parts @ pairs
