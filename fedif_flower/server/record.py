"""A strategy's report of a round: plain numbers, for records, callbacks and tables."""

from __future__ import annotations

import logging
import math
import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from fedif_flower.errors import require
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.messages.metrics import TRAIN_LOSS, TRAIN_SECONDS, scalar
from fedif_flower.messages.screening import Asked, Screening, Status
from fedif_flower.messages.text import printable
from fedif_flower.server.steps import Outcome, RoundStatus

if TYPE_CHECKING:
    from pandas import DataFrame

# What a rule says of each client, by the name that it has in an Aggregation.
_FIGURES = {
    "scores": "score",
    "normalized": "normalized",
    "weight_scores": "weight_score",
    "accumulative": "accumulative_influence",
    "weights": "weight",
}
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ClientReport:
    """One client in one round; a number is ``None`` where the rule has no such thing.

    ``status`` is what became of it, ``rejection`` why it is not ``"accepted"``; ``note`` says what
    is odd about a client or its reply that was accepted nevertheless. ``claimed_examples`` are
    those that it reported, where it counts for fewer. ``asked_in`` is the round in which it was
    asked, where that is an earlier one.
    """

    node: ClientNode
    status: Status = "accepted"
    rejection: str = ""
    num_examples: float | None = None
    train_seconds: float | None = None
    train_loss: float | None = None
    score: float | None = None
    normalized: float | None = None
    weight_score: float | None = None
    accumulative_influence: float | None = None
    weight: float | None = 0.0
    note: str = ""
    claimed_examples: float | None = None
    asked_in: int | None = None

    def line(self, server_round: int) -> dict[str, Any]:
        """Return its line of ``clients.csv``, by column."""
        values = dict(vars(self))
        node = values.pop("node")
        ids = {"partition_id": node.partition_id, "client_id": node.client_id}
        return {"round": server_round, **ids, **values}


