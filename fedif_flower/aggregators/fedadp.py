"""FedAdp: weights from the angle between each client's update and the global one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from torch import Tensor

from fedif_flower.aggregators.linear_algebra import gram_matrix, shares
from fedif_flower.client_table import ClientTable
from fedif_flower.round import Aggregation, RoundUpdates
from fedif_flower.sections import CheckedFields
from fedif_flower.settings import Setting


@dataclass
class FedAdp(CheckedFields):
    r"""Weigh by the running mean of each client's angle to the global update.

    .. math:: \theta_i = \arccos \cos(\Delta_i, \Delta), \quad
              f(\theta) = \alpha \bigl( 1 - e^{-e^{-\alpha (\theta - 1)}} \bigr), \quad
              p_i = \frac{n_i e^{f(\tilde\theta_i)}}{\sum_{j \in S_t} n_j e^{f(\tilde\theta_j)}}

    with :math:`\Delta_i` client i's update, :math:`\Delta = \sum_i n_i \Delta_i / \sum_i n_i` the
    global one, :math:`n_i` the numbers of examples and :math:`\tilde\theta_i` the mean of
    :math:`\theta_i` over the rounds in which i took part.

    Parameters
    ----------
    alpha : float
        :math:`\alpha`, > 0.

    Raises
    ------
    ConfigError
        If alpha is out of range.

    References
    ----------
    Wu and Wang, "Fast-Convergent Federated Learning with Adaptive Weighting", IEEE TCCN 2021.
    """

    gives_weights = True

    alpha: Annotated[float, Setting("how much angles count", gt=0)] = 5.0
    _clients: ClientTable = field(
        default_factory=lambda: ClientTable(angle=0, rounds=0), init=False, repr=False
    )

    def __call__(self, updates: RoundUpdates) -> Aggregation:
        """Return the weights ``[m]``; a smaller mean angle is the larger weight score."""
        weights = self.weights(updates.client_ids, updates.client_updates, updates.num_examples)
        return Aggregation(weights=weights, weight_scores=-self.angles_of(updates.client_ids))

    def angles_of(self, client_ids: Sequence[int]) -> Tensor:
        """Return these clients' mean angles ``[m]`` in radians, float64; 0 for one never seen."""
        return torch.from_numpy(self._clients.read(client_ids, "angle"))

    def weights(self, client_ids: Sequence[int], updates: Tensor, num_examples: Tensor) -> Tensor:
        """Take in one round and return its aggregation weights.

        Parameters
        ----------
        client_ids : sequence of int
            The m participants, distinct.
        updates : Tensor
            ``[m, d]``, finite.
        num_examples : Tensor
            ``[m]``, >= 0.

        Returns
        -------
        Tensor
            ``[m]``, float64, on the CPU, >= 0, sums to 1.

        Raises
        ------
        ValuationError
            If a value is not allowed.
        """
        angles = update_angles(updates, num_examples)
        rounds = self._clients.read(client_ids, "rounds") + 1
        mean = self._clients.read(client_ids, "angle")
        mean += (angles.cpu().double().numpy() - mean) / rounds
        self._clients.write(client_ids, angle=mean, rounds=rounds)
        smoothed = torch.from_numpy(mean)
        contribution = self.alpha * -torch.expm1(-torch.exp(-self.alpha * (smoothed - 1.0)))
        # The largest factor is 1: the weights are the same, and no alpha overflows.
        factors = torch.exp(contribution - contribution.max())
        return shares(num_examples.cpu() * factors)

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on."""
        return {"clients": self._clients.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""
        self._clients.load_state_dict(state["clients"])


def update_angles(updates: Tensor, num_examples: Tensor) -> Tensor:
    r"""Return the angle between each update and their mean, weighted by examples.

    Parameters
    ----------
    updates : Tensor
        ``[m, d]``, finite.
    num_examples : Tensor
        ``[m]``, >= 0.

    Returns
    -------
    Tensor
        ``[m]``, float64, radians in [0, pi]; a right angle where either update is zero.

    Raises
    ------
    ValuationError
        If a value is not allowed.
    """
    gram = gram_matrix(updates)  # [m, m]
    share = shares(num_examples).to(gram.device)
    to_mean = gram @ share  # [m]: <Delta_i, Delta>
    norms = gram.diagonal().sqrt() * (share @ to_mean).clamp_min(0.0).sqrt()
    cosine = torch.where(norms > 0, to_mean / norms, 0.0)
    return cosine.clamp(-1.0, 1.0).arccos()
