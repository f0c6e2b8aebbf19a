"""A run's figures for Prometheus; needs ``pip install 'fedif-flower[metrics]'``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, get_args

import psutil
from flwr.app import Message
from flwr.serverapp import Grid
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from fedif_consortium.watch.status_pages import OK, StatusServer, health_page, package_version
from fedif_flower.errors import require
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.messages.forwarding_grid import ForwardingGrid
from fedif_flower.messages.screened_grid import is_reliable
from fedif_flower.messages.screening import Status
from fedif_flower.run.config import RunConfig
from fedif_flower.run.rows import RoundRow
from fedif_flower.strategies.callbacks import Callback, RunningStrategy
from fedif_flower.strategies.nodes import NODE_TIMEOUT, is_simulated
from fedif_flower.strategies.reports import RoundReport

PHASES = ("replies", "aggregation", "evaluation")
SECONDS = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0)  # The buckets of latencies.
MOST_NAMED = 1000  # Members with metrics of their own.
_ANSWERS = "Seconds until it answered the server"


class RunMetrics(Callback):
    """Keeps the figures of one run, in a registry of its own.

    Labels have values out of closed lists, except for the task's own metrics, which are few, and
    members' names, which are there with ``metrics-members`` alone.

    Parameters
    ----------
    config : RunConfig
        The run.

    Attributes
    ----------
    registry : CollectorRegistry
        All metrics; ``docs/monitoring.md`` describes them.

    Raises
    ------
    ConfigError
        If too many members are to be named.
    """

    def __init__(self, config: RunConfig) -> None:
        is_bounded = not config.metrics_members or config.num_clients <= MOST_NAMED
        require(is_bounded, "metrics-members", True, f"false with more than {MOST_NAMED} clients")
        self._config = config
        self._moved = time.monotonic()
        self._round = 0
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

    def page(self) -> tuple[int, str, bytes]:
        """Return all of it as Prometheus' text."""
        return 200, CONTENT_TYPE_PLAIN_0_0_4, generate_latest(self.registry)

    def state(self) -> Mapping[str, object]:
        """Return how the run is: ``stalled`` where nothing moves for longer than anything waits."""
        still = time.monotonic() - self._moved
        patience = 2 * self._config.round_timeout + NODE_TIMEOUT
        return {
            "status": OK if still <= patience else "stalled",
            "run": self._config.run_name,
            "round": self._round,
            "rounds": self._config.num_server_rounds,
            "quiet-seconds": round(still, 1),
        }

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
        self._round = row.round
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

    def on_start(self, strategy: RunningStrategy) -> None:  # noqa: ARG002
        """Note that the run begins."""
        self._moved = time.monotonic()

    def admit(self, nodes: Sequence[ClientNode], server_round: int) -> Sequence[ClientNode]:  # noqa: ARG002
        """Note that a round begins; all may be drawn."""
        self._moved = time.monotonic()
        return nodes

    def on_replies(self, server_round: int) -> None:  # noqa: ARG002
        """Note that the replies are here."""
        self._moved = time.monotonic()

    def on_round(self, report: RoundReport) -> None:
        """Count what became of those that were asked."""
        self._moved = time.monotonic()
        for client in report.clients:
            self.replies.labels(client.status).inc()
            if self._config.metrics_members:
                name = client.node.name or str(client.node.client_id)
                self.member_replies.labels(name, client.status).inc()
                values = (self.weight, client.weight), (self.score, client.weight_score)
                for gauge, value in values:
                    if value is not None:
                        gauge.labels(name).set(value)

    def on_round_end(self, server_round: int) -> None:  # noqa: ARG002
        """Note that all is written."""
        self._moved = time.monotonic()


@contextmanager
def serving(config: RunConfig) -> Iterator[RunMetrics]:
    """Serve a run's ``/metrics`` and ``/health`` while it goes on.

    Raises
    ------
    ConfigError
        If the port is taken.
    """
    metrics = RunMetrics(config)
    pages = {"/metrics": metrics.page, "/health": health_page("server", metrics.state)}
    host, port = config.metrics_host, config.metrics_port
    with StatusServer(host, port, pages, key=f"metrics-port = {port}"):
        yield metrics


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
