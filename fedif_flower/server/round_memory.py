"""The states of a strategy's parts before a round, to which they return if the round is undone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedif_flower.server.rule import Stateful


class RoundMemory:
    """Keeps the states that a strategy's parts had before the last round learned anything."""

    def __init__(self) -> None:
        self._server_round = 0
        self._states: dict[str, Any] = {}

    def keep(self, server_round: int, parts: Mapping[str, Stateful]) -> None:
        """Save the state of each part, by name, before the parts learn from a round."""
        self._server_round = server_round
        self._states = {name: part.state_dict() for name, part in parts.items()}

    def clear(self) -> None:
        """Drop the saved states: the last round is complete, and will not be undone any more."""
        self._server_round = 0
        self._states = {}

    def forget_after(self, server_round: int, parts: Mapping[str, Stateful]) -> None:
        """Restore the saved states, if they are from before a round later than ``server_round``.

        Otherwise the last round is complete, and the parts keep what they learned in it.
        """
        if self._server_round > server_round:
            for name, part in parts.items():
                part.load_state_dict(self._states[name])
