"""The record of one round: whom it asks, what came back, where that leads; written as it is."""

from __future__ import annotations

import logging
import math
import statistics
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from flwr.app import ArrayRecord
from flwr.serverapp import Grid
from torch import Tensor

from fedif_flower.errors import require
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.messages.metrics import TRAIN_LOSS, TRAIN_SECONDS, scalar
from fedif_flower.messages.screening import RefusedReply, ReplyStatus
from fedif_flower.messages.text import printable
from fedif_flower.messages.workspace import AcceptedReply, Asked
from fedif_flower.round import Aggregation, ModelVectors, RoundUpdates

if TYPE_CHECKING:
    from pandas import DataFrame

logger = logging.getLogger(__name__)

RoundStatus = Literal["advanced", "kept", "failed"]
"""What a round made of the model: a new one; nothing, as the rule decided; or nothing."""

# What a rule says of each client, by the name that it has in an Aggregation, and its column.
_COLUMN_OF_FIGURE = {
    "scores": "score",
    "normalized": "normalized",
    "weight_scores": "weight_score",
    "accumulative": "accumulative_influence",
    "weights": "weight",
}


@dataclass(frozen=True)
class ClientReport:
    """One client in one round; a number is ``None`` where the rule has no such thing.

    ``status`` is what became of it, ``rejection`` why it is not ``"accepted"``; ``note`` says what
    is odd about a client or its reply that was accepted nevertheless. ``claimed_examples`` are
    those that it reported, where it counts for fewer. ``asked_in`` is the round in which it was
    asked, where that is an earlier one.
    """

    node: ClientNode
    status: ReplyStatus = "accepted"
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
        return {
            "round": server_round,
            "partition_id": node.partition_id,
            "client_id": node.client_id,
            **values,
        }


@dataclass(frozen=True)
class Step:
    r"""A round's step as it was taken.

    .. math:: w_t - w_{t-1} = \sum_k \theta_k \sum_i a_i^{(t-k)} u_i^{(t-k)}

    with :math:`u_i^{(s)}` the updates of the round s that made a step, :math:`a_i^{(s)}` the
    coefficients applied to them and :math:`\theta_k` what a step counts for k steps later.

    Attributes
    ----------
    updates : RoundUpdates
        The replies :math:`u_i`. Their memory is used again for the next round's: what is needed
        until its replies come must be copied.
    nodes : sequence of ClientNode
        Who sent them, in the same order.
    before, after : ModelVectors
        The model that the clients received, and the one that the step led to, on the CPU.
    aggregation : Aggregation
        ``applied`` holds :math:`a_i`.
    shares : tuple of float
        :math:`\theta_0, \theta_1, \ldots`: empty where no step is carried on.
    """

    updates: RoundUpdates
    nodes: Sequence[ClientNode]
    before: ModelVectors
    after: ModelVectors
    aggregation: Aggregation
    shares: tuple[float, ...] = ()


