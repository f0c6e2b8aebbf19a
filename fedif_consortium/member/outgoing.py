"""What may leave a member's house: the update of the model that came, and figures on a list.

A reply is made anew, of what the policy allows and in an order of its own. So nothing leaves by
names, the order of things, a header's padding or the low bits of a figure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Any, NoReturn, Self

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MessageType, MetricRecord, RecordDict
from numpy.typing import NDArray
from pydantic import field_validator, model_validator

from fedif_consortium.member.node_log import PRIVACY, NodeLog
from fedif_consortium.member.privacy import Floats, PrivacyBudget, add_noise
from fedif_flower.errors import ConfigError, RefusedByMemberError, ReplyError
from fedif_flower.messages.arrays import pack_array, view_array
from fedif_flower.messages.instructions import VECTOR_RECORD
from fedif_flower.messages.statistics import is_statistic
from fedif_flower.messages.text import printable
from fedif_flower.settings import RefusedValueError, Settings, setting

Values = NDArray[np.generic]
_NAMES = 'a list of names, each "RECORD.KEY"'
_ARRAY = re.compile(r"(\S+) ([a-z]+\d*)")
_VALUE = re.compile(r"(\S+) (number|(?:text|bytes)\[(\d+)\])")
_MODEL = "arrays"  # The record that is the model, in messages and replies.
_BLOCK = 1 << 20
_LARGEST_INTEGER = 2**63 - 1
_COUNTS = 10**7  # Whole numbers below leave as they are: examples, for a weighted mean.
_KINDS: Mapping[str, type | UnionType] = {"number": int | float, "text": str, "bytes": bytes}


class LeavesSettings(Settings):
    """``[leaves]`` of a member's policy."""

    arrays: list[str] = setting(
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
        allowed=_NAMES,
    )
    metric_digits: int = setting(
        4, "Significant digits of a metric; the rest is rounded away.", ge=1, le=15
    )
    config: list[str] = setting(
        [
            *("node.partition-id number", "node.attack text[40]", "preflight.time number"),
            *(f"preflight.{check} text[200]" for check in ("data", "training", "disk")),
            *("preflight.masking text[200]", "preflight.signing-key text[200]"),
            *("statement.kept number", "statement.wanted number", "statement.reason text[200]"),
        ],
        "Values of ConfigRecords, each `RECORD.KEY FORMAT`: a `number` (or true, false), "
        "`bytes[MOST]`, or `text[MOST]`, in bytes, which leaves in the answer to a query alone.",
        allowed='a list such as ["node.attack text[40]"]',
    )
    longest_error: int = setting(
        0, "Characters of an app's error message that leave; 0: only that there was one.", ge=0
    )
    longest_update: float = setting(
        0.0, "A longer update, in L2, is refused; 0: none is.", ge=0, allowed="a number >= 0"
    )
    clip_length: float = setting(0.0, "A longer update is shortened to this; 0: none is.", ge=0)
    noise_multiplier: float = setting(
        0.0,
        "Standard deviation of the noise on each parameter, in clip-lengths; 0: no noise.",
        ge=0,
        le=1e6,
        allowed="0, or a number >= 0.01 and <= 1e6",
    )
    target_delta: float = setting(1e-5, "Delta at which epsilon is stated.", gt=0, lt=1)
    most_epsilon: float = setting(
        8.0, "The privacy budget of all runs together: a reply beyond it is refused.", gt=0
    )

    @field_validator("noise_multiplier")
    @classmethod
    def _is_noise(cls, value: float) -> float:
        if 0 < value < 0.01:
            raise ValueError
        return value

    @field_validator("arrays")
    @classmethod
    def _are_arrays(cls, value: list[str]) -> list[str]:
        _listed_arrays(value)
        return value

    @field_validator("config")
    @classmethod
    def _are_values(cls, value: list[str]) -> list[str]:
        _listed_values(value)
        return value

    @model_validator(mode="after")
    def _leave_nothing_without_noise(self) -> Self:
        if not self.noise_multiplier:
            return self
        if not self.clip_length:
            raise RefusedValueError("clip_length", "more than 0 where noise_multiplier is")
        for name in ("arrays", "buffers"):
            if getattr(self, name):
                raise RefusedValueError(
                    name, "none where noise_multiplier > 0: they would leave without noise"
                )
        if self.longest_update:
            raise RefusedValueError(
                "longest_update", "0 where noise_multiplier > 0: a refusal tells of the update"
            )
        return self


def _listed_arrays(texts: Iterable[str]) -> dict[str, np.dtype[np.generic]]:
    """Return the type of each array on a list."""
    try:
        return {name: np.dtype(dtype) for name, dtype in _matches(_ARRAY, texts)}
    except TypeError as error:
        raise ValueError from error


def _listed_values(texts: Iterable[str]) -> dict[str, tuple[str, int]]:
    """Return the kind of each value on a list, and its most bytes."""
    return {
        name: (form.partition("[")[0], int(most or 8))
        for name, form, most in _matches(_VALUE, texts)
    }


