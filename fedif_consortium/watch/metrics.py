"""A run's figures for Prometheus, served while the run goes on if ``metrics.port`` is set."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self, get_args

import psutil
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from pydantic import model_validator

from fedif_consortium.health import serving
from fedif_flower.errors import require
from fedif_flower.messages.screening import ReplyStatus
from fedif_flower.run.config import RunConfig
from fedif_flower.run.part import NOTHING, Built, RunContext, RunPart
from fedif_flower.run.provenance import package_version
from fedif_flower.server.record import ClientReport, Round, RoundStatus
from fedif_flower.server.run import Callback
from fedif_flower.settings import Settings, in_section, quiet_setting

LOOPBACK = "127.0.0.1"
PHASES = ("replies", "aggregation", "evaluation")
SECONDS = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0)  # Upper ends of the keeper's latency buckets.
MOST_NAMED = 1000  # With more members, metrics.members is refused: each has series of its own.


class MetricsSettings(Settings, alias_generator=in_section("metrics")):
    """Settings of the port at which a run's figures can be read while the run goes on."""

    port: int = quiet_setting(
        0,
        "a port on which the server serves its figures to Prometheus while the run goes on, at "
        "`/metrics`; 0: none",
        ge=0,
        le=65535,
    )
    host: str = quiet_setting(
        "",
        f"the address of that port; whoever reaches it may read the figures; empty: {LOOPBACK}",
        pattern=r"^[^\s/]*$",
        allowed="an address of this machine; 0.0.0.0 or ::, all of them",
    )
    members: bool = quiet_setting(
        False,
        "each member's weight, weight score and replies by name; only if num-clients is at most "
        "1,000",
    )

    @model_validator(mode="after")
    def _has_a_port(self) -> Self:
        if self.members:
            require(self.port > 0, "members", True, "false without a port")
        return self


class ServedMetrics(RunPart):
    """Serves ``/metrics`` while the run goes on."""

    settings = MetricsSettings

    def build(self, run: RunContext) -> Built:
        """Start to serve the figures, and return the callback that fills them.

        Raises
        ------
        ConfigError
            If the port is taken, the host is not an address of this machine, or
            ``metrics.members`` is set with more than 1,000 clients.
        """
        settings = run.config.section(MetricsSettings)
        if not settings.port:
            return NOTHING
        metrics = RunMetrics(run.config, members=settings.members)
        host = settings.host or LOOPBACK
        key = f"metrics.port = {settings.port}"
        run.stack.enter_context(serving(host, settings.port, metrics.registry, key=key))
        run.wait_listeners.append(
            lambda call, seconds: metrics.keeper.labels(call).observe(seconds)
        )
        return Built(callbacks=[metrics], on_row=metrics.add_round)


