"""An oracle that knows who is malicious: what leaving clients out can reach, in simulations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from fedif_flower.messages.client_node import ClientNode
from fedif_flower.messages.means import MetricsAggregation
from fedif_flower.round import Aggregation, RoundUpdates
from fedif_flower.stages import Stage
from fedif_flower.strategies.callbacks import Callback
from fedif_flower.strategies.screened import ScreenedStrategy
from fedif_flower.strategies.setup import DEFAULTS, Setup


class OracleExclusion(ScreenedStrategy):
    r"""FedAvg over the honest clients of a round, told by an oracle who they are.

    .. math:: p_i = n_i / \sum_{j \in H_t} n_j \text{ for } i \in H_t, \text{ else } 0

    with :math:`H_t` the round's honest clients. Where there are none, the model stays as it is. It
    is a reference for other strategies: nobody knows :math:`H_t` outside of a simulation.

    Parameters
    ----------
    is_malicious : callable
        Tells of a client whether it misbehaves.
    stages, callbacks, setup, and Flower's arguments
        See :class:`~fedif_flower.strategies.screened.ScreenedStrategy`.
    """

    def __init__(
        self,
        is_malicious: Callable[[ClientNode], bool],
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
        self.is_malicious = is_malicious

    def weigh(self, updates: RoundUpdates) -> Aggregation:
        """Return the shares of the honest clients' examples, ``[m]``."""
        late = [work.node for work in self._late.values()]
        bad = {n.client_id for n in (*self._asked.values(), *late) if self.is_malicious(n)}
        is_honest = torch.tensor([client_id not in bad for client_id in updates.client_ids])
        examples = torch.where(is_honest, updates.num_examples, 0.0)
        return Aggregation(weights=examples / examples.sum().clamp_min(1e-300))
