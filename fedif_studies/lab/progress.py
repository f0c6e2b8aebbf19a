"""The progress of a grid on the terminal: all rounds, and a line for each running cell."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import Lock
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from fedif_flower.run.round_progress import SECONDS_PER_LINE
from fedif_flower.run.rows import RoundRow
from fedif_flower.runtime.shared_grid import GridInterrupted
from fedif_studies.lab.cells import Cell
from fedif_studies.lab.federations import Outcome


class GridProgress:
    """Shows a grid's progress: bars on a terminal, else a line for each end and half minute.

    Parameters
    ----------
    cells : sequence of Cell
        The cells to come.
    console : Console
        Where to.
    clock : callable, optional
        Seconds that only grow.
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        console: Console,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._console = console
        self._total = len(cells)
        self._rounds = sum(cell.config.num_server_rounds for cell in cells)
        self._ended = self._ran = 0
        self._rounds_of: dict[str, int] = {}  # rounds that a cell has behind it
        self._lock = Lock()
        self._began = self._printed = clock()
        self._started: dict[str, float] = {}
        self._tasks: dict[str, TaskID] = {}
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._all = self._progress.add_task("starting Ray", total=self._rounds)

    def __enter__(self) -> GridProgress:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def announce(self, actors: int, jobs: int) -> None:
        """Say how the machine is used."""
        self._began = self._clock()
        self._console.print(
            f"{self._total} cells, {jobs} at a time over {actors} actors", highlight=False
        )
        self._progress.update(self._all, description=f"0/{self._total} cells, rounds")

    def on_start(self, cell: Cell) -> None:
        """Show a line for a cell."""
        with self._lock:
            self._started[cell.digest] = self._clock()
            total = cell.config.num_server_rounds
            self._tasks[cell.digest] = self._progress.add_task(cell.name, total=total)

    def on_row(self, cell: Cell, row: RoundRow) -> None:
        """Show a cell's last accuracy."""
        shown = f" {row.headline.removeprefix('test accuracy ')}".rstrip()
        with self._lock:
            self._ran += row.round > 0  # a resumed cell begins later: only these took time here
            self._advance(cell, row.round)
            task = self._tasks[cell.digest]
            self._progress.update(task, completed=row.round, description=f"{cell.name}{shown}")
            now = self._clock()
            if not self._console.is_terminal and now - self._printed >= SECONDS_PER_LINE:
                total = cell.config.num_server_rounds
                self._print(f"{cell.name}: round {row.round}/{total}{shown}{self._time_left(now)}")

    def on_end(self, outcome: Outcome) -> None:
        """Print how a cell ended, and for how long the others will go on."""
        with self._lock:
            cell = outcome.cell
            if cell.digest in self._tasks:
                self._progress.remove_task(self._tasks.pop(cell.digest))
            if isinstance(outcome.error, GridInterrupted):
                return
            self._ended += 1
            self._advance(cell, cell.config.num_server_rounds)  # none is left to run
            text = f"{self._ended}/{self._total} cells, rounds"
            self._progress.update(self._all, description=text)
            now = self._clock()
            took = now - self._started.get(cell.digest, now)
            state = f"failed: {outcome.error}" if outcome.failed else "done"
            self._print(f"{cell.name}: {state} after {took:.0f} s{self._time_left(now)}")

    def _print(self, text: str) -> None:
        self._console.print(
            f"[{self._ended}/{self._total}] {text}", highlight=False, markup=False, soft_wrap=True
        )
        self._printed = self._clock()

    def _advance(self, cell: Cell, rounds: int) -> None:
        self._rounds_of[cell.digest] = rounds
        self._progress.update(self._all, completed=sum(self._rounds_of.values()))

    def _time_left(self, now: float) -> str:
        rounds = self._rounds - sum(self._rounds_of.values())
        if not rounds or not self._ran:
            return ""
        seconds = (now - self._began) / self._ran * rounds
        return f"; about {seconds / 60:.0f} min left"