def _matches(pattern: re.Pattern[str], texts: Iterable[str]) -> Iterator[tuple[str, ...]]:
    for text in texts:
        found = pattern.fullmatch(text)
        if found is None:
            raise ValueError
        yield found.groups()


class OutgoingPolicy:
    """Judges each reply of an app before it leaves.

    Parameters
    ----------
    settings : LeavesSettings
        The member's.
    log : NodeLog, optional
        In its folder lies what noise has cost so far, and each release gets a line there. Noise
        needs it.

    Raises
    ------
    ConfigError
        If noise has no log, no accountant, or a single reply would cost more than the budget.
    """

    def __init__(self, settings: LeavesSettings, log: NodeLog | None = None) -> None:
        self.settings, self._log = settings, log
        self._listed = _listed_arrays(settings.arrays)
        self._values = _listed_values(settings.config)
        self._budget: PrivacyBudget | None = None
        if settings.noise_multiplier:
            if log is None:
                raise ConfigError("noise-multiplier needs a log, where the spent budget is kept")
            self._budget = PrivacyBudget(
                log.folder,
                noise_multiplier=settings.noise_multiplier,
                delta=settings.target_delta,
                most_epsilon=settings.most_epsilon,
            )

    def check(
        self,
        received: RecordDict,
        reply: RecordDict,
        run_id: int = 0,
        kind: str = MessageType.TRAIN,
    ) -> RecordDict:
        """Return the reply that may leave.

        Parameters
        ----------
        received : RecordDict
            The content of the message that the reply answers.
        reply : RecordDict
            What the app wants to send: nothing in it is believed.
        run_id : int
            The run, for the privacy budget.
        kind : str
            Flower's type of that message: texts leave in the answer to a query alone.

        Raises
        ------
        RefusedByMemberError
            If nothing may. Its ``told`` is what the server may learn of it.
        StorageError
            If the spent budget cannot be written.
        """
        limits, is_answer = self.settings, kind.partition(".")[0] == MessageType.QUERY
        if VECTOR_RECORD in reply and (limits.longest_update or limits.clip_length):
            # Its values are no update of the vector that came, as the model's are.
            _refuse("no bound on the update's length holds for a vector beside it", VECTOR_RECORD)
        leaving: dict[str, ArrayRecord | MetricRecord | ConfigRecord] = {}
        models: list[_ReturnedArrays] = []
        for name in sorted(reply):
            record = reply[name]
            if not len(record):
                continue  # Its name would be text that is on no list.
            if isinstance(record, ArrayRecord):
                models.append(
                    self._arrays(name, received.get(name) if name == _MODEL else None, record)
                )
            elif isinstance(record, MetricRecord):
                leaving[name] = MetricRecord(dict(self._metrics(name, record)))
            else:
                leaving[name] = ConfigRecord(dict(self._config(name, record, is_answer)))
        factor = self._shortening(models)
        std = self.settings.noise_multiplier * self.settings.clip_length
        if std and any(model.moved for model in models):
            self._charge(run_id)
        leaving |= {model.name: model.pack(factor, std) for model in models}
        return RecordDict(leaving)

    def error_text(self, reason: str) -> str:
        """Return what of an app's error message may leave."""
        limit = self.settings.longest_error
        told = printable(reason, limit) if limit > len("...") else ""
        return told or "the app failed; the reason is in the member's log"

    def _arrays(self, record: str, sent: object, returned: ArrayRecord) -> _ReturnedArrays:
        try:
            model = _views(sent) if isinstance(sent, ArrayRecord) else {}
        except (ReplyError, ValueError) as error:
            _refuse("the model that came cannot be read", str(error))
        try:
            values = _views(returned)
        except (ReplyError, ValueError) as error:
            _refuse("an array cannot be read", str(error))
        if not values.keys().isdisjoint(model) and (missing := model.keys() - values.keys()):
            _refuse("an array of the model is missing", f"{record}.{min(missing)}")
        moved = []
        # The app's own order would be text.
        order = [*(n for n in model if n in values), *sorted(values.keys() - model.keys())]
        for name in order:
            path, own = f"{record}.{name}", values[name]
            if name not in model:
                if path not in self._listed:
                    _refuse("an array is neither the model's nor on the list", path)
                if own.ndim != 1 or own.dtype != self._listed[path]:
                    _refuse("an array is not as the list has it", f"{path} {own.dtype}{own.shape}")
                continue
            came = model[name]
            if (own.dtype, own.shape) != (came.dtype, came.shape):
                _refuse(
                    "an array is of another type or shape than the model's",
                    f"{path} {own.dtype}{own.shape}, not {came.dtype}{came.shape}",
                )
            if _is_parameter(name, came):
                moved.append(name)
            elif own.tobytes() != came.tobytes():
                if not self.settings.buffers:
                    _refuse("an array that is no parameter has changed", f"{path}; see buffers")
                if own.dtype.kind == "f" and not np.isfinite(own).all():
                    _refuse("an array is not finite", path)
        return _ReturnedArrays(record, model, {name: values[name] for name in order}, moved)

    def _shortening(self, models: list[_ReturnedArrays]) -> float:
        """Return the factor by which the update is shortened, <= 1."""
        limits = self.settings
        length = math.sqrt(sum(model.squared_length() for model in models))
        if not math.isfinite(length):
            _refuse("the update is not finite")
        if 0 < limits.longest_update < length:
            _refuse(
                "the update is too long", f"{length:.4g}; longest-update: {limits.longest_update:g}"
            )
        return limits.clip_length / length if 0 < limits.clip_length < length else 1.0

    def _charge(self, run_id: int) -> None:
        assert self._budget is not None  # the constructor has seen to it
        assert self._log is not None
        spent = self._budget.charge(run_id)
        self._log.append(direction="out", run=run_id, kind=PRIVACY, **spent._asdict())

    def _metrics(self, record: str, metrics: MetricRecord) -> Iterator[tuple[str, float]]:
        for name in sorted(metrics):
            path, value = f"{record}.{name}", metrics[name]
            if path not in self.settings.metrics:
                _refuse("a metric is not on the list", path)
            if isinstance(value, list):
                _refuse("a metric is no single number", path)
            yield name, self._rounded(path, value)

    def _rounded(self, path: str, value: float) -> float:
        if (isinstance(value, int) or value.is_integer()) and abs(value) < _COUNTS:
            return value + 0  # -0 becomes 0.
        found = rounded(value, self.settings.metric_digits)
        if not math.isfinite(found) or (isinstance(found, int) and abs(found) > _LARGEST_INTEGER):
            _refuse("a metric is not finite", path)
        return found

    def _config(
        self, record: str, config: ConfigRecord, is_answer: bool
    ) -> Iterator[tuple[str, Any]]:
        for name in sorted(config):
            path, value = f"{record}.{name}", config[name]
            if path not in self._values:
                _refuse("a value of a ConfigRecord is not on the list", path)
            kind, most = self._values[path]
            if not isinstance(value, _KINDS[kind]):
                _refuse("a value of a ConfigRecord is of another kind than the list says", path)
            if kind == "text" and not is_answer:
                _refuse("a text leaves in the answer to a query alone", path)
            held = value.encode(errors="surrogatepass") if isinstance(value, str) else value
            if isinstance(held, bytes) and len(held) > most:
                _refuse("a value of a ConfigRecord is too long", f"{path}, of {len(held)} bytes")
            yield name, value


