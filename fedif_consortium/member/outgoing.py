"""What may leave a member's house: the update of the model that came, and figures on a list.

A reply is made anew, of what the policy allows and in an order of its own. So nothing leaves by
names, the order of things, a header's padding or the low bits of a figure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, NoReturn, Self

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MessageType, MetricRecord, RecordDict
from numpy.typing import NDArray
from pydantic import StringConstraints, model_validator

from fedif_consortium.member.node_log import NodeLog
from fedif_consortium.member.privacy import Floats, PrivacyBudget, add_noise
from fedif_flower.errors import RefusedByMemberError, ReplyError, require
from fedif_flower.messages.arrays import is_statistic, pack_array, view_array
from fedif_flower.messages.instructions import VECTOR_RECORD
from fedif_flower.messages.text import printable
from fedif_flower.settings import Settings, setting

Values = NDArray[np.generic]
_MODEL = "arrays"  # The record that is the model, in messages and replies.
_COUNTS = 10**7  # Whole numbers below leave as they are: examples, for a weighted mean.
_KINDS: Mapping[str, type | UnionType] = {"number": int | float, "text": str, "bytes": bytes}
_Row = Annotated[str, StringConstraints(pattern=r"^\S+ (float(32|64)|u?int(8|16|32|64))$")]
_BESIDE = "with-updates"
_Value = Annotated[
    str,
    StringConstraints(
        pattern=rf"^\S+ (number(\[([1-9]|1[0-5])\])?|bytes\[\d+\])( {_BESIDE})?$|^\S+ text\[\d+\]$"
    ),
]


class LeavesSettings(Settings):
    """``[leaves]`` of a member's policy."""

    arrays: list[_Row] = setting(
        [],
        "Rows of numbers beside the model's arrays, each `RECORD.NAME DTYPE`.",
        allowed='a list such as ["arrays.masked-update uint64"]',
    )
    buffers: bool = setting(
        False,
        "Whether training may change integer arrays and batch norm's statistics; else they come "
        "back as they were sent.",
    )
    metrics: list[str] = setting(
        ["metrics.num-examples", "metrics.train-loss", "metrics.train-seconds"],
        "Metrics, each `RECORD.KEY`.",
        allowed='a list of names, each "RECORD.KEY"',
    )
    metric_digits: int = setting(
        4, "Significant digits of a metric; the rest is rounded away.", ge=1, le=15
    )
    config: list[_Value] = setting(
        [
            *("node.partition-id number", "node.attack text[40]", "preflight.time number[10]"),
            *(f"preflight.{check} text[200]" for check in ("data", "training", "disk")),
            *("preflight.masking text[200]", "preflight.signing-key text[200]"),
            "statement.refused text[200]",
        ],
        "Values of ConfigRecords, each `RECORD.KEY FORMAT`: a `number` (or true, false), rounded "
        "as metrics are or to the digits of `number[DIGITS]`, `bytes[MOST]`, or `text[MOST]`, in "
        "bytes. They leave in the answer to a query alone, but for a number or bytes "
        f"`{_BESIDE}`.",
        allowed='a list such as ["node.attack text[40]"]',
    )
    clip_length: float = setting(
        0.0, "A longer update, in L2, is shortened to this; 0: none is.", ge=0
    )
    noise_multiplier: float = setting(
        0.0,
        "Standard deviation of the noise on each parameter, in clip-lengths; 0: no noise.",
        ge=0,
        le=1e6,
    )
    target_delta: float = setting(1e-5, "Delta at which epsilon is stated.", gt=0, lt=1)
    most_epsilon: float = setting(
        8.0, "The privacy budget of all runs together: a reply beyond it is refused.", gt=0
    )

    @model_validator(mode="after")
    def _leave_nothing_without_noise(self) -> Self:
        clipped, length = self.clip_length > 0 or not self.noise_multiplier, self.clip_length
        require(clipped, "clip_length", length, "more than 0 where noise_multiplier is")
        for name in ("arrays", "buffers") if self.noise_multiplier else ():
            words, own = "none with noise: they would leave without it", getattr(self, name)
            require(not own, name, own, words)
        beside = [value for value in self.config if value.endswith(_BESIDE)]
        words = f"nothing {_BESIDE} where there is noise: it would leave without it"
        require(not (beside and self.noise_multiplier), "config", beside, words)
        return self


