"""FedProx [Li et al., 2020] on the screened base.

Paper: https://arxiv.org/abs/1812.06127
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid

from fedif_flower.messages.means import MetricsAggregation
from fedif_flower.settings import Setting
from fedif_flower.stages import Stage
from fedif_flower.strategies.callbacks import Callback
from fedif_flower.strategies.fedavg import FedAvg
from fedif_flower.strategies.setup import DEFAULTS, Setup


class FedProx(FedAvg):
    r"""FedAvg whose clients are asked to stay near the global model.

    A client minimises :math:`\ell(w) + (\mu / 2) \lVert w - w_{t-1} \rVert^2`; it finds
    :math:`\mu` under ``"proximal-mu"`` in its config, as with Flower's ``FedProx``.

    Parameters
    ----------
    proximal_mu : float
        :math:`\mu`, >= 0; at 0 this is FedAvg.
    stages, callbacks, setup, and Flower's arguments
        See :class:`~fedif_flower.strategies.screened.ScreenedStrategy`.
    """

    def __init__(
        self,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 1.0,
        min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2,
        min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        train_metrics_aggr_fn: MetricsAggregation | None = None,
        evaluate_metrics_aggr_fn: MetricsAggregation | None = None,
        *,
        proximal_mu: Annotated[float, Setting("mu of the clients' proximal term", ge=0)] = 0.01,
        stages: Sequence[Stage] | None = None,
        callbacks: Sequence[Callback] = (),
        setup: Setup = DEFAULTS,
    ) -> None:
        super().__init__(
            fraction_train,
            fraction_evaluate,
            min_train_nodes,
            min_evaluate_nodes,
            min_available_nodes,
            weighted_by_key,
            arrayrecord_key,
            configrecord_key,
            train_metrics_aggr_fn,
            evaluate_metrics_aggr_fn,
            stages=stages,
            callbacks=callbacks,
            setup=setup,
        )
        self.proximal_mu = proximal_mu

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send mu along with the model."""
        config["proximal-mu"] = self.proximal_mu
        return super().configure_train(server_round, arrays, config, grid)
