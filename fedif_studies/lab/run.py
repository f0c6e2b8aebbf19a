"""The one runner: the cells of a grid, each a federation of this machine, several at a time.

A cell that is done is kept, as a row or as a run's folder, and never run again.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

import typer
from filelock import FileLock, Timeout

from fedif_flower.client.app import task_app
from fedif_flower.errors import ConfigError, FedIFError, StorageError
from fedif_flower.run.config import RunConfig
from fedif_flower.run.ending import require_last_round
from fedif_flower.run.federation import run_federation, why_nobody_attacks
from fedif_flower.run.figures import of_last_ten
from fedif_flower.run.folder import RunFolder
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.server.record import Round
from fedif_flower.settings import Scalar
from fedif_flower.storage import exclusive_lock, make_folder
from fedif_studies.lab.cells import Cell, distinct, find_result, is_of_other_code
from fedif_studies.lab.parallel import CellTakenError, carry_out, stopped_says_what_stays, time_in
from fedif_studies.rows import add_rows, machine, revision

SECONDS_BETWEEN_LINES = 30.0  # Of one cell.
FAILURES = "failures.csv"  # In a group's folder: each time that a cell of it failed.
_CLAIMS = ".claims"  # In an output folder: which cells are being run.
# The rows of these studies were measured before a run could examine its held-out labels.
LABELS_AS_THEY_ARE: Mapping[str, Scalar] = MappingProxyType(
    {"validation.noise": "off", "validation.vet": False}
)


@contextmanager
def federated(settings: Mapping[str, Scalar]) -> Iterator[RunFolder]:
    """Run a federation in this process and give its folder, which is gone afterwards.

    Parameters
    ----------
    settings : mapping
        What differs from the defaults of a run config; the CPU, no checkpoints, and held-out labels
        as they are.

    Raises
    ------
    ConfigError
        If it is to be attacked, and the share of malicious clients is nobody's.
    """
    usual: dict[str, Scalar] = {
        "device": "cpu",
        "checkpoint-every": 0,
        "run-name": "run",
        **LABELS_AS_THEY_ARE,
    }
    with TemporaryDirectory() as folder:
        every_setting = {**RunConfig.defaults(), **usual, **settings, "output-dir": folder}
        config = RunConfig.from_run_config(every_setting)
        why_nobody = why_nobody_attacks(config)
        if why_nobody:  # A row would say that it was measured under attack.
            raise ConfigError(why_nobody)
        grid = LocalGrid(task_app(), config.num_clients)
        yield RunFolder(run_federation(grid, config))


def last_ten(run: RunFolder, column: str = "test_accuracy") -> list[float]:
    """Return what a column has of the last ten rounds."""
    return list(map(float, of_last_ten(run.rounds.read(), column)))


def run_cells(cells: Sequence[Cell], jobs: int, *, again: bool = False) -> bool:
    """Run every cell that is not complete, and return whether all are complete afterwards.

    One that was stopped goes on at its last checkpoint.

    Parameters
    ----------
    cells : sequence of Cell
        In the order in which they are begun.
    jobs : int
        As for :func:`~fedif_studies.lab.filling.fill`.
    again : bool
        Run those that are complete, too, from their first rounds.

    Raises
    ------
    GridInterrupted
        If a signal asked for an end; the same call goes on from there, or ``again`` begins anew.
    """
    cells = distinct(cells)
    todo = [cell for cell in cells if again or find_result(cell) is None]
    if len(todo) < len(cells):
        _tell_of_complete(cells, len(cells) - len(todo))
    call = partial(run_anew, began=time.time()) if again else run_cell
    with stopped_says_what_stays(again=again):
        none_failed = carry_out(
            todo,
            call,
            keep=lambda *_: None,  # A run's folder is kept by the run itself.
            name_of=lambda cell: cell.name,
            jobs=jobs,
            note_failure=_write_failure,
        )
    # Asked of every cell, so that no failure stays unwritten.
    are_complete = [_has_last_round(cell) for cell in cells]
    return none_failed and all(are_complete)


def _tell_of_complete(cells: Sequence[Cell], num_complete: int) -> None:
    """Print how many cells are complete, and how many of these other code measured."""
    line = f"{num_complete} of {len(cells)} cells are complete already"
    if num_complete == len(cells):
        line += "; --again runs them again"
    typer.echo(line)
    of_other_code = sum(is_of_other_code(cell) for cell in cells)
    if of_other_code:
        typer.echo(f"{of_other_code} of these were measured by another version of the library")


def _has_last_round(cell: Cell) -> bool:
    """Return whether a cell has a result to its last round; print and write what it lacks."""
    run_dir = find_result(cell)
    if run_dir is None:
        return False
    try:
        require_last_round(run_dir)
    except FedIFError as error:
        typer.echo(f"failed: {cell.name}: {error}", err=True)
        _write_failure(cell, error)
        return False
    return True


@contextmanager
def claimed(cell: Cell) -> Iterator[None]:
    """Hold a cell for this process alone, in whichever table it stands; a killed one releases it.

    Raises
    ------
    CellTakenError
        If another queue with the same output folder runs it.
    """
    path = claims(cell.config.run_dir.parent.parent) / f"{cell.digest}.lock"
    make_folder(path.parent)
    try:
        lock = FileLock(path).acquire(timeout=0)
    except Timeout:
        raise CellTakenError("another queue runs it") from None
    with lock:
        yield


def claims(output_dir: Path) -> Path:
    """Return where the locks of an output folder lie, which several queues may share."""
    return output_dir / _CLAIMS


@contextmanager
def report_held(output_dir: Path) -> Iterator[None]:
    """Hold an output folder's results for whoever reports them, or exchanges one for another.

    A report must not be written over by another queue's that was read before it.
    """
    with exclusive_lock(claims(output_dir) / "report.lock"):
        yield


def _write_failure(cell: Cell, error: FedIFError) -> None:
    """Add a row with the reason to those of the cell's group; a full disk leaves the line alone."""
    here = machine()
    row = {
        "cell": cell.name,
        "reason": " ".join(str(error).split()),
        "seed": cell.config.seed,
        "device": cell.config.device,
        "revision": revision(),
        "processor": here["processor"],
        "date": here["date"],
    }
    try:
        add_rows(cell.config.run_dir.parent / FAILURES, [row])
    except StorageError as full:
        typer.echo(f"no row of it: {full}", err=True)