@dataclass(frozen=True)
class _ReturnedArrays:
    """An ArrayRecord as it came and as the app returns it; ``moved`` names the parameters."""

    name: str
    sent: Mapping[str, Values]
    returned: Mapping[str, Values]
    moved: Collection[str]

    def squared_length(self) -> float:
        return sum(
            float(np.vdot(update, update))
            for name in self.moved
            for _, _, update in _blocks(self.sent[name], self.returned[name])
        )

    def pack(self, factor: float, std: float) -> ArrayRecord:
        """Return the record with a shortened update and, where ``std`` > 0, noise."""
        return ArrayRecord(
            {
                name: pack_array(
                    _moved(self.sent[name], values, factor, std)
                    if name in self.moved and (std or factor < 1)
                    else values
                )
                for name, values in self.returned.items()
            }
        )


def rounded(value: float, digits: int) -> float:
    """Return a number with so many significant digits, 1 to 15; an int stays one."""
    if isinstance(value, int):
        return round(value, min(0, digits - len(str(abs(value)))))
    return float(f"{value:.{digits - 1}e}") + 0.0  # -0 becomes 0.


def _views(arrays: ArrayRecord) -> dict[str, Values]:
    found = {}
    for name, array in arrays.items():
        try:
            found[name] = view_array(array)
        except ReplyError as error:
            raise ReplyError(f"{name}: {error}") from error
    return found


def _is_parameter(name: str, came: Values) -> bool:
    """Return whether training may change an array of the model."""
    return came.dtype.kind == "f" and not is_statistic(name) and bool(np.isfinite(came).all())


def _blocks(came: Values, returned: Values) -> Iterator[tuple[slice, Floats, Floats]]:
    """Yield pieces of a model's array: where, as it came, and its update."""
    flat_came, flat_returned = came.reshape(-1), returned.reshape(-1)
    for start in range(0, came.size, _BLOCK):
        where = slice(start, start + _BLOCK)
        before = flat_came[where].astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):  # refused by its length
            yield where, before, flat_returned[where].astype(np.float64) - before


def _moved(came: Values, returned: Values, factor: float, std: float) -> Values:
    """Return an array as it came, and its shortened update with noise."""
    moved = np.empty(came.size, came.dtype)
    for where, before, update in _blocks(came, returned):
        shortened = factor * update
        moved[where] = before + (add_noise(shortened, std) if std else shortened)
    return moved.reshape(came.shape)


def _refuse(told: str, detail: str = "") -> NoReturn:
    raise RefusedByMemberError(told, printable(detail))
