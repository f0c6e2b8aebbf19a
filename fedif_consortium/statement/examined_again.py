"""A second examination of a run's held-out data, to compare it with the recorded one.

The loss by which members are paid is corrected for a share of wrong labels. That share is in the
operator's records. Whoever has the held-out data can check it: the share depends only on the data,
the seed and the settings.
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

# Entries of the record that are not compared. Times and error messages differ from machine to
# machine; suspects have a table of their own.
_NOT_COMPARED = ("seconds", "why_none", "suspects")


def examine_again(
    key: str, loaded: LoadedTask, provenance: Mapping[str, Any], *, is_in_test: bool
) -> str:
    """Examine held-out data again, and compare the result and the correction with the record.

    Parameters
    ----------
    key : str
        The key of the recorded examination in the provenance.
    loaded : LoadedTask
        The run's task, before its loss was corrected; its validation set are the held-out data.
    provenance : mapping
        The run's provenance.
    is_in_test : bool
        Whether the held-out data are part of the test split.

    Returns
    -------
    str
        What was not compared, and why; empty: everything was compared.

    Raises
    ------
    StatementError
        If a figure differs from the recorded one; the message names the first such figure.
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
    """Return the examination in a record; raise StatementError if the record has none."""
    try:
        held_out = recorded_examination(record)
    except (TypeError, ValueError, KeyError) as error:
        words = f"provenance.json: {key} cannot be read: {error!r}"
        raise StatementError(words) from error
    if held_out is None:
        raise StatementError(
            f"provenance.json: {key} has no examination, although validation.vet is true"
        )
    return held_out


def _without_what_took_too_long(held_out: HeldOut, recorded: HeldOut) -> tuple[HeldOut, str]:
    """Return an examination without the estimates that the run did not get to, and these in words.

    A machine may lack the time or the memory for an estimate. If the record has no such estimate,
    it is taken out here, and not compared.
    """
    if recorded.way is None and held_out.way is not None:
        return recorded, "the run has no estimate of the share of wrong labels"
    if recorded.by_class is None and held_out.by_class is not None:
        without = replace(held_out, by_class=None, transitions=())
        return without, "the run has no estimate of the chances by class"
    return held_out, ""


def _compare(key: str, recorded: Mapping[str, Any], again: Mapping[str, Any]) -> None:
    """Raise StatementError for the first figure that differs from the recorded one."""
    figures = [name for name in dict.fromkeys([*recorded, *again]) if name not in _NOT_COMPARED]
    # The error names the first difference, so what decides about pay comes first.
    figures.sort(key=lambda name: name not in (NOISE, BY_CLASS))
    for name in figures:
        was = recorded.get(name)
        now = again.get(name)
        if was != now:
            raise StatementError(
                f"provenance.json: {key}.{name} = {json.dumps(was)} is recorded, the held-out data "
                f"give {json.dumps(now)}"
            )
