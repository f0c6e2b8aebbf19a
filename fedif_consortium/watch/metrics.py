"""A run's figures for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, get_args

import psutil
from flwr.app import Message
from flwr.serverapp import Grid
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

from fedif_flower.errors import require
from fedif_flower.messages.forwarding_grid import ForwardingGrid
from fedif_flower.messages.screened_grid import is_reliable
from fedif_flower.messages.screening import Status
from fedif_flower.run.config import RunConfig
from fedif_flower.run.provenance import package_version
from fedif_flower.run.rows import RoundRow
from fedif_flower.strategies.callbacks import Callback
from fedif_flower.strategies.nodes import is_simulated
from fedif_flower.strategies.reports import RoundReport

PHASES = ("replies", "aggregation", "evaluation")
SECONDS = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0)  # The buckets of latencies.
MOST_NAMED = 1000  # Members with metrics of their own.
_ANSWERS = "Seconds until it answered the server"


class RunMetrics(Callback):
    """Keeps the figures of one run, in a registry of its own.

    Labels have values out of closed lists, except for the task's own metrics, which are few, and
    members' names, which are there with ``metrics.members`` alone.

    Parameters
    ----------
    config : RunConfig
        The run.
    members : bool
        Whether each member has figures of its own.

    Attributes
    ----------
    registry : CollectorRegistry
        All metrics; ``docs/operations.md`` describes them.

    Raises
    ------
    ConfigError
        If too many members are to be named.
    """

    def __init__(self, config: RunConfig, *, members: bool = False) -> None:
        is_bounded = not members or config.num_clients <= MOST_NAMED
        require(is_bounded, "metrics.members", True, f"false with more than {MOST_NAMED} clients")
        self._config, self._members = config, members
        self.registry = CollectorRegistry()
        own: dict[str, Any] = {"namespace": "fedif", "registry": self.registry}
        Info("run", "What runs", **own).info(
            {
                "run": config.run_name,
                "strategy": config.strategy,
                "subject": config.subject,
                "version": package_version(),
            }
        )
        self.rounds = Counter("rounds", "Rounds that ended, by outcome", ["outcome"], **own)
        self.round = Gauge("round", "The last round that ended", **own)
        Gauge("rounds_planned", "Rounds there will be", **own).set(config.num_server_rounds)
        # Before the first one: when the run began, so that a first round without end is seen too.
        self.ended = Gauge("round_ended_timestamp_seconds", "When the last round ended", **own)
        self.ended.set_to_current_time()
        Gauge("round_timeout_seconds", "How long a round waits", **own).set(config.round_timeout)
        self.phases = Counter("phase_seconds", "Seconds of all rounds, by phase", ["phase"], **own)
        self.training = Gauge("training_seconds", "A member's mean in the last round", **own)
        self.replies = Counter("replies", "What became of those asked", ["status"], **own)
        split = ["split"]
        self.accuracy = Gauge("accuracy", "Of the last model that was evaluated", split, **own)
        self.loss = Gauge("loss", "Of the last model that was evaluated", split, **own)
        self.figure = Gauge("task_metric", "A metric of the task's own", ["name", *split], **own)
        self.online = Gauge("members_online", "Members that the SuperLink counts as online", **own)
        expected = Gauge("members_expected", "Members that the run was begun with", **own)
        expected.set(config.num_clients)
        memory = Gauge("memory_bytes", "Memory of the server's process", **own)
        process = psutil.Process()
        memory.set_function(lambda: float(process.memory_info().rss))
        timed: dict[str, Any] = {"buckets": SECONDS, **own}
        self.superlink = Histogram("superlink_seconds", _ANSWERS, ["call"], **timed)
        self.keeper = Histogram("keeper_seconds", _ANSWERS, ["call"], **timed)
        member = ["member"]
        self.weight = Gauge("member_weight", "Its weight in the last round", member, **own)
        self.score = Gauge("member_weight_score", "Its weight score", member, **own)
        self.member_replies = Counter(
            "member_replies", "What became of a member's turns", [*member, "status"], **own
        )
        for outcome in ("ok", "failed"):
            self.rounds.labels(outcome)
        for phase in PHASES:
            self.phases.labels(phase)
        for status in get_args(Status):
            self.replies.labels(status)

    def watched(self, grid: Grid) -> Grid:
        """Return the way to the clients, with an eye on how many are online and how fast it is."""
        if is_reliable(grid) or is_simulated(grid):  # Nodes that neither come nor go.
            self.online.set(len(list(grid.get_node_ids())))
            return grid
        return _TimedGrid(grid, self)

    def keeper_answered(self, call: str, seconds: float) -> None:
        """Take in how long the keeper took for one answer."""
        self.keeper.labels(call).observe(seconds)

    def row(self, row: RoundRow) -> None:
        """Take in a round's line of ``rounds.csv``."""
        self.round.set(row.round)
        self.ended.set_to_current_time()
        if row.round:
            self.rounds.labels("failed" if row.round_failed else "ok").inc()
        seconds = row.round_seconds, row.aggregation_seconds, row.evaluation_seconds
        for phase, taken in zip(PHASES, seconds, strict=True):
            self.phases.labels(phase).inc(taken)
        if row.train_seconds is not None:
            self.training.set(row.train_seconds)
        for split in ("test", "validation"):
            for gauge, name in ((self.accuracy, "accuracy"), (self.loss, "loss")):
                if (value := getattr(row, f"{split}_{name}")) is not None:
                    gauge.labels(split).set(value)
        for column, value in row.metrics.items():
            split, _, name = column.partition("_")
            self.figure.labels(name, split).set(value)

    def on_round(self, report: RoundReport) -> None:
        """Count what became of those that were asked."""
        for client in report.clients:
            self.replies.labels(client.status).inc()
            if self._members:
                name = client.node.name or str(client.node.client_id)
                self.member_replies.labels(name, client.status).inc()
                values = (self.weight, client.weight), (self.score, client.weight_score)
                for gauge, value in values:
                    if value is not None:
                        gauge.labels(name).set(value)


class _TimedGrid(ForwardingGrid):
    """Hands every call on to a SuperLink, and tells how long it took and who is online."""

    def __init__(self, grid: Grid, metrics: RunMetrics) -> None:
        super().__init__(grid)
        self._metrics = metrics

    def get_node_ids(self) -> Iterable[int]:
        return self._online(lambda: list(self.inner.get_node_ids()))

    def get_nodes(self) -> Iterable[Any]:
        return self._online(lambda: list(self.inner.get_nodes()))

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        with self._metrics.superlink.labels("push").time():
            return self.inner.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        with self._metrics.superlink.labels("pull").time():
            return self.inner.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self.inner.send_and_receive(messages, timeout=timeout)

    def _online(self, call: Callable[[], list[Any]]) -> list[Any]:
        with self._metrics.superlink.labels("nodes").time():
            found = call()
        self._metrics.online.set(len(found))
        return found
