"""FedAdp: weights from the angle between each client's update and the global update."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch

from fedif_flower.aggregators.linear_algebra import gram_matrix, normalize_weights
from fedif_flower.client_table import ClientTable
from fedif_flower.constructors import CheckedFields
from fedif_flower.round import Aggregation, RoundUpdates
from fedif_flower.settings import Setting


@dataclass
class FedAdp(CheckedFields):
    r"""Weigh clients by their examples and by the mean angle of their updates to the global one.

    .. math:: \theta_i = \arccos \cos(\Delta_i, \Delta), \quad
              f(\theta) = \alpha \bigl( 1 - e^{-e^{-\alpha (\theta - 1)}} \bigr), \quad
              p_i = \frac{n_i e^{f(\tilde\theta_i)}}{\sum_{j \in S_t} n_j e^{f(\tilde\theta_j)}}

    with :math:`S_t` the clients of round t, :math:`\Delta_i` client i's update, :math:`n_i` its
    number of examples, :math:`\Delta = \sum_i n_i s_i \Delta_i / \sum_i n_i` the global update,
    :math:`s_i` the factor by which stages shorten an update, and :math:`\tilde\theta_i` the mean of
    :math:`\theta_i` (in radians) over the rounds in which client i took part.

    Parameters
    ----------
    alpha : float
        :math:`\alpha` > 0: how much angles count.

    Raises
    ------
    ConfigError
        If alpha is out of range.

    References
    ----------
    Wu and Wang, "Fast-Convergent Federated Learning with Adaptive Weighting", IEEE TCCN 2021.
    """

    gives_weights = True
    knows_clients = True  # It keeps a mean angle for each client's id.

    alpha: Annotated[float, Setting("how much angles count", gt=0)] = 5.0
    _clients: ClientTable = field(
        default_factory=lambda: ClientTable(angle=0, rounds=0), init=False, repr=False
    )

    def __call__(self, updates: RoundUpdates) -> Aggregation:
        """Return the weights ``[m]``; the weight scores are the negated mean angles."""
        client_ids = updates.client_ids
        examples = updates.num_examples
        gram = gram_matrix(updates.client_updates)  # [m, m]
        # In the global update, each update has the length to which stages shorten it.
        coefficients = (normalize_weights(examples) * updates.shortening).to(gram.device)
        to_mean = gram @ coefficients  # [m]: <Delta_i, Delta>
        norms = gram.diagonal().sqrt() * (coefficients @ to_mean).clamp_min(0.0).sqrt()
        # A right angle where either update is zero.
        angles = torch.where(norms > 0, to_mean / norms, 0.0).clamp(-1.0, 1.0).arccos()
        rounds = self._clients.read(client_ids, "rounds") + 1
        mean = self._clients.read(client_ids, "angle")
        mean += (angles.cpu().numpy() - mean) / rounds
        self._clients.write(client_ids, angle=mean, rounds=rounds)
        smoothed = torch.from_numpy(mean)
        contribution = self.alpha * -torch.expm1(-torch.exp(-self.alpha * (smoothed - 1.0)))
        # Divided by the largest factor: the weights are the same, and a large alpha cannot
        # overflow.
        factors = torch.exp(contribution - contribution.max())
        return Aggregation(
            weights=normalize_weights(examples.cpu() * factors), weight_scores=-smoothed
        )

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a resumed run needs to go on."""
        return {"clients": self._clients.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""
        self._clients.load_state_dict(state["clients"])
