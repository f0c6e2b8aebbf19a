"""The record of one round: whom it asks, what comes back, and the model that this leads to.

It also holds the tables of all rounds: lines for ``rounds.csv`` and ``clients.csv``, and
:class:`History`.
"""

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
from fedif_flower.messages.workspace import AcceptedReply, Question
from fedif_flower.round import Aggregation, ModelVectors, RoundUpdates

if TYPE_CHECKING:
    from pandas import DataFrame

logger = logging.getLogger(__name__)

RoundStatus = Literal["advanced", "kept", "failed"]
"""``"advanced"``: there is a new model. ``"kept"``: the rule gave every update the weight 0, or
nobody was asked, so the model stays. ``"failed"``: the model stays, or was taken back, for any
other reason."""

# The figures of each client: from their attribute of an Aggregation to their column.
_COLUMN_OF_FIGURE = {
    "scores": "score",
    "normalized": "normalized",
    "weight_scores": "weight_score",
    "accumulative": "accumulative_influence",
    "weights": "weight",
}


@dataclass(frozen=True)
class ClientReport:
    """One client in one round; a number is ``None`` if it is not known, or the rule gives none.

    Attributes
    ----------
    node : ClientNode
        The client.
    status : str
        ``"accepted"`` or why there is no usable reply
        (see :data:`~fedif_flower.messages.screening.ReplyStatus`).
    rejection : str
        The reason in words; empty if the reply was accepted.
    num_examples : float, optional
        The number of examples for which its update counts.
    train_seconds, train_loss : float, optional
        The duration and the loss of its training, as it reported them.
    score, normalized, weight_score, accumulative_influence, weight : float, optional
        The rule's figures of the client (see :class:`~fedif_flower.round.Aggregation`).
    note : str
        What is odd about the client or its reply; empty if nothing is.
    claimed_examples : float, optional
        The number of examples that it reported, if it counts for fewer.
    asked_in : int, optional
        The round in which it was asked, if that is an earlier one.
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
        """Return the client's line of ``clients.csv``, by column."""
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
    r"""A step that a round took: a sum of clients' updates.

    .. math:: w_t - w_{t-1} = \sum_k \theta_k \sum_i a_i^{(t-k)} u_i^{(t-k)}

    with :math:`w_t` the model after the t-th round that took a step, :math:`u_i^{(s)}` the updates
    of the s-th such round, :math:`a_i^{(s)}` the coefficients by which they were multiplied, and
    :math:`\theta_k` the factor that a server optimizer gives to the step of k steps before. Without
    a server optimizer :math:`\theta_0` is 1, and the others are 0.

    Attributes
    ----------
    updates : RoundUpdates
        The replies with their updates :math:`u_i`. Their memory is reused as soon as replies of
        the next round come: copy what you need for longer.
    nodes : sequence of ClientNode
        The clients that sent them, in the same order.
    before, after : ModelVectors
        The model that the clients received, and the one that the step led to, on the CPU.
    aggregation : Aggregation
        The weights; its ``applied`` holds the coefficients :math:`a_i`.
    step_factors : tuple of float
        :math:`\theta_0, \theta_1, \ldots`; empty if no server optimizer gives earlier steps a
        factor.
    """

    updates: RoundUpdates
    nodes: Sequence[ClientNode]
    before: ModelVectors
    after: ModelVectors
    aggregation: Aggregation
    step_factors: tuple[float, ...] = ()


