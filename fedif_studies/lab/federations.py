"""Many federations over one Flower ``Grid``, several at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from flwr.serverapp import Grid

from fedif_flower.devices import fix_threads, torch_threads
from fedif_flower.run.federation import run_federation
from fedif_flower.run.logs import about
from fedif_flower.runtime.shared_grid import GridInterrupted, SharedGrid
from fedif_flower.strategies.reports import RoundReport
from fedif_studies.lab.cells import Cell


@dataclass(frozen=True)
class Outcome:
    """How a cell ended.

    Attributes
    ----------
    cell : Cell
        The cell.
    run_dir : Path, optional
        Its results; ``None`` if it did not come to its end.
    error : Exception, optional
        Why it did not; a GridInterrupted if it was stopped.
    train_seconds : float
        Seconds that its clients spent in training, in this call.
    """

    cell: Cell
    run_dir: Path | None
    error: Exception | None
    train_seconds: float

    @property
    def failed(self) -> bool:
        """Whether it ended by an error of its own."""
        return self.error is not None and not isinstance(self.error, GridInterrupted)


class Listener(Protocol):
    """Is told of the progress of a grid, from several threads."""

    def on_start(self, cell: Cell) -> None:
        """Hear that a cell begins."""

    def on_row(self, cell: Cell, row: RoundReport) -> None:
        """Hear that a cell finished a round."""

    def on_end(self, outcome: Outcome) -> None:
        """Hear that a cell ended."""


class _TrainingClock:
    """Adds up the seconds that a cell's clients train."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def add(self, row: RoundReport) -> None:
        self.seconds += (row.train_seconds or 0.0) * row.num_accepted


def run_grid(
    grid: Grid,
    cells: Sequence[Cell],
    listener: Listener,
    *,
    jobs: int,
    stopped: Callable[[], bool] = lambda: False,
) -> list[Outcome]:
    """Run every cell over the same clients and return how each ended.

    A cell's clients learn from each message which cell they work for, so that one cell's
    aggregation and evaluation hide behind the training of another. An error ends its own cell
    only.

    Parameters
    ----------
    grid : Grid
        Flower's way to the clients; all cells have its number of clients.
    cells : sequence of Cell
        In the order in which they are begun.
    listener : Listener
        Is told what happens.
    jobs : int
        How many cells run at a time, >= 1.
    stopped : callable
        Returns whether the grid was stopped.
    """
    shared = SharedGrid(grid, stopped)

    def run(cell: Cell) -> Outcome:
        return _run_cell(shared, cell, listener)

    # Torch's threads wait for each other actively: beside clients that keep every core busy, a
    # second one makes the server's own work ten times slower, not faster.
    threads = 1 if jobs > 1 else torch.get_num_threads()
    pool = ThreadPoolExecutor(jobs, "cell", initializer=fix_threads, initargs=(threads,))
    with torch_threads(threads), pool:
        return list(pool.map(run, cells))


def _run_cell(shared: SharedGrid, cell: Cell, listener: Listener) -> Outcome:
    clock, labelled = _TrainingClock(), False

    def on_row(row: RoundReport) -> None:
        nonlocal labelled
        if not labelled:
            cell.label()
            labelled = True
        clock.add(row)
        listener.on_row(cell, row)

    try:
        shared.check()
        listener.on_start(cell)
        with about(cell=cell.name):
            run_dir = run_federation(shared, cell.config, on_row)
        outcome = Outcome(cell, run_dir, None, clock.seconds)
    except Exception as error:  # the other cells go on
        outcome = Outcome(cell, None, error, clock.seconds)
    listener.on_end(outcome)
    return outcome


class GridClock:
    """Compares a grid's wall time with the least that its training can take.

    Attributes
    ----------
    actors : int
        How many clients train at once, >= 1.
    """

    def __init__(self) -> None:
        self.actors = 1
        self._began = time.perf_counter()

    def describe(self, train_seconds: float) -> str:
        """Return one line: wall time, training time per actor, and their ratio."""
        wall = time.perf_counter() - self._began
        least = train_seconds / self.actors
        ratio = f", {wall / least:.2f} times as much" if least else ""
        return (
            f"training alone: {least:.1f} s ({train_seconds:.1f} s of client training / "
            f"{self.actors} actors); wall time: {wall:.1f} s{ratio}"
        )