def run_cell(cell: Cell) -> None:
    """Run a cell, or what is left of it, unless another queue does or has done so.

    Raises
    ------
    CellTakenError
        If another queue runs it.
    """
    with claimed(cell):
        if find_result(cell) is None:
            _run(cell)


def run_anew(cell: Cell, began: float) -> None:
    """Run a cell from its first round; what an earlier run left of it goes, wherever it lies.

    A complete result goes when the new one is complete.

    Parameters
    ----------
    cell : Cell
        The cell.
    began : float
        When the grid began, in seconds since 1970: what was complete later is another queue's.

    Raises
    ------
    CellTakenError
        If another queue runs it.
    """
    cell.require_unchanged()
    with claimed(cell):
        complete = find_result(cell)
        if complete is None:
            shutil.rmtree(cell.config.run_dir, ignore_errors=True)
            _run(cell)
        elif RunFolder(complete).summary.path.stat().st_mtime <= began:
            _replace_result(cell, complete)


def _replace_result(cell: Cell, complete: Path) -> None:
    """Run a cell that has a result; the new one takes its place once it is complete, too.

    It is run elsewhere until then: whatever ends it, a kill among them, leaves the earlier result.
    """
    place = cell.config.run_dir
    output_dir = place.parent.parent
    # Deeper than where results are looked for.
    elsewhere = claims(output_dir) / "again"
    fresh = elsewhere / place.name
    earlier = elsewhere / f"{place.name}.before"
    for leftover in (fresh, earlier):  # Of a process that was killed.
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        _run(replace(cell, config=cell.config.replace(output_dir=str(elsewhere))))
        with report_held(output_dir):
            make_folder(place.parent)
            if place.exists():
                place.rename(earlier)
            fresh.rename(place)
        shutil.rmtree(earlier, ignore_errors=True)
        if complete != place:  # It lay with another group.
            shutil.rmtree(complete, ignore_errors=True)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _run(cell: Cell) -> None:
    cell.require_unchanged()
    progress = CellProgress(cell.name, cell.config.num_server_rounds)
    is_labelled = False

    def on_row(row: Round) -> None:
        nonlocal is_labelled
        if not is_labelled:
            # Now, as it may be stopped: who goes on has to know whose rounds the first ones are.
            cell.label(goes_on=row.round > 1)
            is_labelled = True
        progress(row)

    run_federation(LocalGrid(task_app(), cell.config.num_clients), cell.config, on_row)
    if not is_labelled:
        cell.label(goes_on=True)


class CellProgress:
    """Says every so often which round of a cell is done, and when its last one will be.

    Parameters
    ----------
    name : str
        The cell's.
    num_rounds : int
        How many it has.
    clock : callable
        Returns seconds that go on.
    """

    def __init__(
        self, name: str, num_rounds: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name = name
        self._num_rounds = num_rounds
        self._clock = clock
        self._last_line = clock()
        # The first round that it saw, and when: a run that goes on begins at any.
        self._first: tuple[int, float] | None = None

    def __call__(self, row: Round) -> None:
        """Take in a round that is done."""
        now = self._clock()
        if self._first is None:
            self._first = (row.round, now)
            return
        if now - self._last_line < SECONDS_BETWEEN_LINES or row.round == self._num_rounds:
            return
        self._last_line = now
        first_round, began = self._first
        seconds_per_round = (now - began) / (row.round - first_round)
        left = seconds_per_round * (self._num_rounds - row.round)
        typer.echo(f"{self._name}: round {row.round} of {self._num_rounds}, until {time_in(left)}")
