"""The held-out data of a run, examined again: what was found there decides who is paid how much.

The operator's records say for which share of wrong labels the loss was corrected. Whoever has the
held-out data can find it out: the share depends on them, on the seed and on the settings alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from fedif_flower.errors import ConfigError, StatementError
from fedif_flower.run.correction import (
    BY_CLASS,
    NOISE,
    Correction,
    corrected_task,
    recorded_examination,
)
from fedif_flower.run.folder import HELD_OUT_KEY
from fedif_flower.run.held_out import examine
from fedif_flower.run.loaded_task import LoadedTask
from fedif_flower.run.secret_validation import PAYING_KEY, corrected_part, examine_part
from fedif_flower.valuation.cross_fit import Way
from fedif_flower.valuation.held_out import HeldOut, HeldOutCheck

# What no other examination repeats, and what stands in a table of its own.
_NOT_COMPARED = ("seconds", "suspects")

Examine = Callable[[float, Way | None], HeldOut]
Correct = Callable[[HeldOutCheck, HeldOut | None], tuple[LoadedTask, dict[str, Any]]]


class HeldOutData(NamedTuple):
    """Held-out data of a run, before their loss was corrected.

    Attributes
    ----------
    key : str
        Where ``provenance.json`` has what was found in them.
    examine : callable
        ``examine(seconds, way)`` examines them.
    correct : callable
        ``correct(check, held_out)`` -> the task with the corrected loss, and what records have.
    """

    key: str
    examine: Examine
    correct: Correct

    @classmethod
    def that_weigh(cls, loaded: LoadedTask) -> HeldOutData:
        """Return the data that a run weighed by."""

        def examined(seconds: float, way: Way | None) -> HeldOut:
            return examine(loaded, seconds, way)

        def corrected(
            check: HeldOutCheck, held_out: HeldOut | None
        ) -> tuple[LoadedTask, dict[str, Any]]:
            return corrected_task(loaded, Correction.of(check, held_out), held_out)

        return cls(HELD_OUT_KEY, examined, corrected)

    @classmethod
    def that_pay(cls, part: LoadedTask) -> HeldOutData:
        """Return the secret data that a run paid by."""

        def examined(seconds: float, way: Way | None) -> HeldOut:
            return examine_part(part, seconds, way)

        def corrected(
            check: HeldOutCheck, held_out: HeldOut | None
        ) -> tuple[LoadedTask, dict[str, Any]]:
            return corrected_part(part, check, held_out)

        return cls(PAYING_KEY, examined, corrected)


def examine_again(data: HeldOutData, check: HeldOutCheck, provenance: Mapping[str, Any]) -> str:
    """Compare what was found in held-out data, and for what their loss was corrected.

    Parameters
    ----------
    data : HeldOutData
        They.
    check : HeldOutCheck
        What the run's settings ask for.
    provenance : mapping
        The run's.

    Returns
    -------
    str
        What was not compared, and why; empty: everything was.

    Raises
    ------
    StatementError
        Naming the first figure that is another one.
    """
    if data.key not in provenance:
        raise StatementError(f"provenance.json: {data.key} is missing")
    recorded = provenance[data.key]
    held_out = None
    not_compared = ""
    if check.vet:
        held_out, not_compared = _examine_again(data, check, _recorded(data.key, recorded))
    _, record = data.correct(check, held_out)
    _compare(data.key, recorded, json.loads(json.dumps(record)))
    return f"{data.key}: {not_compared}" if not_compared else ""


def _recorded(key: str, record: Mapping[str, Any]) -> HeldOut:
    """Return the examination that a record tells of."""
    try:
        held_out = recorded_examination(record)
    except (TypeError, ValueError, KeyError) as error:
        words = f"provenance.json: {key} cannot be read: {error!r}"
        raise StatementError(words) from error
    if held_out is None:
        raise StatementError(f"provenance.json: {key} has no examination")
    return held_out


def _examine_again(
    data: HeldOutData, check: HeldOutCheck, recorded: HeldOut
) -> tuple[HeldOut, str]:
    """Return what there is in the data; and what was taken over from the records, in words.

    It depends on the machine what there is time for, so records have the last word on that alone.
    """
    try:
        held_out = data.examine(check.seconds, recorded.way)
    except ConfigError as error:
        raise StatementError(f"provenance.json: {data.key}: {error}") from error
    if recorded.way is None and held_out.way is not None:
        return recorded, "the run had no time to estimate the share of wrong labels"
    if recorded.by_class is None and held_out.by_class is not None:
        without = replace(held_out, by_class=None, transitions=())
        return without, "the run had no time to estimate the chances by class"
    return held_out, ""


def _compare(key: str, recorded: Mapping[str, Any], again: Mapping[str, Any]) -> None:
    """Raise StatementError for the first figure that is not the recorded one."""
    figures = [name for name in dict.fromkeys([*recorded, *again]) if name not in _NOT_COMPARED]
    # What decides about pay comes first.
    figures.sort(key=lambda name: name not in (NOISE, BY_CLASS))
    for name in figures:
        was = recorded.get(name)
        now = again.get(name)
        if was != now:
            raise StatementError(
                f"provenance.json: {key}.{name} = {json.dumps(was)} is recorded, the held-out data "
                f"give {json.dumps(now)}"
            )
