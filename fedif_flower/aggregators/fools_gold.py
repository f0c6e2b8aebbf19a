"""FoolsGold: clients whose updates point the same way over the rounds count for less."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from torch import Tensor

from fedif_flower.aggregators.linear_algebra import cosines, gram_matrix
from fedif_flower.constructors import CheckedFields
from fedif_flower.round import Aggregation, RoundUpdates
from fedif_flower.settings import Setting


@dataclass
class FoolsGold(CheckedFields):
    r"""Average the updates; clients whose updates add up to the same direction count for less.

    .. math:: v_i = \max_{j \ne i} \max(c_{ij}, 0), \qquad
              c'_{ij} = c_{ij} \min(1, v_i / v_j), \qquad
              \alpha_i = 1 - \max_{j \ne i} \max(c'_{ij}, 0)

    .. math:: \alpha_i \leftarrow \frac{\alpha_i}{\max_j \alpha_j}, \qquad
              \alpha_i \leftarrow \kappa \Big(\ln \frac{\alpha_i}{1 - \alpha_i} + 0.5\Big),
              \qquad p_i = \frac{\alpha_i}{\sum_j \alpha_j}

    with :math:`c_{ij}` the cosine between the sums of two clients' updates over all rounds so far,
    and :math:`p_i` the weights. :math:`\alpha` is clamped to [0, 1] in each line, and to at most
    0.99 before the logarithm. The paper's step is the sum of :math:`\alpha_i u_i`, with
    :math:`u_i` client i's update. Here an update is the work of whole epochs and updates are
    averaged, so the weights are divided by their sum.

    Parameters
    ----------
    confidence : float
        :math:`\kappa` > 0: how sharply similar and dissimilar clients are told apart.

    References
    ----------
    Fung, Yoon and Beschastnikh, "The Limitations of Federated Learning in Sybil Settings", RAID
    2020, algorithm 1, over all coordinates.
    """

    gives_weights = True
    knows_clients = True  # It keeps a sum for each client's id.

    confidence: Annotated[
        float, Setting("kappa: how sharply like and unlike are told apart", gt=0)
    ] = 1.0
    sums: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)  # [d], CPU

    def __call__(self, updates: RoundUpdates) -> Aggregation:
        """Return weights ``[m]``; all 0 if each client points the same way as another one."""
        client_updates = updates.shortened().client_updates.cpu()
        for client, update in zip(updates.client_ids, client_updates, strict=True):
            # The sum is a new tensor even the first time: a view would keep all updates in memory.
            self.sums[client] = self.sums.get(client, 0) + update
        sums = torch.stack([self.sums[client] for client in updates.client_ids])  # [m, d]
        alike = cosines(gram_matrix(sums).cpu()).fill_diagonal_(0)  # [m, m]
        most = alike.amax(dim=1).clamp_min(0)  # [m]
        # The paper's pardon: client i is less suspect for being similar to client j if j is even
        # more similar to another client.
        pardon = torch.where(most[:, None] < most, most[:, None] / most, 1.0)  # [m, m]
        alpha = (1 - (alike * pardon).amax(dim=1)).clamp(0, 1)
        if not bool((alpha > 1e-9).any()):  # Smaller values are rounding.
            return Aggregation(weights=torch.zeros_like(alpha))
        alpha = (alpha / alpha.max()).clamp_max(0.99)
        alpha = (self.confidence * (alpha.logit() + 0.5)).clamp(0, 1)
        return Aggregation(weights=alpha / alpha.sum())

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a resumed run needs to go on."""
        return {"sums": dict(self.sums)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""
        self.sums = dict(state["sums"])