class RunMetrics(Callback):
    """Keeps the figures of one run, in a registry of its own.

    The number of series stays small, because most labels take their values from closed lists. The
    exceptions are the names of the task's own metrics, which are few, and the names of members,
    which are labels only with ``metrics.members``.

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
        If ``members`` is true with more than 1,000 clients.
    """

    def __init__(self, config: RunConfig, *, members: bool = False) -> None:
        if members:
            allowed = f"false with more than {MOST_NAMED} clients"
            require(config.num_clients <= MOST_NAMED, "metrics.members", True, allowed)
        self._names_members = members
        self._weighed: set[str] = set()  # Names of members that had a weight in some round.
        self.registry = CollectorRegistry()
        options: dict[str, Any] = {"namespace": "fedif", "registry": self.registry}
        self._add_figures_of_run(config, options)
        self._add_figures_of_rounds(options)
        self._add_figures_of_members(options)

    def _add_figures_of_run(self, config: RunConfig, options: dict[str, Any]) -> None:
        """Add figures that stay constant during the run, and the process's memory."""
        Info("run", "What runs", **options).info(
            {
                "run": config.run_name,
                "strategy": config.strategy,
                "subject": config.subject,
                "version": package_version(),
            }
        )
        planned = Gauge("rounds_planned", "Rounds there will be", **options)
        planned.set(config.num_server_rounds)
        timeout = Gauge("round_timeout_seconds", "How long a round waits", **options)
        timeout.set(config.pace.timeout)
        expected = Gauge("members_expected", "Members that the run was begun with", **options)
        expected.set(config.num_clients)
        process = psutil.Process()
        memory = Gauge("memory_bytes", "The server's process", **options)
        memory.set_function(lambda: float(process.memory_info().rss))

    def _add_figures_of_rounds(self, options: dict[str, Any]) -> None:
        """Add figures of rounds, of their replies, and of the model's quality."""
        self.rounds = Counter("rounds", "Rounds that ended, by outcome", ["outcome"], **options)
        self.round = Gauge("round", "The last round that ended", **options)
        # Until the first round ends, it is the time at which the run began: so an alert on its age
        # also fires for a first round that never ends.
        self.ended = Gauge("round_ended_timestamp_seconds", "When the last round ended", **options)
        self.ended.set_to_current_time()
        words = "Seconds of all rounds, by phase"
        self.phases = Counter("phase_seconds", words, ["phase"], **options)
        self.training = Gauge("training_seconds", "A member's mean in the last round", **options)
        self.replies = Counter("replies", "What became of those asked", ["status"], **options)
        self.online = Gauge("members_online", "Members there when the round began", **options)
        # Before round 1 members are waited for and check themselves, which may take ten minutes.
        # Nobody has counted them then: a 0 would set off the alerts on members that are offline.
        self.online.set(math.nan)
        words = "Of the last model that was evaluated"
        self.quality = {
            "accuracy": Gauge("accuracy", words, ["split"], **options),
            "loss": Gauge("loss", words, ["split"], **options),
        }
        words = "A metric of the task's own"
        self.figure = Gauge("task_metric", words, ["name", "split"], **options)
        words = "Seconds until it answered the server"
        self.keeper = Histogram("keeper_seconds", words, ["call"], buckets=SECONDS, **options)
        # Each series begins at 0. If it began with its first event, an alert on its increase would
        # not see that event.
        for status in get_args(RoundStatus):
            self.rounds.labels(_outcome(status))
        for phase in PHASES:
            self.phases.labels(phase)
        for status in get_args(ReplyStatus):
            self.replies.labels(status)

    def _add_figures_of_members(self, options: dict[str, Any]) -> None:
        """Add figures of single members; they stay without values unless ``metrics.members``."""
        words = "Its weight in the last round"
        self.weight = Gauge("member_weight", words, ["member"], **options)
        self.score = Gauge("member_weight_score", "Its weight score", ["member"], **options)
        words = "What became of a member's turns"
        labels = ["member", "status"]
        self.member_replies = Counter("member_replies", words, labels, **options)

    def on_asked(self, current: Round) -> None:
        """Set how many members are online, as the round begins."""
        self.online.set(len(current.online))

    def add_round(self, row: Round) -> None:
        """Add a round that ended, with the metrics of its model."""
        self.round.set(row.round)
        self.ended.set_to_current_time()
        if row.round:
            self.rounds.labels(_outcome(row.status)).inc()
        self.phases.labels("replies").inc(row.round_seconds)
        self.phases.labels("aggregation").inc(row.aggregation_seconds)
        self.phases.labels("evaluation").inc(row.evaluation_seconds)
        # If no member reported how long it trained, the figure is NaN, not an earlier round's mean.
        train_seconds = math.nan
        if row.train_seconds is not None:
            train_seconds = row.train_seconds
        self.training.set(train_seconds)
        for column, value in row.metrics.items():
            split, _, name = column.partition("_")
            if name in self.quality:
                self.quality[name].labels(split).set(value)
            elif split in ("test", "validation"):
                self.figure.labels(name, split).set(value)
        for client in row.clients:
            self.replies.labels(client.status).inc()
        if self._names_members:
            self._add_members(row.clients)

    def _add_members(self, clients: Sequence[ClientReport]) -> None:
        """Add what became of each member's reply, its weight and its weight score."""
        # A member that was not asked in this round gets weight 0, not its earlier weight.
        weights = dict.fromkeys(self._weighed, 0.0)
        for client in clients:
            name = client.node.name or str(client.node.client_id)
            self.member_replies.labels(name, client.status).inc()
            if client.weight is not None:
                # A second reply of the same member is refused, and adds nothing.
                weights[name] = weights.get(name, 0.0) + client.weight
            if client.weight_score is not None:
                self.score.labels(name).set(client.weight_score)
        for name, weight in weights.items():
            self.weight.labels(name).set(weight)
        self._weighed = set(weights)


def _outcome(status: RoundStatus) -> str:
    """Return the label ``outcome`` of a round with this status."""
    if status == "advanced":
        return "ok"
    return status
