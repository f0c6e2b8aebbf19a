"""What clients find of the new model: who is asked, and the means of what they answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from fedif_flower.messages.metrics import ReplyLimits, aggregate_metrics, screen_evaluations
from fedif_flower.strategies.failures import MemberFailures
from fedif_flower.strategies.nodes import NodeDirectory, sample_clients


class ClientEvaluation(FedAvg):
    """Flower's ``FedAvg`` whose evaluators are drawn from a seed, and not believed blindly."""

    nodes: NodeDirectory
    failures: MemberFailures
    limits: ReplyLimits
    seed: int
    _evaluators: Sequence[int] = ()

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw the clients that evaluate the new model, by draws of their own, and send it."""
        if self.fraction_evaluate == 0.0:
            return []
        needed = max(self.min_evaluate_nodes, 1)
        nodes = self.nodes.online(grid, needed, "min_evaluate_nodes")
        sampled = sample_clients(
            self.failures.available(nodes, server_round, needed),
            self.fraction_evaluate,
            self.min_evaluate_nodes,
            self.seed,
            server_round,
            purpose="sample-evaluators",
            out_of=len(nodes),
        )
        self._evaluators = [node.node_id for node in sampled]
        config["server-round"] = server_round
        record = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        return [Message(record, node_id, MessageType.EVALUATE) for node_id in self._evaluators]

    def aggregate_evaluate(
        self,
        server_round: int,  # noqa: ARG002 (Flower's signature)
        replies: Iterable[Message],
    ) -> MetricRecord | None:
        """Average the metrics of every well-formed evaluation reply."""
        records = screen_evaluations(replies, self._evaluators, self.limits)
        return aggregate_metrics(records, self.evaluate_metrics_aggr_fn, self.weighted_by_key)
