"""The progress of a grid on the terminal: all its rounds, and a line for each cell that ends."""

from __future__ import annotations

import time
from collections.abc import Sequence
from threading import Lock

from rich.console import Console

from fedif_flower.run.round_progress import RoundProgress
from fedif_flower.runtime.shared_grid import GridInterrupted
from fedif_flower.strategies.reports import RoundReport
from fedif_studies.lab.cells import Cell
from fedif_studies.lab.federations import Outcome


class GridProgress(RoundProgress):
    """Shows the rounds of all cells as those of one run, and how each cell ended.

    Parameters
    ----------
    cells : sequence of Cell
        The cells to come.
    console : Console
        Where to.
    """

    def __init__(self, cells: Sequence[Cell], console: Console) -> None:
        self._rounds = sum(cell.config.num_server_rounds for cell in cells)
        super().__init__(self._rounds, console)
        self._cells, self._grid_console = len(cells), console
        self._ended = self._ran = 0
        self._rounds_of: dict[str, int] = {}  # That a cell has behind it.
        self._started: dict[str, float] = {}
        self._lock = Lock()
        self._began = time.monotonic()

    def announce(self, actors: int, jobs: int) -> None:
        """Say how the machine is used."""
        self._began = time.monotonic()
        self._say(f"{self._cells} cells, {jobs} at a time over {actors} actors")

    def on_start(self, cell: Cell) -> None:
        """Take the time at which a cell begins."""
        self._started[cell.digest] = time.monotonic()

    def on_row(self, cell: Cell, row: RoundReport) -> None:
        """Show a cell's last accuracy."""
        with self._lock:
            self._ran += row.round > 0  # a resumed cell begins later: only these took time here
            self._rounds_of[cell.digest] = row.round
            shown = row.headline.removeprefix("test accuracy ")
            self.show(sum(self._rounds_of.values()), f"{cell.name} {shown}{self._time_left()}")

    def on_end(self, outcome: Outcome) -> None:
        """Print how a cell ended, and for how long the others will go on."""
        if isinstance(outcome.error, GridInterrupted):
            return
        with self._lock:
            cell = outcome.cell
            self._ended += 1
            self._rounds_of[cell.digest] = cell.config.num_server_rounds  # none is left to run
            took = time.monotonic() - self._started.get(cell.digest, self._began)
            state = f"failed: {outcome.error}" if outcome.failed else "done"
            place = f"[{self._ended}/{self._cells}]"
            self._say(f"{place} {cell.name}: {state} after {took:.0f} s{self._time_left()}")

    def _say(self, text: str) -> None:
        self._grid_console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _time_left(self) -> str:
        rounds = self._rounds - sum(self._rounds_of.values())
        if not rounds or not self._ran:
            return ""
        seconds = (time.monotonic() - self._began) / self._ran * rounds
        return f"; about {seconds / 60:.0f} min left"
