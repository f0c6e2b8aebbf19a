"""Runs the cells of a grid, several at a time, each as a federation on this machine.

A finished cell is kept as a run's folder. It is not run again unless ``again`` asks for it.
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
from fedif_flower.errors import ConfigError, FedIFError, StorageError, TrainingFailedError
from fedif_flower.run.config import RunConfig
from fedif_flower.run.ending import require_last_round
from fedif_flower.run.federation import run_federation, why_nobody_attacks
from fedif_flower.run.figures import of_last_ten
from fedif_flower.run.folder import RunFolder
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.server.record import Round
from fedif_flower.settings import Scalar
from fedif_flower.storage import exclusive_lock, make_folder, writing
from fedif_studies.lab.cells import (
    CLAIMS,
    Cell,
    distinct,
    find_result,
    has_failed_last_round,
    is_of_other_code,
)
from fedif_studies.lab.parallel import CellTakenError, carry_out, stopped_says_what_stays, time_in
from fedif_studies.rows import add_rows, loaded_revision, machine

SECONDS_BETWEEN_LINES = 30.0  # Between two lines on the progress of one cell.
FAILURES = "failures.csv"  # In a group's folder: a row for each time that one of its cells failed.
# Settings that leave held-out labels unexamined. The rows of the studies that use them were
# measured before a run could examine held-out labels.
LABELS_AS_THEY_ARE: Mapping[str, Scalar] = MappingProxyType(
    {"validation.noise": "off", "validation.vet": False}
)


@contextmanager
def federated(settings: Mapping[str, Scalar]) -> Iterator[RunFolder]:
    """Run a federation in this process and yield its folder, which is deleted afterwards.

    Parameters
    ----------
    settings : mapping
        Settings that differ from a study's defaults. These are the defaults of a run config, but on
        the CPU, without checkpoints, and with held-out labels that are not examined.

    Raises
    ------
    ConfigError
        If the settings name an attack, but their share of malicious clients rounds to none.
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
        if why_nobody:  # A row with these settings would wrongly claim an attack.
            raise ConfigError(why_nobody)
        grid = LocalGrid(task_app(), config.num_clients)
        yield RunFolder(run_federation(grid, config))


def last_ten(run: RunFolder, column: str = "test_accuracy") -> list[float]:
    """Return the values that a column has in the last ten rounds."""
    return list(map(float, of_last_ten(run.rounds.read(), column)))


def run_cells(cells: Sequence[Cell], jobs: int, *, threads: int = 1, again: bool = False) -> bool:
    """Run every cell that is not complete, and return whether all are complete afterwards.

    A cell that was stopped goes on from its last checkpoint.

    Parameters
    ----------
    cells : sequence of Cell
        The cells, which are begun in this order. A cell that shares the result of an earlier one is
        not run.
    jobs : int
        How many cells run at a time, as for :func:`~fedif_studies.lab.filling.fill`.
    threads : int
        How many torch threads each cell has, as for
        :func:`~fedif_studies.lab.parallel.carry_out`. Clients train on ``threads-per-client``.
    again : bool
        Run complete cells too, and every cell from its first round.

    Raises
    ------
    GridInterrupted
        If a signal stops it. The same call then runs what is left; with ``again`` it runs all cells
        once more.
    """
    note_failure = partial(_write_failure, loaded_revision())
    cells = distinct(cells)
    todo = [cell for cell in cells if again or find_result(cell) is None]
    if len(todo) < len(cells):
        _tell_of_complete(cells, len(cells) - len(todo))
    call = partial(run_anew, began=time.time()) if again else run_cell
    with stopped_says_what_stays(again=again):
        none_failed = carry_out(
            todo,
            call,
            keep=lambda *_: None,  # A run writes its own folder: nothing is left to keep.
            name_of=lambda cell: cell.name,
            jobs=jobs,
            note_failure=note_failure,
            threads=threads,
        )
    # A list, as all() of a generator would stop at the first failure and leave others unwritten.
    are_complete = [_has_last_round(cell, note_failure) for cell in cells]
    return none_failed and all(are_complete)


def _tell_of_complete(cells: Sequence[Cell], num_complete: int) -> None:
    """Print how many cells are complete, and how many of them were measured by other code."""
    line = f"{num_complete} of {len(cells)} cells are complete already"
    if num_complete == len(cells):
        line += "; --again runs them again"
    typer.echo(line)
    of_other_code = sum(is_of_other_code(cell) for cell in cells)
    if of_other_code:
        typer.echo(f"{of_other_code} of these were measured by another version of the library")


def _has_last_round(cell: Cell, note_failure: Callable[[Cell, FedIFError], None]) -> bool:
    """Return whether a cell is complete and its last round did not fail; report it if it did."""
    run_dir = find_result(cell)
    if run_dir is None:
        return False
    try:
        require_last_round(run_dir)
    except FedIFError as error:
        typer.echo(f"failed: {cell.name}: {error}", err=True)
        note_failure(cell, error)
        return False
    return True


