"""What may leave a member's host: the update of the model that came, and listed values.

A reply is made anew from what the policy allows, in an order that the app does not choose. So an
app cannot send data in names, in the order of arrays or values, in a header's padding, or in the
low bits of a metric.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import UnionType
from typing import Annotated, Any, NamedTuple, NoReturn, Self

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
_MODEL = "arrays"  # The name of the record with the model, in messages and replies.
# Whole numbers below this leave unrounded: a weighted mean needs exact numbers of examples.
_COUNTS = 10**7
# The Python types of the kinds of values that the list `config` has.
_KINDS: Mapping[str, type | UnionType] = {"number": int | float, "text": str, "bytes": bytes}
_Metric = Annotated[str, StringConstraints(pattern=r"^.+\..+$")]  # RECORD.KEY
# RECORD.NAME DTYPE
_Row = Annotated[str, StringConstraints(pattern=r"^\S+\.\S+ (float(32|64)|u?int(8|16|32|64))$")]
_BESIDE = "with-updates"  # Marks a value that may leave with an update.
# RECORD.KEY FORMAT; only a number or bytes may leave with updates.
_Value = Annotated[
    str,
    StringConstraints(
        pattern=rf"^\S+\.\S+ "
        rf"((number(\[([1-9]|1[0-5])\])?|bytes\[\d+\])( {_BESIDE})?|text\[\d+\])$"
    ),
]


class LeavesSettings(Settings):
    """``[leaves]`` of a member's policy: what may leave."""

    arrays: list[_Row] = setting(
        [],
        "Rows of numbers beside the model's arrays, each `RECORD.NAME DTYPE`.",
        allowed='a list such as ["arrays.masked-update uint64"], each "RECORD.NAME DTYPE"',
    )
    buffers: bool = setting(
        False,
        "Whether training may change integer arrays and batch norm's statistics; else they come "
        "back as they were sent.",
    )
    metrics: list[_Metric] = setting(
        ["metrics.num-examples", "metrics.train-loss", "metrics.train-seconds"],
        "Metrics, each `RECORD.KEY`.",
        allowed='a list of names, each "RECORD.KEY"',
    )
    metric_digits: int = setting(
        4, "Significant digits of a metric; the rest is rounded away.", ge=1, le=15
    )
    config: list[_Value] = setting(
        [
            "node.partition-id number",
            "node.attack text[40]",
            "preflight.time number[10]",
            "preflight.data text[200]",
            "preflight.training text[200]",
            "preflight.disk text[200]",
            "preflight.masking text[200]",
            "preflight.signing-key text[200]",
            "statement.refused text[200]",
        ],
        "Values of ConfigRecords, each `RECORD.KEY FORMAT`: a `number` (or true, false), rounded "
        "as metrics are or to the digits of `number[DIGITS]`, `bytes[MOST]`, or `text[MOST]`, in "
        "bytes. They leave in the answer to a query alone, but for a number or bytes "
        f"`{_BESIDE}`.",
        allowed='a list such as ["node.attack text[40]"], each "RECORD.KEY FORMAT"',
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
    def _list_each_once(self) -> Self:
        for key in ("arrays", "config"):
            listed = getattr(self, key)
            names = [value.partition(" ")[0] for value in listed]
            # If a name stood there twice, it would not be clear which format was meant.
            require(len(set(names)) == len(names), key, listed, "each RECORD.KEY once")
        return self

    @model_validator(mode="after")
    def _leave_nothing_without_noise(self) -> Self:
        if not self.noise_multiplier:
            self._require_no_budget()
            return self
        is_clipped = self.clip_length > 0
        words = "more than 0 where noise_multiplier is"
        require(is_clipped, "clip_length", self.clip_length, words)
        words = "none with noise: they would leave without it"
        require(not self.arrays, "arrays", self.arrays, words)
        require(not self.buffers, "buffers", self.buffers, words)
        beside_updates = [value for value in self.config if value.endswith(_BESIDE)]
        words = f"nothing {_BESIDE} where there is noise: it would leave without it"
        require(not beside_updates, "config", beside_updates, words)
        return self

    def _require_no_budget(self) -> None:
        """Raise ConfigError for a privacy budget without noise: replies would not be counted."""
        for key in ("target_delta", "most_epsilon"):
            default = type(self).model_fields[key].default
            value = getattr(self, key)
            words = f"{default:g} where noise_multiplier is 0, which adds no noise"
            require(value == default, key, value, words)


class OutgoingPolicy:
    """Checks each reply of an app before it leaves, and makes it anew.

    Parameters
    ----------
    settings : LeavesSettings
        The section ``[leaves]`` of the member's policy.
    log : NodeLog
        Gets a line for each update that leaves with noise. The file with the privacy budget that is
        spent lies in its folder.

    Raises
    ------
    ConfigError
        With noise, if dp-accounting is not installed, or a single reply would cost more than the
        budget.
    StorageError
        With noise, if the file with the spent budget is damaged.
    """

    def __init__(self, settings: LeavesSettings, log: NodeLog) -> None:
        self.settings = settings
        # The listed types of arrays, by RECORD.NAME; the listed formats of values, by RECORD.KEY.
        self._dtypes = dict(row.split(" ") for row in settings.arrays)
        self._formats = dict(value.split(" ", 1) for value in settings.config)
        self._budget: PrivacyBudget | None = None
        if settings.noise_multiplier:
            self._budget = PrivacyBudget(
                log,
                noise_multiplier=settings.noise_multiplier,
                delta=settings.target_delta,
                most=settings.most_epsilon,
            )

    def limit_reply(
        self, received: RecordDict, reply: RecordDict, run_id: int, kind: str = MessageType.TRAIN
    ) -> RecordDict:
        """Return the content that may leave in place of an app's reply.

        Parameters
        ----------
        received : RecordDict
            The content of the message that the reply answers.
        reply : RecordDict
            The content that the app wants to send. It may be hostile.
        run_id : int
            Flower's id of the run, for the log.
        kind : str
            Flower's type of the message. Texts may leave only in the answer to a query.

        Raises
        ------
        RefusedByMemberError
            If a part of the reply may not leave; then nothing leaves. The server may learn the
            error's ``reason``, and nothing else of it.
        StorageError
            If the spent privacy budget cannot be written.
        """
        if VECTOR_RECORD in reply and self.settings.clip_length:
            # Unlike the model's arrays, the vector is no change of what came: clipping needs one.
            _refuse("no bound on the update's length holds for a vector beside it", VECTOR_RECORD)
        is_answer = kind.partition(".")[0] == MessageType.QUERY
        _require_distinct(reply)
        leaving: dict[str, ArrayRecord | MetricRecord | ConfigRecord] = {}
        # The model comes last, so that a reply that is refused costs no privacy budget.
        for name in sorted(reply, key=lambda name: (name == _MODEL, name)):
            record = reply[name]
            if not len(record):
                continue  # An empty record would only carry its name, which is on no list.
            if isinstance(record, ArrayRecord):
                sent = None
                if name == _MODEL:
                    sent = received.get(_MODEL)
                leaving[name] = self._limit_arrays(name, sent, record, run_id)
            elif isinstance(record, MetricRecord):
                leaving[name] = self._limit_metrics(name, record)
            else:
                leaving[name] = self._limit_config(name, record, is_answer)
        return RecordDict(leaving)

    @np.errstate(invalid="ignore", over="ignore")  # An update that overflows is refused later.
    def _limit_arrays(
        self, record: str, sent: object, returned: ArrayRecord, run_id: int
    ) -> ArrayRecord:
        """Return a record of arrays as it may leave, its update shortened and with noise.

        Parameters
        ----------
        record : str
            The record's name.
        sent : object
            The model's record in the message; anything else for another record.
        returned : ArrayRecord
            The record in the reply.
        run_id : int
            Flower's id of the run, for the log.
        """
        model: Mapping[str, Values] = {}
        if isinstance(sent, ArrayRecord):
            model = _views(sent, "the model that came cannot be read")
        values = _views(returned, "an array cannot be read")
        missing = model.keys() - values.keys()
        # A record with none of the model's arrays may consist of listed rows, such as a masked
        # update.
        if missing and not values.keys().isdisjoint(model):
            _refuse("an array of the model is missing", f"{record}.{min(missing)}")
        # In the model's order, then by name: the app's own order could carry data.
        model_names = [name for name in model if name in values]
        row_names = sorted(values.keys() - model.keys())
        leaving = {name: values[name] for name in [*model_names, *row_names]}
        updates: dict[str, Floats] = {}  # The changes of arrays that training may change.
        for name, array in leaving.items():
            path = f"{record}.{name}"
            if name not in model:
                self._require_row(path, array)
            elif _is_trained(name, array, model[name], path):
                updates[name] = array.astype(np.float64) - model[name].astype(np.float64)
            else:
                self._require_buffer(path, array, model[name])
        for name, update in self._bounded(updates, run_id).items():
            sum_of_both = model[name].astype(np.float64) + update
            leaving[name] = sum_of_both.astype(model[name].dtype)
            if self._budget is None:  # With noise there is no bound on the length to keep.
                leaving[name] = _pull_back(leaving[name], model[name], update)
        return ArrayRecord({name: pack_array(array) for name, array in leaving.items()})

    def _require_row(self, path: str, array: Values) -> None:
        """Refuse an array beside the model's, unless it is on the list and has the listed type."""
        if path not in self._dtypes:
            _refuse("an array is neither the model's nor on the list", path)
        if array.ndim != 1 or array.dtype != self._dtypes[path]:
            _refuse("an array is not as the list has it", f"{path} {array.dtype}{array.shape}")

    def _require_buffer(self, path: str, array: Values, sent: Values) -> None:
        """Refuse a changed array that is no parameter, unless ``buffers`` allows it."""
        if array.tobytes() == sent.tobytes():
            return
        if not self.settings.buffers:
            _refuse("an array that is no parameter has changed", f"{path}; see buffers")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            _refuse("an array is not finite", path)

    def _bounded(self, updates: Mapping[str, Floats], run_id: int) -> dict[str, Floats]:
        """Return the updates that have to change, by name: shortened and with noise.

        If there is no noise and nothing to shorten, the result is empty. Then the arrays leave as
        the app returned them, since model + (array - model) would round.
        """
        squared_norms = [float(np.sum(update**2)) for update in updates.values()]
        length = math.sqrt(sum(squared_norms))
        if not math.isfinite(length):
            _refuse("the update is not finite")
        limit = self.settings.clip_length
        factor = 1.0
        if limit and length:
            factor = min(1.0, limit / length)
        if self._budget is not None and updates:
            self._budget.charge(run_id)
            std = self.settings.noise_multiplier * limit
            return {name: add_noise(factor * update, std) for name, update in updates.items()}
        if factor < 1:
            return {name: factor * update for name, update in updates.items()}
        return {}

    def _limit_metrics(self, record: str, metrics: MetricRecord) -> MetricRecord:
        """Return metrics as they may leave: listed single numbers, rounded."""
        leaving: dict[str, int | float | list[int] | list[float]] = {}
        for name in sorted(metrics):
            path = f"{record}.{name}"
            value = metrics[name]
            if path not in self.settings.metrics:
                _refuse("a metric is not on the list", path)
            if isinstance(value, list):
                _refuse("a metric is no single number", path)
            leaving[name] = _number(path, value, self.settings.metric_digits)
        return MetricRecord(leaving)

    def _limit_config(self, record: str, config: ConfigRecord, is_answer: bool) -> ConfigRecord:
        """Return a ConfigRecord as it may leave: listed values of the listed formats.

        ``is_answer``: whether the reply answers a query.
        """
        leaving: dict[str, Any] = {}
        for name in sorted(config):
            path = f"{record}.{name}"
            value = config[name]
            if path not in self._formats:
                _refuse("a value of a ConfigRecord is not on the list", path)
            form = _read_format(self._formats[path])
            if not isinstance(value, _KINDS[form.kind]):
                _refuse("a value of a ConfigRecord is of another kind than the list says", path)
            if not is_answer and not form.leaves_with_updates:
                _refuse("a value of a ConfigRecord leaves in the answer to a query alone", path)
            if isinstance(value, int | float):
                leaving[name] = _number(path, value, form.most or self.settings.metric_digits)
            else:
                _require_short(path, value, form.most)
                leaving[name] = value
        return ConfigRecord(leaving)


def _require_distinct(reply: RecordDict) -> None:
    """Refuse a reply with two values of one RECORD.KEY: what is listed once leaves once.

    Names may have dots, so that ``a`` with ``b.c`` and ``a.b`` with ``c`` are both ``a.b.c``.
    """
    paths: set[str] = set()
    for record_name, record in reply.items():
        for name in record:
            path = f"{record_name}.{name}"
            if path in paths:
                _refuse("two values have one name", path)
            paths.add(path)


def _pull_back(array: Values, sent: Values, update: Floats) -> Values:
    """Return an updated array in which no number changed by more than its update.

    Rounding to the array's type may make a change larger than the update. Such a number goes back
    by one step of its type, so that the update's length stays within ``clip-length``.

    Parameters
    ----------
    array : ndarray of float16, float32 or float64
        ``sent + update``, rounded to its type: at most one step farther from ``sent``.
    sent : ndarray
        The array that came, of the same type and shape.
    update : ndarray of float64
        The change that is allowed, of the same shape.
    """
    change = array.astype(np.float64) - sent.astype(np.float64)
    is_larger = np.abs(change) > np.abs(update)
    one_step_back: Values = np.nextafter(array, sent)
    return np.where(is_larger, one_step_back, array)


def _is_trained(name: str, array: Values, sent: Values, path: str) -> bool:
    """Return whether training may change an array of the model.

    It may change finite floating-point arrays that are no batch-norm statistics. Numbers of more
    than 64 bits are left out: changes smaller than 64 bits tell would not count for the update's
    length, and such a number has bits in which anything can stand.

    Raises
    ------
    RefusedByMemberError
        If type or shape differ from those of the array that came.
    """
    if (array.dtype, array.shape) != (sent.dtype, sent.shape):
        _refuse(
            "an array is of another type or shape than the model's",
            f"{path} {array.dtype}{array.shape}, not {sent.dtype}{sent.shape}",
        )
    if sent.dtype.kind != "f" or sent.dtype.itemsize > 8 or is_statistic(name):
        return False
    return bool(np.isfinite(sent).all())


class _Format(NamedTuple):
    """The format that the list ``config`` has for a value of a ConfigRecord.

    Attributes
    ----------
    kind : str
        The kind of value: one of ``_KINDS``.
    most : int
        Its most digits or bytes; 0 for a number with as many digits as metrics have.
    leaves_with_updates : bool
        Whether the value may also leave with an update. Otherwise it may leave only in the answer
        to a query.
    """

    kind: str
    most: int
    leaves_with_updates: bool


def _read_format(text: str) -> _Format:
    """Return the format that a text stands for, such as ``number[10] with-updates``."""
    form, _, beside = text.partition(" ")
    kind, _, most = form.removesuffix("]").partition("[")
    return _Format(kind, int(most or 0), leaves_with_updates=beside != "")


def _require_short(path: str, value: object, most: int) -> None:
    """Refuse a text or bytes of more than ``most`` bytes."""
    content = value
    if isinstance(value, str):
        content = value.encode(errors="surrogatepass")
    if isinstance(content, bytes) and len(content) > most:
        _refuse("a value of a ConfigRecord is too long", f"{path}, of {len(content)} bytes")


def _number(path: str, value: float, digits: int) -> float:
    """Return a number as it may leave: with ``digits`` significant digits.

    Truth values, and whole numbers below ten million, are not rounded.
    """
    if isinstance(value, bool):
        return value
    leaving = value
    is_count = float(value).is_integer() and abs(value) < _COUNTS
    if not is_count:
        leaving = rounded(value, digits)
    leaving = leaving + 0  # Turns -0 into 0, since a sign of 0 could carry data.
    if not math.isfinite(leaving) or (isinstance(leaving, int) and abs(leaving) >= 2**63):
        _refuse("a number is not finite", path)
    return leaving


def rounded(value: float, digits: int) -> float:
    """Return a number with ``digits`` significant digits, 1 to 15; an int stays an int."""
    if isinstance(value, int):
        places = digits - len(str(abs(value)))
        return round(value, min(0, places))
    return float(f"{value:.{digits - 1}e}") + 0.0  # Turns -0 into 0.


def _views(arrays: ArrayRecord, reason: str) -> dict[str, Values]:
    """Return a record's arrays by name; refuse one that cannot be read, for this ``reason``."""
    try:
        return {name: view_array(array) for name, array in arrays.items()}
    except (ReplyError, ValueError) as error:
        _refuse(reason, str(error))


def _refuse(reason: str, detail: str = "") -> NoReturn:
    """Raise RefusedByMemberError; the server learns ``reason``, the member's log both texts."""
    raise RefusedByMemberError(reason, printable(detail))
