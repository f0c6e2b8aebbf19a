"""What a strategy's parts remembered before a round, so that they can forget it again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedif_flower.server.rule import Stateful


class RoundMemory:
    """The states of parts before the last round."""

    def __init__(self) -> None:
        self._server_round = 0
        self._states: dict[str, Any] = {}

    def keep(self, server_round: int, parts: Mapping[str, Stateful]) -> None:
        """Keep what parts remember, by their names, before they learn from a round."""
        self._server_round = server_round
        self._states = {name: part.state_dict() for name, part in parts.items()}

    def clear(self) -> None:
        """Keep nothing: the last round is complete, and is not forgotten any more."""
        self._server_round = 0
        self._states = {}

    def forget_after(self, server_round: int, parts: Mapping[str, Stateful]) -> None:
        """Let parts forget the last round, if it came after this one."""
        if self._server_round > server_round:
            for name, part in parts.items():
                part.load_state_dict(self._states[name])
