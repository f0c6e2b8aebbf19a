"""What clients find of the new model: who is asked, and the means of what they answer."""

from __future__ import annotations

from collections.abc import Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from fedif_flower.messages.means import aggregate_metrics
from fedif_flower.messages.metrics import ReplyLimits, screen_evaluations
from fedif_flower.strategies.members import Members
from fedif_flower.strategies.sampling import sample_clients


class ClientEvaluation:
    """Lets drawn clients evaluate each new model.

    Parameters
    ----------
    settings : FedAvg
        Flower's own: how many are drawn, what records are called, how metrics are averaged.
    members : Members
        Who may be drawn.
    limits : ReplyLimits
        What is believed.
    seed : int
        Of the draws.
    """

    def __init__(self, settings: FedAvg, members: Members, limits: ReplyLimits, seed: int) -> None:
        self._settings = settings
        self._members = members
        self._limits = limits
        self._seed = seed
        self._asked: tuple[int, ...] = ()

    def configure(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw the clients from (seed, round) too, with draws of a purpose of their own."""
        of = self._settings
        if of.fraction_evaluate == 0.0:
            return []
        needed = max(of.min_evaluate_nodes, 1)
        nodes = self._members.nodes.online(grid, needed, "min_evaluate_nodes")
        sampled = sample_clients(
            self._members.failures.available(nodes, server_round, needed),
            of.fraction_evaluate,
            of.min_evaluate_nodes,
            self._seed,
            server_round,
            purpose="sample-evaluators",
            out_of=len(nodes),
        )
        self._asked = tuple(node.node_id for node in sampled)
        config["server-round"] = server_round
        record = RecordDict({of.arrayrecord_key: arrays, of.configrecord_key: config})
        return [Message(record, node_id, MessageType.EVALUATE) for node_id in self._asked]

    def aggregate(self, replies: Iterable[Message]) -> MetricRecord | None:
        """Return the means of every well-formed reply's metrics."""
        of = self._settings
        records = screen_evaluations(replies, self._asked, self._limits)
        return aggregate_metrics(records, of.evaluate_metrics_aggr_fn, of.weighted_by_key)