class OutgoingPolicy:
    """Judges each reply of an app before it leaves.

    Parameters
    ----------
    settings : LeavesSettings
        The member's.
    log : NodeLog
        In its folder lies what noise has cost so far, and each release gets a line there.

    Raises
    ------
    ConfigError
        If noise has no accountant, or a single reply would cost more than the budget.
    """

    def __init__(self, settings: LeavesSettings, log: NodeLog) -> None:
        self.settings = settings
        self._rows = dict(text.split(" ") for text in settings.arrays)
        self._values = dict(text.split(" ", 1) for text in settings.config)
        self._budget: PrivacyBudget | None = None
        if settings.noise_multiplier:
            limits = settings.noise_multiplier, settings.target_delta, settings.most_epsilon
            self._budget = PrivacyBudget(log, *limits)

    def check(
        self, received: RecordDict, reply: RecordDict, run_id: int, kind: str = MessageType.TRAIN
    ) -> RecordDict:
        """Return the reply that may leave.

        Parameters
        ----------
        received : RecordDict
            The content of the message that the reply answers.
        reply : RecordDict
            What the app wants to send: nothing in it is believed.
        run_id : int
            The run, for the log.
        kind : str
            Flower's type of that message: texts leave in the answer to a query alone.

        Raises
        ------
        RefusedByMemberError
            If nothing may. Its ``told`` is what the server may learn of it.
        StorageError
            If the spent budget cannot be written.
        """
        if VECTOR_RECORD in reply and self.settings.clip_length:
            # Its values are no update of the vector that came, as the model's are.
            _refuse("no bound on the update's length holds for a vector beside it", VECTOR_RECORD)
        is_answer = kind.partition(".")[0] == MessageType.QUERY
        leaving: dict[str, ArrayRecord | MetricRecord | ConfigRecord] = {}
        # The model comes last: a reply that may not leave costs nothing of the budget.
        for name in sorted(reply, key=lambda name: (name == _MODEL, name)):
            record = reply[name]
            if not len(record):
                continue  # Its name would be text that is on no list.
            if isinstance(record, ArrayRecord):
                sent = received.get(_MODEL) if name == _MODEL else None
                leaving[name] = self._arrays(name, sent, record, run_id)
            elif isinstance(record, MetricRecord):
                leaving[name] = MetricRecord(dict(self._metrics(name, record)))
            else:
                leaving[name] = ConfigRecord(dict(self._config(name, record, is_answer)))
        return RecordDict(leaving)

    @np.errstate(invalid="ignore", over="ignore")  # What overflows is refused by its length.
    def _arrays(self, record: str, sent: object, returned: ArrayRecord, run_id: int) -> ArrayRecord:
        """Return a record as it may leave: its update shortened, and with noise."""
        model: Mapping[str, Values] = {}
        if isinstance(sent, ArrayRecord):
            model = _views(sent, "the model that came cannot be read")
        values = _views(returned, "an array cannot be read")
        if not values.keys().isdisjoint(model) and (missing := model.keys() - values.keys()):
            _refuse("an array of the model is missing", f"{record}.{min(missing)}")
        # The app's own order would be text.
        order = [*(n for n in model if n in values), *sorted(values.keys() - model.keys())]
        leaving = {name: values[name] for name in order}
        updates: dict[str, Floats] = {}  # Of what training may change.
        for name, own in leaving.items():
            path, came = f"{record}.{name}", model.get(name)
            if came is None:
                if path not in self._rows:
                    _refuse("an array is neither the model's nor on the list", path)
                if own.ndim != 1 or own.dtype != self._rows[path]:
                    _refuse("an array is not as the list has it", f"{path} {own.dtype}{own.shape}")
            elif (own.dtype, own.shape) != (came.dtype, came.shape):
                _refuse(
                    "an array is of another type or shape than the model's",
                    f"{path} {own.dtype}{own.shape}, not {came.dtype}{came.shape}",
                )
            elif came.dtype.kind == "f" and not is_statistic(name) and np.isfinite(came).all():
                updates[name] = own.astype(np.float64) - came.astype(np.float64)
            elif own.tobytes() != came.tobytes():
                if not self.settings.buffers:
                    _refuse("an array that is no parameter has changed", f"{path}; see buffers")
                if own.dtype.kind == "f" and not np.isfinite(own).all():
                    _refuse("an array is not finite", path)
        length = math.sqrt(sum(float(np.sum(update**2)) for update in updates.values()))
        if not math.isfinite(length):
            _refuse("the update is not finite")
        limit = self.settings.clip_length
        factor, std = min(1.0, limit / length) if limit and length else 1.0, 0.0
        if self._budget is not None and updates:
            self._budget.charge(run_id)
            std = self.settings.noise_multiplier * limit
        for name, update in updates.items() if std or factor < 1 else ():
            came = model[name]
            moved = factor * update
            moved = came.astype(np.float64) + (add_noise(moved, std) if std else moved)
            leaving[name] = moved.astype(came.dtype)
        return ArrayRecord({name: pack_array(own) for name, own in leaving.items()})

    def _metrics(self, record: str, metrics: MetricRecord) -> Iterator[tuple[str, float]]:
        for name in sorted(metrics):
            path, value = f"{record}.{name}", metrics[name]
            if path not in self.settings.metrics:
                _refuse("a metric is not on the list", path)
            if isinstance(value, list):
                _refuse("a metric is no single number", path)
            yield name, self._number(path, value, self.settings.metric_digits)

    def _config(
        self, record: str, config: ConfigRecord, is_answer: bool
    ) -> Iterator[tuple[str, Any]]:
        for name in sorted(config):
            path, value = f"{record}.{name}", config[name]
            if path not in self._values:
                _refuse("a value of a ConfigRecord is not on the list", path)
            form, _, beside = self._values[path].partition(" ")
            kind, _, most = form.rstrip("]").partition("[")
            if not isinstance(value, _KINDS[kind]):
                _refuse("a value of a ConfigRecord is of another kind than the list says", path)
            if not (is_answer or beside):
                _refuse("a value of a ConfigRecord leaves in the answer to a query alone", path)
            if isinstance(value, int | float):
                yield name, self._number(path, value, int(most or self.settings.metric_digits))
                continue
            held = value.encode(errors="surrogatepass") if isinstance(value, str) else value
            if isinstance(held, bytes) and len(held) > int(most):
                _refuse("a value of a ConfigRecord is too long", f"{path}, of {len(held)} bytes")
            yield name, value

    def _number(self, path: str, value: float, digits: int) -> float:
        """Return a number as it may leave: a whole one below ten million, or so many digits."""
        if isinstance(value, bool):
            return value
        is_count = float(value).is_integer() and abs(value) < _COUNTS
        found = (value if is_count else rounded(value, digits)) + 0  # -0 becomes 0.
        if not math.isfinite(found) or (isinstance(found, int) and abs(found) >= 2**63):
            _refuse("a number is not finite", path)
        return found


def rounded(value: float, digits: int) -> float:
    """Return a number with so many significant digits, 1 to 15; an int stays one."""
    if isinstance(value, int):
        return round(value, min(0, digits - len(str(abs(value)))))
    return float(f"{value:.{digits - 1}e}") + 0.0  # -0 becomes 0.


def _views(arrays: ArrayRecord, told: str) -> dict[str, Values]:
    try:
        return {name: view_array(array) for name, array in arrays.items()}
    except (ReplyError, ValueError) as error:
        _refuse(told, str(error))


def _refuse(told: str, detail: str = "") -> NoReturn:
    raise RefusedByMemberError(told, printable(detail))
