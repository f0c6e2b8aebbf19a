"""The library's own parts of a run, in the order in which they are built."""

from __future__ import annotations

from collections.abc import Sequence

from fedif_flower.registry import parts_named
from fedif_flower.run.attribution import Attribution, Quarantined
from fedif_flower.run.client_memory import ClientMemory
from fedif_flower.run.collusion import Collusion
from fedif_flower.run.held_out import ExaminedHeldOut
from fedif_flower.run.kept_updates import KeepUpdates
from fedif_flower.run.live_state import KeepLiveState
from fedif_flower.run.part import RunPart
from fedif_flower.run.server_seed import ServerSeed
from fedif_flower.strategies.config import PaceSettings


class Paced(RunPart):
    """The section ``pace``: how long rounds wait for replies. The part adds its settings alone."""

    settings = PaceSettings


def run_parts() -> Sequence[RunPart]:
    """Return the library's own parts."""
    # The order counts: ExaminedHeldOut corrects the loss that later parts measure, and Quarantined
    # looks for the callback of Attribution.
    return (
        ServerSeed(),
        ExaminedHeldOut(),
        KeepLiveState(),
        Paced(),
        Collusion(),
        ClientMemory(),
        Attribution(),
        Quarantined(),
        KeepUpdates(),
    )


def chosen_parts(named: str | Sequence[RunPart] | None) -> Sequence[RunPart]:
    """Return the parts that a door, such as ``server_app.py``, names.

    Parameters
    ----------
    named : str or sequence of RunPart, optional
        The parts, or ``module:function`` that returns them. ``None``, an empty name, or a package
        that is not installed: the library's own parts.
    """
    if named is None:
        return run_parts()
    if not isinstance(named, str):
        return named
    parts = parts_named(named)
    if parts is None:  # The name is empty, or its package is not installed.
        return run_parts()
    return parts
