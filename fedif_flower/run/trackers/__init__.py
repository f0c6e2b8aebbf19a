"""Trackers by the name that ``trackers = "..."`` takes: one line each."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from fedif_flower.errors import ConfigError
from fedif_flower.run.trackers.tracker import Tracker

__all__ = ["TRACKERS", "Tracker", "build_trackers", "tracker_names"]


class TrackerFactory(Protocol):
    """What the registry holds: builds the tracker of a run."""

    def __call__(self, run_dir: Path, settings: Mapping[str, object], *, resumed: bool) -> Tracker:
        """Build it; ``resumed`` runs go on with what an earlier process tracked."""


def _tensorboard(run_dir: Path, settings: Mapping[str, object], *, resumed: bool) -> Tracker:  # noqa: ARG001
    module = import_module("fedif_flower.run.trackers.tensorboard")
    directory = run_dir / "tensorboard"
    for earlier in () if resumed else directory.glob("events.out.tfevents.*"):
        earlier.unlink()
    tracker: Tracker = module.TensorBoardTracker(directory)
    return tracker


def _mlflow(run_dir: Path, settings: Mapping[str, object], *, resumed: bool) -> Tracker:  # noqa: ARG001
    module = import_module("fedif_flower.run.trackers.mlflow")
    tracker: Tracker = module.MLflowTracker(
        module.local_or_configured(run_dir.parent), run_name=run_dir.name, params=settings
    )
    return tracker


TRACKERS: Mapping[str, TrackerFactory] = MappingProxyType(
    {"tensorboard": _tensorboard, "mlflow": _mlflow}
)


def tracker_names(names: str) -> list[str]:
    """Return the names in ``"tensorboard, mlflow"``."""
    return [name.strip() for name in names.split(",") if name.strip()]


def build_trackers(
    names: str, run_dir: Path, settings: Mapping[str, object], *, resumed: bool
) -> list[Tracker]:
    """Return the trackers that a run config names.

    Raises
    ------
    ConfigError
        If a package is not installed, or the place cannot be reached.
    """
    found = []
    for name in tracker_names(names):
        try:
            found.append(TRACKERS[name](run_dir, settings, resumed=resumed))
        except ImportError as error:
            advice = f"{error}; pip install 'fedif-flower[{name}]'"
            raise ConfigError(f"trackers = {names!r}: {advice}") from error
        except Exception as error:  # whatever a package raises for a place that is not there
            raise ConfigError(f"trackers = {names!r}: {name} cannot begin: {error}") from error
    return found