@contextmanager
def claimed(cell: Cell) -> Iterator[None]:
    """Lock a cell for this process.

    Cells of several groups that share a result share the lock. The system releases it if the
    process is killed.

    Raises
    ------
    CellTakenError
        If another process with the same output folder runs the cell.
    StorageError
        If the file of the lock cannot be created or locked.
    """
    path = claims(cell.config.run_dir.parent.parent) / f"{cell.digest}.lock"
    make_folder(path.parent)
    with writing(path):
        try:
            lock = FileLock(path).acquire(timeout=0)
        except Timeout:
            raise CellTakenError("another process is running this cell") from None
    with lock:
        yield


def claims(output_dir: Path) -> Path:
    """Return the folder of an output folder's locks. Several processes may share these."""
    return output_dir / CLAIMS


@contextmanager
def report_held(output_dir: Path) -> Iterator[None]:
    """Lock an output folder while its results are reported, or one of them is replaced.

    Otherwise a process that had read the results earlier could overwrite a newer report.
    """
    with exclusive_lock(claims(output_dir) / "report.lock"):
        yield


def _write_failure(revision: str, cell: Cell, error: FedIFError) -> None:
    """Add a row with the reason and the revision to the failures of the cell's group.

    Where the disk is full, the failure is only printed.
    """
    here = machine()
    row = {
        "cell": cell.name,
        "reason": " ".join(str(error).split()),
        "seed": cell.config.seed,
        "device": cell.config.device,
        "revision": revision,
        "processor": here["processor"],
        "date": here["date"],
    }
    try:
        add_rows(cell.config.run_dir.parent / FAILURES, [row])
    except StorageError as full:
        typer.echo(f"the failure could not be recorded: {full}", err=True)


def run_cell(cell: Cell) -> None:
    """Run a cell, or what is left of it, unless it is complete by now.

    Raises
    ------
    CellTakenError
        If another process runs it.
    """
    with claimed(cell):
        if find_result(cell) is None:
            _run(cell)


def run_anew(cell: Cell, began: float) -> None:
    """Run a cell from its first round.

    What an unfinished run left of it is deleted first. A complete result is replaced once the new
    one is complete, even if it lies in another group's folder.

    Parameters
    ----------
    cell : Cell
        The cell.
    began : float
        When the grid began, in seconds since 1970. A result that was completed later is another
        process's new one, and stays.

    Raises
    ------
    CellTakenError
        If another process runs it.
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
    """Run a cell that has a result, and put the new result in its place once it is complete.

    The run writes to another folder until then, so that the earlier result survives if the run
    fails or is killed.

    Raises
    ------
    TrainingFailedError
        If the last round failed, unless it failed in the earlier result, too.
    """
    place = cell.config.run_dir
    output_dir = place.parent.parent
    # Nothing in here is taken for a result.
    elsewhere = claims(output_dir) / "again"
    fresh = elsewhere / place.name
    earlier = elsewhere / f"{place.name}.before"
    for leftover in (fresh, earlier):  # A process that was killed leaves them.
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        _run(replace(cell, config=cell.config.replace(output_dir=str(elsewhere))))
        if has_failed_last_round(fresh) and not has_failed_last_round(complete):
            raise TrainingFailedError("the last round failed; the earlier result stays")
        # Nothing is deleted that another process reads for its report.
        with report_held(output_dir):
            make_folder(place.parent)
            if place.exists():
                place.rename(earlier)
            fresh.rename(place)
            shutil.rmtree(earlier, ignore_errors=True)
            if complete != place:  # The earlier result lay in another group's folder.
                shutil.rmtree(complete, ignore_errors=True)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _run(cell: Cell) -> None:
    cell.require_unchanged()
    revision = loaded_revision()
    progress = CellProgress(cell.name, cell.config.num_server_rounds)
    is_labelled = False

    def on_row(row: Round) -> None:
        nonlocal is_labelled
        if not is_labelled:
            # The label is written in the first round and not at the end: if the run is stopped
            # and goes on later, the label has to name the revision that ran the first rounds.
            cell.label(revision, goes_on=row.round > 1)
            is_labelled = True
        progress(row)

    run_federation(LocalGrid(task_app(), cell.config.num_clients), cell.config, on_row)
    if not is_labelled:  # No round was left: an earlier process ran all of them.
        cell.label(revision, goes_on=True)


class CellProgress:
    """Prints every so often which round of a cell is done, and when its last one will be.

    Parameters
    ----------
    name : str
        The cell's name.
    num_rounds : int
        How many rounds the cell has.
    clock : callable
        Returns a time in seconds that never goes back.
    """

    def __init__(
        self, name: str, num_rounds: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name = name
        self._num_rounds = num_rounds
        self._clock = clock
        self._last_line = clock()
        # The first round that was seen, and when. A run that goes on does not begin at round 1.
        self._first: tuple[int, float] | None = None

    def __call__(self, row: Round) -> None:
        """Print a line on a round that is done, unless the last line is too recent."""
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