@dataclass
class Round:
    """One round, from whom it asks to the model that it leads to.

    It is filled in the order in which a round happens, and callbacks get it as it is: in
    ``on_asked`` members are known, in ``on_round`` all but ``metrics``. Afterwards :meth:`release`
    lets go of what is large; the rest stays in the strategy's history, and is written.

    Attributes
    ----------
    round : int
        Its number t, from 1.
    clients : tuple of ClientReport
        What became of everybody asked, accepted ones first.
    status : str
        ``"advanced"``, ``"kept"`` or ``"failed"`` (see :data:`RoundStatus`).
    reason : str
        Why the model stays, if it does.
    round_seconds, aggregation_seconds, evaluation_seconds : float
        Until replies were screened; from there to the new model; of its evaluation.
    num_online : int
        How many were there when it began.
    evaluations : int
        How often the rule evaluated the model on the validation set.
    losses : tuple of float
        The validation losses at the start of a descent and after each step taken.
    metrics : mapping of str to float
        Those of the new model, by column of ``rounds.csv``, once it was evaluated.
    members : collection of ClientNode
        Those that get the model now.
    at_work : collection of ClientNode
        Those asked in earlier rounds whose replies still count.
    online : sequence of ClientNode
        Everybody who could be reached.
    paused : collection of int
        The client ids of those left out after errors, reached or not; where too few others can be
        asked, some of them are asked all the same.
    candidates : collection of ClientNode
        Those of whom ``members`` were drawn: neither at work, nor paused or barred
        unless there are too few others.
    grid : Grid, optional
        The way to all of them.
    asked : mapping of int to Asked
        By node, what members were asked, in this round or an earlier one.
    asked_at : float
        When this round's were, by ``time.perf_counter``.
    accepted : sequence of AcceptedReply
        The replies whose updates count.
    refused : sequence of RefusedReply
        Who has no usable reply, and why.
    is_models_fault : bool
        Whether most members raise an error on the model just made, and did not before.
    aggregation : Aggregation, optional
        The weights and scores of the accepted replies, where they lead nowhere too.
    step : Step, optional
        The step that was taken, if one was.
    arrays : ArrayRecord, optional
        The model to go on with, where that is another one or was taken back.
    error : Exception, optional
        Why the replies could not be weighed, if they could not.
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
    # Whom it asks.
    members: Collection[ClientNode] = ()
    at_work: Collection[ClientNode] = ()
    online: Sequence[ClientNode] = ()
    paused: Collection[int] = ()
    candidates: Collection[ClientNode] = ()
    grid: Grid | None = None
    asked: Mapping[int, Asked] = field(default_factory=dict)
    asked_at: float = 0.0
    # What came back.
    accepted: Sequence[AcceptedReply] = ()
    refused: Sequence[RefusedReply] = ()
    is_models_fault: bool = False
    # Where that leads.
    aggregation: Aggregation | None = None
    step: Step | None = None
    arrays: ArrayRecord | None = None
    error: Exception | None = None

    @property
    def failed(self) -> bool:
        """Whether there was no step to take, though nobody decided so."""
        return self.status == "failed"

    @property
    def refused_of_members(self) -> list[RefusedReply]:
        """Who of those that got the model in this round has no usable reply."""
        members = set(self.members)
        return [reply for reply in self.refused if reply.node in members]

    @property
    def failed_late(self) -> list[ClientNode]:
        """Who was asked in an earlier round, and answered now with an error or nonsense."""
        at_work = set(self.at_work)
        return [
            reply.node
            for reply in self.refused
            if reply.node in at_work and reply.status in ("failed", "refused")
        ]

    @property
    def counts(self) -> dict[str, int]:
        """How many replies were used, refused, failed and may yet come, by column."""
        counted = Counter(client.status for client in self.clients)
        return {
            "accepted": counted["accepted"],
            "rejected": counted["refused"],
            "failed": counted["failed"] + counted["away"] + counted["revoked"],
            "late": counted["late"],
        }

    @property
    def train_seconds(self) -> float | None:
        """The mean of its clients, where they say."""
        seconds = [
            client.train_seconds for client in self.clients if client.train_seconds is not None
        ]
        if not seconds:
            return None
        return statistics.fmean(seconds)

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

    def report_clients(self) -> None:
        """Note what became of everybody; warn of refused replies, and of what is odd about others.

        To be called once the round is weighed: figures of the aggregation are part of it.
        """
        figures = _figures_by_client(self.aggregation, len(self.accepted))
        reports = [
            self._report_accepted(reply, of_client)
            for reply, of_client in zip(self.accepted, figures, strict=True)
        ]
        reports += [self._report_refused(reply) for reply in self.refused]
        for report in reports:
            for remark in (report.rejection, report.note):
                if remark:
                    logger.warning("round %d: %s: %s", self.round, report.node.label, remark)
        self.clients = tuple(reports)
        if self.aggregation is not None:
            self.evaluations = self.aggregation.evaluations
            self.losses = self.aggregation.losses

    def _report_accepted(
        self, reply: AcceptedReply, figures: Mapping[str, float | None]
    ) -> ClientReport:
        """Return what is known of a client whose reply counts."""
        reported = reply.reported
        notes = [note for note in (reply.node.note, *reported.notes) if note]
        return ClientReport(
            reply.node,
            num_examples=reply.num_examples,
            claimed_examples=reported.claimed_examples,
            train_seconds=scalar(reported.records, TRAIN_SECONDS),
            train_loss=scalar(reported.records, TRAIN_LOSS),
            note=printable("; ".join(notes)),
            asked_in=self._earlier_round(reply.node),
            score=figures.get("score"),
            normalized=figures.get("normalized"),
            weight_score=figures.get("weight_score"),
            accumulative_influence=figures.get("accumulative_influence"),
            weight=figures.get("weight", 0.0),
        )

    def _report_refused(self, reply: RefusedReply) -> ClientReport:
        """Return what is known of a client without a usable reply."""
        return ClientReport(
            reply.node,
            status=reply.status,
            rejection=reply.reason,
            note=reply.node.note,
            asked_in=self._earlier_round(reply.node),
        )

    def _earlier_round(self, node: ClientNode) -> int | None:
        """Return in which earlier round a client was asked; ``None``: in this one, or never."""
        question = self.asked.get(node.node_id)
        if question is None or question.server_round == self.round:
            return None
        return question.server_round

    def release(self) -> None:
        """Let go of members, replies, updates and models: they are needed in the round alone."""
        self.at_work = ()
        self.online = ()
        self.paused = ()
        self.candidates = ()
        self.asked = {}
        self.accepted = ()
        self.refused = ()
        self.aggregation = None
        self.step = None
        self.arrays = None
        self.error = None
        self.grid = None


def _figures_by_client(
    aggregation: Aggregation | None, num_clients: int
) -> list[dict[str, float | None]]:
    """Return what a rule says of each of the accepted clients, by column of ``clients.csv``."""
    figures: list[dict[str, float | None]] = [{} for _ in range(num_clients)]
    for name, column in _COLUMN_OF_FIGURE.items():
        values: Tensor | None = getattr(aggregation, name, None)
        if values is None:
            continue
        for place, value in enumerate(values.tolist()):
            figures[place][column] = value
    for of_client in figures:
        weight = of_client.get("weight")
        # Beside a step of its own no client has a weight: NaN.
        if weight is not None and math.isnan(weight):
            of_client["weight"] = None
    return figures


def headline(columns: Mapping[str, Any]) -> str:
    """Return what a line of ``rounds.csv`` says first of the test split, in words.

    It is the first of the task's metrics, else the accuracy, else the loss.
    """
    figures = {}
    for name, value in columns.items():
        split, _, metric = name.partition("_")
        if split == "test" and metric and value not in (None, ""):
            figures[metric] = float(value)
    metric = first_metric(figures)
    if not metric:
        return ""
    form = ".1%" if metric == "accuracy" else ".4g"
    return f"test {metric.replace('_', ' ')} {format(figures[metric], form)}"


def first_metric(metrics: Collection[str]) -> str:
    """Return what is shown first: a metric of the task's own, else accuracy, else the loss.

    Empty where there is none of them.
    """
    usual = ("accuracy", "loss")
    for metric in metrics:
        if metric not in usual:
            return metric
    return next((metric for metric in usual if metric in metrics), "")


class History:
    """The reports and metrics of a strategy's rounds, from its first round in this process on.

    Attributes
    ----------
    rounds : list of Round
        In order.
    metrics : dict of int to dict
        By round (0: before the first), what evaluation and callbacks said of its model.
    """

    def __init__(self) -> None:
        self.rounds: list[Round] = []
        self.metrics: dict[int, dict[str, float]] = {}

    def __repr__(self) -> str:
        """Say how much there is, and how to see it."""
        return f"History({len(self.rounds)} rounds; to_pandas() shows them)"

    def after(self, last_round: int) -> list[Round]:
        """Return the rounds after one."""
        return [record for record in self.rounds if record.round > last_round]

    def forget_after(self, last_round: int) -> None:
        """Forget the rounds after one: they were given up, and are done again."""
        self.rounds = [record for record in self.rounds if record.round <= last_round]

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
            clients = [
                client.line(record.round) for record in self.rounds for client in record.clients
            ]
            return DataFrame(clients)
        lines: dict[int, dict[str, Any]] = {
            number: {"round": number, **metrics} for number, metrics in self.metrics.items()
        }
        for record in self.rounds:
            lines.setdefault(record.round, {}).update(record.line())
        return DataFrame([lines[number] for number in sorted(lines)])
