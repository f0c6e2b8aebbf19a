"""The library's own parts of a run, in the order in which they are built."""

from __future__ import annotations

from collections.abc import Sequence

from fedif_flower.registry import parts_named
from fedif_flower.run.attribution import Attribution, Quarantined
from fedif_flower.run.client_memory import ClientMemory
from fedif_flower.run.collusion import Collusion
from fedif_flower.run.held_out import ExaminedHeldOut
from fedif_flower.run.kept_updates import KeepUpdates
from fedif_flower.run.live_state import Live
from fedif_flower.run.part import RunPart
from fedif_flower.strategies.config import PaceSettings


class Paced(RunPart):
    """``pace.quorum`` and its like: how long rounds wait."""

    settings = PaceSettings


def run_parts() -> Sequence[RunPart]:
    """Return the parts of a run that brings nothing of its own."""
    return (
        ExaminedHeldOut(),
        Live(),
        Paced(),
        Collusion(),
        ClientMemory(),
        Attribution(),
        Quarantined(),
        KeepUpdates(),
    )


def chosen_parts(named: str | Sequence[RunPart] | None) -> Sequence[RunPart]:
    """Return the parts that a door names, as they are or by ``module:function``; else our own."""
    if named is None:
        return run_parts()
    if not isinstance(named, str):
        return named
    parts = parts_named(named)
    if parts is None:  # The package that it names is not installed.
        return run_parts()
    return parts
