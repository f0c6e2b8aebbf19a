"""How a strategy is given another intake than its own: what takes in replies and holds updates."""

from __future__ import annotations

from typing import Any, Protocol

from flwr.app import ArrayRecord

from fedif_flower.messages.layout import ParameterLayout
from fedif_flower.messages.screening import Workspace


class GivenIntake(Protocol):
    """Makes the intake of a strategy, which knows of it no more than this."""

    def require(self, strategy: Any, initial_arrays: ArrayRecord) -> None:
        """Raise ConfigError for a strategy or model that it is not for, before round 1."""
        ...

    def workspace(self, layout: ParameterLayout, max_length: float) -> Workspace:
        """Return what takes in replies; no update may be longer than ``max_length``."""
        ...
