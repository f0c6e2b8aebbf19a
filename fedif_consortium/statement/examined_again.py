"""The held-out data of a run, examined again: what was found there decides who is paid how much.

The operator's records say for which share of wrong labels the loss was corrected. Whoever has the
held-out data can find it out: the share depends on them, on the seed and on the settings alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedif_flower.errors import ConfigError, StatementError
from fedif_flower.run.correction import (
    BY_CLASS,
    NOISE,
    Correction,
    corrected_task,
    recorded_examination,
)
from fedif_flower.run.held_out import examine
from fedif_flower.run.loaded_task import LoadedTask
from fedif_flower.run.own_sections import ValidationSettings
from fedif_flower.valuation.held_out import HeldOut

# What no other examination repeats, and what stands in a table of its own. The words of an error,
# which may say why there is no estimate, name addresses and sizes of a machine's memory.
_NOT_COMPARED = ("seconds", "why_none", "suspects")


def examine_again(
    key: str, loaded: LoadedTask, provenance: Mapping[str, Any], *, is_in_test: bool
) -> str:
    """Compare what was found in held-out data, and for what their loss was corrected.

    Parameters
    ----------
    key : str
        Where the provenance has what was found in them.
    loaded : LoadedTask
        The run's task, whose validation set they are, before its loss was corrected.
    provenance : mapping
        The run's.
    is_in_test : bool
        Whether they are part of the test split.

    Returns
    -------
    str
        What was not compared, and why; empty: everything was.

    Raises
    ------
    StatementError
        Naming the first figure that is another one.
    """
    if key not in provenance:
        raise StatementError(f"provenance.json: {key} is missing")
    check = loaded.config.section(ValidationSettings).check()
    held_out = None
    not_compared = ""
    if check.vet:
        recorded = _recorded(key, provenance[key])
        try:
            held_out = examine(loaded, check.seconds, recorded.way, is_in_test=is_in_test)
        except ConfigError as error:
            raise StatementError(f"provenance.json: {key}: {error}") from error
        held_out, not_compared = _without_what_took_too_long(held_out, recorded)
    _, record = corrected_task(loaded, Correction.of(check, held_out), held_out)
    _compare(key, provenance[key], json.loads(json.dumps(record)))
    if not_compared:
        return f"{key}: {not_compared}"
    return ""


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


def _without_what_took_too_long(held_out: HeldOut, recorded: HeldOut) -> tuple[HeldOut, str]:
    """Return an examination as a run could have had it; and what is not compared then, in words.

    It depends on the machine what there is time and memory for, so records have the last word on
    that alone.
    """
    if recorded.way is None and held_out.way is not None:
        return recorded, "the run has no estimate of the share of wrong labels"
    if recorded.by_class is None and held_out.by_class is not None:
        without = replace(held_out, by_class=None, transitions=())
        return without, "the run has no estimate of the chances by class"
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