@dataclass
class Round:
    """The record of one round, filled step by step while the round goes on.

    Callbacks get it as far as it is filled: in ``on_asked`` the members are known, in ``on_round``
    everything but ``metrics``. After that :meth:`release` drops what is large. The rest stays in
    the strategy's history, and is written to ``rounds.csv`` and ``clients.csv``.

    Attributes
    ----------
    round : int
        The round's number t, from 1.
    clients : tuple of ClientReport
        A report on each client with an accepted or refused reply, accepted ones first.
    status : str
        ``"advanced"``, ``"kept"`` or ``"failed"`` (see :data:`RoundStatus`).
    reason : str
        Why the model stays, if it does.
    round_seconds, aggregation_seconds, evaluation_seconds : float
        The time from asking the members until the last reply, without the time that screening took;
        the time of screening, weighing and combining the replies; the time of evaluating the new
        model.
    num_online : int
        The number of nodes online when the round began.
    evaluations : int
        How often the rule evaluated the model on the validation set.
    losses : tuple of float
        The validation losses at the start of an influence descent and after each step taken.
    metrics : mapping of str to float
        The new model's metrics, by column of ``rounds.csv``, once it was evaluated.
    members : collection of ClientNode
        The clients that are sent the model in this round.
    at_work : collection of ClientNode
        The clients that were asked in earlier rounds, and whose replies still count.
    online : sequence of ClientNode
        All nodes that were online when the round began.
    paused : collection of int
        The client ids of members that are paused after errors, online or not. If too few others
        can be asked, paused members are asked all the same.
    candidates : collection of ClientNode
        The nodes from which ``members`` were drawn. They are not at work, and neither paused nor
        barred, unless too few others are left.
    grid : Grid, optional
        The connection to the nodes.
    asked : mapping of int to Question
        By node id, the question to each client whose reply counts, of this round or an earlier one.
    asked_at : float
        When this round's members were asked, by ``time.perf_counter``.
    accepted : sequence of AcceptedReply
        The replies whose updates count.
    refused : sequence of RefusedReply
        The clients without a usable reply, and why.
    is_models_fault : bool
        Whether more than half of the members' apps raise an error, without an error the last time
        that they were asked, on a model that is not proven: the model is taken to be the cause.
    aggregation : Aggregation, optional
        The weights and scores of the accepted replies, also if they leave the model where it is.
    step : Step, optional
        The step that was taken, if one was.
    arrays : ArrayRecord, optional
        The model to go on with: the new one, the one that stays because the replies leave it where
        it is, or the one to which it was taken back. ``None`` if the round failed otherwise.
    error : Exception, optional
        The error because of which the replies could not be weighed, if there was one.
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
    # Whom the round asks.
    members: Collection[ClientNode] = ()
    at_work: Collection[ClientNode] = ()
    online: Sequence[ClientNode] = ()
    paused: Collection[int] = ()
    candidates: Collection[ClientNode] = ()
    grid: Grid | None = None
    asked: Mapping[int, Question] = field(default_factory=dict)
    asked_at: float = 0.0
    # What came back.
    accepted: Sequence[AcceptedReply] = ()
    refused: Sequence[RefusedReply] = ()
    is_models_fault: bool = False
    # The model that the replies lead to.
    aggregation: Aggregation | None = None
    step: Step | None = None
    arrays: ArrayRecord | None = None
    error: Exception | None = None

    @property
    def failed(self) -> bool:
        """Whether the model stays although the rule did not decide so."""
        return self.status == "failed"

    @property
    def refused_of_members(self) -> list[RefusedReply]:
        """The refused replies of members that were sent the model in this round."""
        members = set(self.members)
        return [reply for reply in self.refused if reply.node in members]

    @property
    def failed_late(self) -> list[ClientNode]:
        """The clients asked in an earlier round whose reply came now, as an error or refused."""
        at_work = set(self.at_work)
        failed = [reply.node for reply in self.refused if reply.status in ("failed", "refused")]
        return [node for node in failed if node in at_work]

    @property
    def counts(self) -> dict[str, int]:
        """The numbers of replies that were used, were refused, failed and are late, by column."""
        counted = Counter(client.status for client in self.clients)
        return {
            "accepted": counted["accepted"],
            "rejected": counted["refused"],
            "failed": counted["failed"] + counted["away"] + counted["revoked"],
            "late": counted["late"],
        }

    @property
    def train_seconds(self) -> float | None:
        """The mean duration of the clients' training, over those that report it."""
        seconds = [
            client.train_seconds for client in self.clients if client.train_seconds is not None
        ]
        if not seconds:
            return None
        return statistics.fmean(seconds)

    @property
    def headline(self) -> str:
        """The metric that the progress display shows for the round; empty without evaluation."""
        return headline(self.metrics)

    def line(self) -> dict[str, Any]:
        """Return the round's line of ``rounds.csv``, by column."""
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
        """Fill ``clients``; warn of each refused reply, and of what is odd about accepted ones.

        Call it once the replies are weighed, since the reports include the aggregation's figures.
        """
        figures = _figures_by_client(self.aggregation, len(self.accepted))
        reports = [
            self._report_accepted(reply, client_figures)
            for reply, client_figures in zip(self.accepted, figures, strict=True)
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
        """Return the report on a client whose reply was accepted."""
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
        """Return the report on a client without a usable reply."""
        return ClientReport(
            reply.node,
            status=reply.status,
            rejection=reply.reason,
            note=reply.node.note,
            asked_in=self._earlier_round(reply.node),
        )

    def _earlier_round(self, node: ClientNode) -> int | None:
        """Return the earlier round in which a client was asked; ``None``: this one, or none."""
        question = self.asked.get(node.node_id)
        if question is None or question.server_round == self.round:
            return None
        return question.server_round

    def release(self) -> None:
        """Drop what only the round itself needs: replies, updates, models, most lists of nodes."""
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
    """Return the rule's figures of each accepted client, by column of ``clients.csv``."""
    figures: list[dict[str, float | None]] = [{} for _ in range(num_clients)]
    for name, column in _COLUMN_OF_FIGURE.items():
        values: Tensor | None = getattr(aggregation, name, None)
        if values is None:
            continue
        for place, value in enumerate(values.tolist()):
            figures[place][column] = value
    for client_figures in figures:
        weight = client_figures.get("weight")
        # A rule that returns a step gives no client a weight: it is NaN, and written as missing.
        if weight is not None and math.isnan(weight):
            client_figures["weight"] = None
    return figures


def headline(columns: Mapping[str, Any]) -> str:
    """Return the first metric of the test split in a line of ``rounds.csv``, in words.

    ``"test accuracy 91.3%"``, say. Which metric is first: see :func:`first_metric`. The text is
    empty if the line has no metric of the test split.
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
    """Return the metric to show first: a metric of the task's own, else accuracy, else the loss.

    Empty if ``metrics`` are empty.
    """
    usual = ("accuracy", "loss")
    for metric in metrics:
        if metric not in usual:
            return metric
    return next((metric for metric in usual if metric in metrics), "")


class History:
    """The records and metrics of the rounds that a strategy has run in this process.

    Attributes
    ----------
    rounds : list of Round
        The records, in order.
    metrics : dict of int to dict
        By round (0: before the first), the metrics that the user's evaluation and the callbacks
        gave for its model.
    """

    def __init__(self) -> None:
        self.rounds: list[Round] = []
        self.metrics: dict[int, dict[str, float]] = {}

    def __repr__(self) -> str:
        """Return the number of rounds, and how to see them."""
        return f"History({len(self.rounds)} rounds; to_pandas() shows them)"

    def after(self, last_round: int) -> list[Round]:
        """Return the records of the rounds after ``last_round``."""
        return [record for record in self.rounds if record.round > last_round]

    def forget_after(self, last_round: int) -> None:
        """Drop the records of rounds after ``last_round``: an error ended them; they are redone."""
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
        from pandas import DataFrame  # Imported here, since nothing else needs pandas.

        require(table in ("clients", "rounds"), "table", table, "'clients' or 'rounds'")
        if table == "clients":
            client_lines: list[dict[str, Any]] = []
            for record in self.rounds:
                client_lines += [client.line(record.round) for client in record.clients]
            return DataFrame(client_lines)
        lines: dict[int, dict[str, Any]] = {
            number: {"round": number, **metrics} for number, metrics in self.metrics.items()
        }
        for record in self.rounds:
            lines.setdefault(record.round, {}).update(record.line())
        return DataFrame([lines[number] for number in sorted(lines)])
