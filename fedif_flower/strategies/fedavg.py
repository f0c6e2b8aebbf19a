"""FedAvg [McMahan et al., 2017] and FedProx [Li et al., 2020] on the screened base.

Papers: https://arxiv.org/abs/1602.05629, https://arxiv.org/abs/1812.06127
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Unpack

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid

from fedif_flower.errors import ConfigError
from fedif_flower.round import Aggregation, RoundUpdates
from fedif_flower.strategies.arguments import BaseArguments
from fedif_flower.strategies.screened import ScreenedStrategy


class FedAvg(ScreenedStrategy):
    r"""Weigh each client by its number of examples.

    .. math:: p_i = n_i / \sum_{j \in S_t} n_j

    with :math:`n_i` the examples that client i says it trained on, bounded by
    ``max_num_examples``. Parameters: see
    :class:`~fedif_flower.strategies.screened.ScreenedStrategy`.
    """

    def weigh(self, updates: RoundUpdates) -> Aggregation:
        """Return the shares of the examples, ``[m]``."""
        return Aggregation(weights=updates.num_examples / updates.num_examples.sum())


class FedProx(FedAvg):
    r"""FedAvg whose clients are asked to stay near the global model.

    A client minimises :math:`\ell(w) + (\mu / 2) \lVert w - w_{t-1} \rVert^2`; it finds
    :math:`\mu` under ``"proximal-mu"`` in its config, as with Flower's ``FedProx``.

    Parameters
    ----------
    proximal_mu : float
        :math:`\mu`, >= 0; at 0 this is FedAvg.
    **base
        See :class:`~fedif_flower.strategies.screened.ScreenedStrategy`.
    """

    def __init__(self, *, proximal_mu: float = 0.01, **base: Unpack[BaseArguments]) -> None:
        if proximal_mu < 0:
            raise ConfigError(f"proximal-mu = {proximal_mu}; allowed: >= 0")
        super().__init__(**base)
        self.proximal_mu = proximal_mu

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send mu along with the model."""
        config["proximal-mu"] = self.proximal_mu
        return super().configure_train(server_round, arrays, config, grid)