@dataclass(frozen=True)
class RoundReport:
    """One round, accepted clients first; ``reason`` says why the model stays, if it does.

    ``num_online`` counts all that were there when it began. ``losses`` are the validation losses at
    the start of a descent and after each step taken. ``metrics`` are those of the new model, by
    column of ``rounds.csv``, once it was evaluated: ``test_accuracy`` ...
    """

    round: int
    clients: tuple[ClientReport, ...] = ()
    status: RoundStatus = "advanced"
    reason: str = ""
    round_seconds: float = 0.0
    aggregation_seconds: float = 0.0
    evaluation_seconds: float = 0.0
    num_online: int = 0
    evaluations: int = 0
    losses: tuple[float, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """Whether there was no step to take, though nobody decided so."""
        return self.status == "failed"

    @property
    def counts(self) -> dict[str, int]:
        """How many replies were used, refused, failed and may yet come, by column."""
        found = Counter(client.status for client in self.clients)
        return {
            "accepted": found["accepted"],
            "rejected": found["refused"],
            "failed": found["failed"] + found["away"] + found["revoked"],
            "late": found["late"],
        }

    @property
    def train_seconds(self) -> float | None:
        """The mean of its clients, where they say."""
        seconds = [c.train_seconds for c in self.clients if c.train_seconds]
        return statistics.fmean(seconds) if seconds else None

    @property
    def headline(self) -> str:
        """What progress shows of it, in a few words; empty where nothing was evaluated."""
        return headline(self.metrics)

    def line(self) -> dict[str, Any]:
        """Return its line of ``rounds.csv``, by column."""
        return {
            "round": self.round,
            "round_seconds": self.round_seconds,
            "train_seconds": self.train_seconds,
            "aggregation_seconds": self.aggregation_seconds,
            "evaluation_seconds": self.evaluation_seconds,
            **self.counts,
            "online": self.num_online,
            "evaluations": self.evaluations,
            "status": self.status,
            "round_failed": self.failed,
            "reason": self.reason,
            "losses": " ".join(f"{loss:.6g}" for loss in self.losses),
            **self.metrics,
        }


def headline(columns: Mapping[str, Any]) -> str:
    """Return the first figure of the test split that a line of ``rounds.csv`` has, in words."""
    found = {name: value for name, value in columns.items() if value not in (None, "")}
    if "test_accuracy" in found:
        return f"test accuracy {float(found['test_accuracy']):.1%}"
    named = [name for name in found if name.startswith("test_") and name != "test_loss"]
    name = next(iter(named), "test_loss")
    return f"{name.replace('_', ' ')} {float(found[name]):.4g}" if name in found else ""


def round_report(
    server_round: int,
    screening: Screening,
    outcome: Outcome,
    asked: Mapping[int, Asked],
    **measured: Any,
) -> RoundReport:
    """Return the report of a round, and warn of refused replies and of what is odd about others.

    ``asked`` is what members were asked, by node, in earlier rounds too; ``measured`` has further
    fields of the report.
    """
    found, clients = outcome.aggregation, list[ClientReport]()
    if found is not None:
        measured |= {"evaluations": found.evaluations, "losses": found.losses}

    def add(node: ClientNode, **own: Any) -> None:
        one = asked.get(node.node_id)
        earlier = one.server_round if one and one.server_round != server_round else None
        clients.append(report := ClientReport(node, asked_in=earlier, **own))
        for remark in filter(None, (report.rejection, report.note)):
            logger.warning("round %d: %s: %s", server_round, node.label, remark)

    columns = {
        name: values.tolist()
        for of, name in _FIGURES.items()
        if (values := getattr(found, of, None)) is not None
    }
    for k, reply in enumerate(screening.accepted):
        figures = {name: values[k] for name, values in columns.items()}
        if math.isnan(figures.get("weight", 0.0)):
            figures["weight"] = None
        reported, notes = reply.reported, (reply.node.note, *reply.reported.notes)
        add(
            reply.node,
            num_examples=reply.num_examples,
            claimed_examples=reported.claimed_examples,
            train_seconds=scalar(reported.records, TRAIN_SECONDS),
            train_loss=scalar(reported.records, TRAIN_LOSS),
            note=printable("; ".join(filter(None, notes))),
            **figures,
        )
    for gone in screening.refused:
        add(gone.node, status=gone.status, rejection=gone.reason, note=gone.node.note)
    return RoundReport(server_round, tuple(clients), outcome.status, outcome.reason, **measured)


class History:
    """The reports and metrics of a strategy's rounds, from its first round in this process on.

    Attributes
    ----------
    rounds : list of RoundReport
        In order.
    metrics : dict of int to dict
        By round (0: before the first), what evaluation and callbacks said of its model.
    """

    def __init__(self) -> None:
        self.rounds: list[RoundReport] = []
        self.metrics: dict[int, dict[str, float]] = {}

    def __repr__(self) -> str:
        """Say how much there is, and how to see it."""
        return f"History({len(self.rounds)} rounds; to_pandas() shows them)"

    def to_pandas(self, table: Literal["clients", "rounds"] = "clients") -> DataFrame:
        """Return a table as a pandas ``DataFrame``.

        Parameters
        ----------
        table : {"clients", "rounds"}
            A line for each client in each round, named as the columns of ``clients.csv``; or a
            line for each round, with its metrics.

        Raises
        ------
        ImportError
            If pandas is not installed.
        ConfigError
            If there is no such table.
        """
        from pandas import DataFrame  # Nothing else needs it.

        require(table in ("clients", "rounds"), "table", table, "'clients' or 'rounds'")
        if table == "clients":
            return DataFrame([one.line(r.round) for r in self.rounds for one in r.clients])
        lines: dict[int, dict[str, Any]] = {
            number: {"round": number, **metrics} for number, metrics in self.metrics.items()
        }
        for report in self.rounds:
            lines.setdefault(report.round, {}).update(report.line())
        return DataFrame([lines[number] for number in sorted(lines)])
