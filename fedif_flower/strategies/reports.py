"""A strategy's report of a round: plain numbers, for records and callbacks."""

from __future__ import annotations

import logging
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import Tensor

from fedif_flower.messages.client_node import ClientNode
from fedif_flower.messages.metrics import TRAIN_LOSS, TRAIN_SECONDS, scalar
from fedif_flower.messages.screening import AcceptedReply, Asked, Screening, Status
from fedif_flower.messages.text import printable
from fedif_flower.round import Aggregation
from fedif_flower.strategies.steps import Outcome

RoundStatus = Literal["advanced", "kept", "failed"]
"""What a round made of the model: a new one; nothing, as the rule decided; or nothing."""

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

    ``failed``: there was no step to take. ``kept``: the rule, or a bound, gave nobody weight.

    ``num_late`` counts those whose replies may come in a later round, ``num_online`` all that were
    there when it began. ``losses`` are the validation losses at the start of a descent and after
    each step taken. ``metrics`` are those of the new model, by
    column of ``rounds.csv``, once it was evaluated: ``test_accuracy`` ...
    """

    round: int
    clients: tuple[ClientReport, ...] = ()
    num_accepted: int = 0
    num_rejected: int = 0
    num_failed: int = 0
    failed: bool = False
    round_seconds: float = 0.0
    aggregation_seconds: float = 0.0
    evaluations: int = 0
    reason: str = ""
    losses: tuple[float, ...] = ()
    num_late: int = 0
    num_online: int = 0
    kept: bool = False
    evaluation_seconds: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def status(self) -> RoundStatus:
        """What became of the model, in a word."""
        return "failed" if self.failed else "kept" if self.kept else "advanced"

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
            "accepted": self.num_accepted,
            "rejected": self.num_rejected,
            "failed": self.num_failed,
            "late": self.num_late,
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
    *,
    round_seconds: float,
    aggregation_seconds: float,
    asked: Mapping[int, Asked],
    num_online: int,
) -> RoundReport:
    """Return the report of a round, and warn of refused replies and of what is odd about others.

    ``asked`` is what members were asked, by node, in earlier rounds too.
    """
    aggregation, reason, kept = outcome.aggregation, outcome.reason, outcome.kept
    refused = [
        ClientReport(reply.node, reply.status, reply.reason, note=reply.node.note)
        for reply in screening.refused
    ]
    clients = [*accepted_reports(screening.accepted, aggregation), *refused]
    for i, client in enumerate(clients):
        one = asked.get(client.node.node_id)
        if one is not None and one.server_round != server_round:
            clients[i] = replace(client, asked_in=one.server_round)
    for client in clients:
        for remark in filter(None, (client.rejection, client.note)):
            logger.warning("round %d: %s: %s", server_round, client.node.label, remark)
    return RoundReport(
        round=server_round,
        clients=tuple(clients),
        num_accepted=len(screening.accepted),
        num_rejected=len(screening.refused) - screening.num_failed - screening.num_late,
        num_failed=screening.num_failed,
        failed=bool(reason) and not kept,
        round_seconds=round_seconds,
        aggregation_seconds=aggregation_seconds,
        evaluations=aggregation.evaluations if aggregation else 0,
        reason=reason,
        losses=aggregation.losses if aggregation else (),
        num_late=screening.num_late,
        num_online=num_online,
        kept=kept,
    )


def accepted_reports(
    accepted: Sequence[AcceptedReply], aggregation: Aggregation | None
) -> list[ClientReport]:
    """Return one report for each accepted reply; ``aggregation`` is ``None`` in a failed round."""

    def column(name: str) -> list[Any]:
        values: Tensor | None = getattr(aggregation, name, None)
        return [None] * len(accepted) if values is None else values.tolist()

    columns = zip(
        accepted,
        column("scores"),
        column("normalized"),
        column("weight_scores"),
        column("accumulative"),
        column("weights") if aggregation else [0.0] * len(accepted),
        strict=True,
    )
    return [
        ClientReport(
            node=reply.node,
            num_examples=reply.num_examples,
            claimed_examples=reply.reported.claimed_examples,
            train_seconds=scalar(reply.reported.records, TRAIN_SECONDS),
            train_loss=scalar(reply.reported.records, TRAIN_LOSS),
            score=score,
            normalized=normalized,
            weight_score=weight_score,
            accumulative_influence=accumulative,
            weight=None if math.isnan(weight) else weight,
            note=printable("; ".join(filter(None, (reply.node.note, *reply.reported.notes)))),
        )
        for reply, score, normalized, weight_score, accumulative, weight in columns
    ]
