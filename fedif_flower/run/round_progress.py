"""How far a run is, for notebooks and scripts: a line each round, or every few rounds."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from fedif_flower.errors import is_count, require
from fedif_flower.server.record import Round
from fedif_flower.server.run import Callback, RunningStrategy


class ShowRounds(Callback):
    """Prints one line for each round, for notebooks and scripts, in place of Flower's log.

    Flower logs five lines a round and the whole result at the end. While the rounds last, only its
    warnings and errors are shown.

    Parameters
    ----------
    every : int
        Rounds from one line to the next, >= 1.
    """

    def __init__(self, every: int = 1) -> None:
        require(is_count(every, 1), "every", every, "an integer >= 1")
        self._every = every
        self._round: Round | None = None
        self._flower = logging.getLogger("flwr")
        self._level = self._flower.level

    def on_start(self, strategy: RunningStrategy) -> None:  # noqa: ARG002
        """Let Flower log only warnings and errors."""
        self._level = self._flower.level
        self._flower.setLevel(max(self._level, logging.WARNING))

    def on_round(self, current: Round) -> None:
        """Keep the round until its metrics are known."""
        self._round = current

    def on_metrics(self, server_round: int, metrics: Mapping[str, float]) -> None:
        """Print the round's line, if one is due."""
        current = self._round
        if server_round % self._every or current is None or current.round != server_round:
            return
        counts = current.counts
        # Late clients are still training: their replies may count in a later round.
        num_due = len(current.clients) - counts["late"]
        parts = [f"{counts['accepted']} of {num_due} replies"]
        parts += [f"{name.replace('-', ' ')} {value:.4g}" for name, value in metrics.items()]
        if current.reason:
            parts.append(f"{current.status}: {current.reason}")
        print(f"round {server_round}: {', '.join(parts)}, {current.round_seconds:.1f} s")

    def on_end(self) -> None:
        """Let Flower log as before."""
        self._flower.setLevel(self._level)
