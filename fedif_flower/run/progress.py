"""How far a run is, for people: a bar on a terminal, else a line every so often."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

SECONDS_PER_LINE = 30.0


class RoundProgress:
    """Shows a run's rounds; without a terminal, every tenth of the way and every half minute.

    Parameters
    ----------
    num_rounds : int
        How many rounds there will be.
    console : Console
        Where to.
    clock : callable, optional
        Seconds that only grow.
    """

    def __init__(
        self, num_rounds: int, console: Console, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._num_rounds = num_rounds
        self._console = console
        self._clock = clock
        self._step = max(1, num_rounds // 10)
        self._printed = clock()
        self._bar = Progress(
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("starting Flower and Ray", total=num_rounds)

    def __enter__(self) -> RoundProgress:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def show(self, server_round: int, text: str) -> None:
        """Show a round that is over, with a few words on it."""
        self._bar.update(self._task, completed=server_round, description=text)
        due = self._clock() - self._printed >= SECONDS_PER_LINE
        if not self._console.is_terminal and (due or server_round % self._step == 0):
            self._console.print(
                f"round {server_round}/{self._num_rounds} {text}".rstrip(), highlight=False
            )
            self._printed = self._clock()
