"""What a client reports beside its model, and how far it is believed."""

from __future__ import annotations

import logging
import math
import statistics
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

from fedif_flower.errors import ReplyError, require
from fedif_flower.messages.text import printable

logger = logging.getLogger(__name__)

TRAIN_LOSS, TRAIN_SECONDS = "train-loss", "train-seconds"
# Larger values are no figure of a training; their sums would leave floating point.
MAX_METRIC = 1e15
# Beside its model, a reply may hold so many bytes; all clients' are kept until the round ends.
MAX_RECORD_BYTES = 4 << 20
# Notes on one reply: more would fill logs.
MAX_NOTES = 10


@dataclass(frozen=True)
class ReplyLimits:
    """What a reply must report beside its model, and how much of it is believed.

    Attributes
    ----------
    weighted_by_key : str
        Name of the metric that holds the number of examples.
    max_num_examples : float
        A reply that claims more is refused.
    max_examples_ratio : float
        No client counts for more than so many times the round's median; 0: no such bound.
    """

    weighted_by_key: str
    max_num_examples: float
    max_examples_ratio: float = 0.0

    def __post_init__(self) -> None:
        """Raise ConfigError for bounds that no reply can keep."""
        require(self.max_num_examples > 0, "max_num_examples", self.max_num_examples, "> 0")
        ratio = self.max_examples_ratio
        require(ratio == 0 or ratio >= 1, "max_examples_ratio", ratio, "0, or >= 1")


@dataclass(frozen=True)
class ClientRecords:
    """A reply without its arrays, screened.

    Attributes
    ----------
    num_examples : float
        The client's weight: what it reports under ``weighted_by_key``.
    records : RecordDict
        Every record but the ArrayRecord, as it came; metrics that are no number, absurd or
        impossible are left out, and names are printable.
    notes : tuple of str
        What was changed or left out, and why.
    claimed_examples : float, optional
        What it reported, where it counts for less.
    """

    num_examples: float
    records: RecordDict
    notes: tuple[str, ...] = ()
    claimed_examples: float | None = None


def screen_records(
    content: RecordDict, limits: ReplyLimits, max_seconds: float = math.inf
) -> ClientRecords:
    """Check what a reply holds beside its arrays.

    Parameters
    ----------
    content : RecordDict
        The reply.
    limits : ReplyLimits
        What it must report. The number of examples may be any number > 0.
    max_seconds : float
        No client can have trained for longer: it was asked so many seconds ago.

    Raises
    ------
    ReplyError
        If the number of examples is missing or not allowed, or if the records are too large.
    """
    # Not ``content.metric_records``: that leaves a cycle of references, and with it the arrays,
    # until the garbage collector comes by.
    named = [(name, r) for name, r in content.items() if not isinstance(r, ArrayRecord)]
    size = sum(record.count_bytes() + len(name) for name, record in named)
    if size > MAX_RECORD_BYTES:
        raise ReplyError(
            f"{size} bytes beside the model's arrays; allowed: at most {MAX_RECORD_BYTES}"
        )
    num_examples = _num_examples([record for _, record in named], limits)
    notes: list[str] = []
    screened = RecordDict()
    for name, record in named:
        if isinstance(record, MetricRecord):
            record = _credible(record, limits.weighted_by_key, max_seconds, notes)
            if limits.weighted_by_key in record:
                record[limits.weighted_by_key] = num_examples
        screened.setdefault(printable(name), record)
    return ClientRecords(num_examples, screened, tuple(notes))


def bound_examples(
    reported: Sequence[ClientRecords], limits: ReplyLimits
) -> Sequence[ClientRecords]:
    """Let no client count for more than ``max_examples_ratio`` times the round's median.

    A bound and no refusal: a client that does have many examples still takes part.
    """
    if not reported or not limits.max_examples_ratio:
        return reported
    # The lower of two middle ones: of two clients, the smaller is believed.
    key, median = limits.weighted_by_key, statistics.median_low(r.num_examples for r in reported)
    maximum = _whole(limits.max_examples_ratio * median)
    bounded = list(reported)
    for i, one in enumerate(reported):
        if one.num_examples > maximum:
            note = (
                f"{key} is {one.num_examples:g}, more than {limits.max_examples_ratio:g} times the "
                f"round's median of {median:g}: counts as {maximum:g}"
            )
            for record in one.records.values():
                if isinstance(record, MetricRecord) and key in record:
                    record[key] = maximum
            bounded[i] = ClientRecords(maximum, one.records, (*one.notes, note), one.num_examples)
    return bounded


def scalar(records: RecordDict, name: str) -> float | None:
    """Return one number of a client's metrics; ``train_loss`` and ``train-loss`` are one name."""
    for record in records.values():
        for key, value in record.items() if isinstance(record, MetricRecord) else ():
            if key.replace("_", "-") == name and isinstance(value, int | float):
                return float(value)
    return None


def screen_evaluations(
    replies: Iterable[Message], asked: Collection[int], limits: ReplyLimits
) -> list[RecordDict]:
    """Return the records of well-formed evaluation replies, one for each node that was asked.

    Parameters
    ----------
    replies : iterable of Message
        What came, in any order; nothing in them is believed.
    asked : collection of int
        Node ids. A reply of another node, or a second one, is left out.
    limits : ReplyLimits
        How many examples and metrics a reply may have.
    """
    waiting, accepted = set(asked), []
    for reply in replies:
        node_id = reply.metadata.src_node_id
        try:
            if node_id not in waiting:
                raise ReplyError("it was not asked, or has answered before")
            waiting.remove(node_id)
            if reply.has_error():
                raise ReplyError(f"client error {reply.error.code}: {reply.error.reason}")
            accepted.append(screen_records(reply.content, limits))
        except Exception as error:  # nothing a client sends may stop the server
            logger.warning("evaluation of node %d refused: %s", node_id, printable(error))
    return [one.records for one in bound_examples(accepted, limits)]


def _num_examples(records: Iterable[object], limits: ReplyLimits) -> float:
    """Return the first number of examples: an int where it is a whole number."""
    key, maximum = limits.weighted_by_key, limits.max_num_examples
    found = (r[key] for r in records if isinstance(r, MetricRecord) and key in r)
    if (value := next(found, None)) is None:
        raise ReplyError(f"metric {key!r} is missing")
    if isinstance(value, list) or not math.isfinite(value):
        raise ReplyError(f"metric {key!r} is {str(value)[:40]}, not a finite number")
    if not 0 < value <= maximum:
        raise ReplyError(f"metric {key!r} is {value:g}; allowed: more than 0, at most {maximum:g}")
    return _whole(value)


def _whole(value: float) -> float:
    """Return ``value`` as an int where it is a whole number."""
    return int(value) if value == int(value) else value


def _credible(
    record: MetricRecord, weighted_by_key: str, max_seconds: float, notes: list[str]
) -> MetricRecord:
    """Return a record's metrics but for NaN and what cannot be, which ``notes`` names."""
    credible = MetricRecord()
    for name, value in record.items():
        shown = name if name == weighted_by_key else printable(name)
        is_time = name.replace("_", "-") == TRAIN_SECONDS
        low, high = (0.0, min(max_seconds, MAX_METRIC)) if is_time else (-MAX_METRIC, MAX_METRIC)
        numbers = value if isinstance(value, list) else [value]
        wrong = [number for number in numbers if not low <= number <= high]  # NaN too.
        if not wrong:
            credible.setdefault(shown, value)
        elif len(notes) < MAX_NOTES:
            words = f"metric {shown!r} is {wrong[0]:g} and left out: not in {low:g} to {high:g}"
            notes.append(words)
    return credible
