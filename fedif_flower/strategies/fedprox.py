"""FedProx [Li et al., 2020]: FedAvg with a proximal term in the clients' loss.

Paper: https://arxiv.org/abs/1812.06127
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Unpack

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid

from fedif_flower.server.setup import BaseArguments
from fedif_flower.settings import Setting
from fedif_flower.strategies.fedavg import FedAvg


class FedProx(FedAvg):
    r"""FedAvg whose clients are asked to stay near the global model.

    A client minimises :math:`\ell(w) + (\mu / 2) \lVert w - w_{t-1} \rVert^2`, with
    :math:`\ell` its own loss and :math:`w_{t-1}` the global model. It finds :math:`\mu` under
    ``"proximal-mu"`` in its config, as with Flower's ``FedProx``.

    Parameters
    ----------
    proximal_mu : float
        The factor :math:`\mu` of the proximal term, >= 0; at 0 this is FedAvg.
    **base
        ``stages``, ``callbacks``, ``setup`` and Flower's arguments (see
        :class:`~fedif_flower.server.loop.ScreenedStrategy`).
    """

    def __init__(
        self,
        *,
        proximal_mu: Annotated[float, Setting("mu of the clients' proximal term", ge=0)] = 0.01,
        **base: Unpack[BaseArguments],
    ) -> None:
        super().__init__(**base)
        self.proximal_mu = proximal_mu

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw the round's clients, and return the messages that send them the model and mu."""
        # A new record: the caller may use `config` for another strategy as well.
        instructions = ConfigRecord({**config, "proximal-mu": self.proximal_mu})
        return super().configure_train(server_round, arrays, instructions, grid)
