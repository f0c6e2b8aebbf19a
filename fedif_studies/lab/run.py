"""The one runner: the cells of a grid, each a federation of this machine, several at a time.

A cell that is done is kept, as a row or as a run's folder, and never run again.
"""

from __future__ import annotations

import logging
import multiprocessing
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import torch
import typer
from filelock import FileLock, Timeout

from fedif_flower.client.app import task_app
from fedif_flower.devices import torch_threads
from fedif_flower.errors import FedIFError, StorageError
from fedif_flower.run.config import RunConfig
from fedif_flower.run.federation import run_federation
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.report import of_last_ten, require_last_round
from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.server.record import Round
from fedif_flower.settings import Scalar
from fedif_flower.signals import ended_as_interrupted
from fedif_flower.storage import make_folder
from fedif_studies.lab.cells import Cell, distinct, find_result, is_of_other_code
from fedif_studies.rows import Row, add_rows, as_csv, committed_revision, machine, revision

SECONDS_BETWEEN_LINES = 30.0  # Of one cell.
FAILURES = "failures.csv"  # In a group's folder: each time that a cell of it failed.
_CLAIMS = ".claims"  # In an output folder: which cells are being run.

Measure = Callable[[Any], Sequence[Row]]
"""Takes a cell and returns what its rows have beside it; a function of a module."""
C = TypeVar("C")
R = TypeVar("R")


class GridInterrupted(FedIFError):  # noqa: N818
    """A grid was stopped; what is complete stays, and the rest goes on with the same command."""

    exit_code = 130  # as a shell reports Ctrl-C


class CellTakenError(FedIFError):
    """Another queue runs a cell at this moment."""


@contextmanager
def federated(settings: Mapping[str, Scalar]) -> Iterator[RunFolder]:
    """Run a federation in this process and give its folder, which is gone afterwards.

    Parameters
    ----------
    settings : mapping
        What differs from the defaults of a run config; the CPU, and no checkpoints.
    """
    usual: dict[str, Scalar] = {"device": "cpu", "checkpoint-every": 0, "run-name": "run"}
    with TemporaryDirectory() as folder:
        every_setting = {**RunConfig.defaults(), **usual, **settings, "output-dir": folder}
        config = RunConfig.from_run_config(every_setting)
        grid = LocalGrid(task_app(), config.num_clients)
        yield RunFolder(run_federation(grid, config))


def last_ten(run: RunFolder, column: str = "test_accuracy") -> list[float]:
    """Return what a column has of the last ten rounds."""
    return list(map(float, of_last_ten(run.rounds.read(), column)))


def missing(path: Path, cells: Sequence[Row]) -> list[Row]:
    """Return the cells without a row in a file: none has the same values in their columns."""
    if not cells:
        return []
    columns = list(cells[0])
    measured = {_place(row, columns) for row in read_rows(path)}
    return [cell for cell in cells if _place(cell, columns) not in measured]


def _place(row: Row, columns: Iterable[str]) -> tuple[object, ...]:
    """Return a row's values in the columns of cells."""
    return tuple(_comparable(row.get(column)) for column in columns)


def _comparable(value: object) -> object:
    """Return what a value and its text in a file have in common: ``1`` and ``"1.0"``."""
    try:
        return float(str(value))
    except ValueError:
        return str(value).lower()


def fill(
    path: Path, cells: Sequence[Row], measure: Measure, *, jobs: int = 1, again: bool = False
) -> bool:
    """Measure the cells without a row in a file, and add theirs; return whether all are there.

    Every row names the revision and the processor that it is from, and its seed. A signal ends it,
    and what is running then is begun anew later; an error ends its own cell only.

    Parameters
    ----------
    path : Path
        The CSV file.
    cells : sequence of mapping
        In the order in which they are begun; all have the same columns.
    measure : callable
        Takes a cell and returns its rows' other columns; it runs in other processes. One of the two
        has a column ``seed``.
    jobs : int
        So many cells at a time, >= 1, each on one thread; 1: in this process.
    again : bool
        Measure all of them; a cell's new rows take the place of its earlier ones.

    Raises
    ------
    ConfigError
        If the code is not committed, or a row has no seed.
    GridInterrupted
        If a signal asked for an end; the same call goes on from there, or ``again`` begins anew.
    """
    todo = missing(path, cells)
    typer.echo(f"{len(cells) - len(todo)} of {len(cells)} cells have a row")
    if again:
        todo = list(cells)
    elif cells and not todo:
        typer.echo(f"nothing is measured: {path} has all; --again measures them again")
        return True
    origin = {"revision": committed_revision(), "processor": machine()["processor"]}
    waiting = _WaitingRows(path, again=again)

    def keep(cell: Row, rows: Sequence[Row]) -> None:
        waiting.add(cell, [{**cell, **row, **origin} for row in rows])

    def name_of(cell: Row) -> str:
        return ", ".join(map(str, cell.values()))

    try:
        with _stopped_says_what_stays(again=again):
            none_failed = _carry_out(todo, measure, keep, name_of, jobs)
    finally:
        all_written = waiting.write()
        waiting.tell_of_unwritten()
    return none_failed and all_written


class _WaitingRows:
    """Rows on their way to a file: where the disk is full they wait until it has room.

    Parameters
    ----------
    path : Path
        The CSV file.
    again : bool
        A cell's rows take the place of its earlier ones.
    """

    def __init__(self, path: Path, *, again: bool) -> None:
        self._path = path
        self._again = again
        self._waiting: list[tuple[Row, list[Row]]] = []

    def add(self, cell: Row, rows: list[Row]) -> None:
        """Write a cell's rows, and those that wait, if the disk takes them."""
        self._waiting.append((cell, rows))
        self.write()

    def write(self) -> bool:
        """Write what waits, and return whether nothing waits any more."""
        while self._waiting:
            cell, rows = self._waiting[0]
            try:
                self._put(cell, rows)
            except StorageError as error:
                typer.echo(f"{len(self._waiting)} cells' rows wait: {error}", err=True)
                return False
            del self._waiting[0]
        return True

    def _put(self, cell: Row, rows: list[Row]) -> None:
        columns = list(cell)
        place = _place(cell, columns)

        def is_replaced(row: Row) -> bool:
            return self._again and _place(row, columns) == place

        add_rows(self._path, rows, instead=is_replaced)

    def tell_of_unwritten(self) -> None:
        """Print what could not be written, so that it is not lost."""
        for _, rows in self._waiting:
            typer.echo(f"not written into {self._path}:\n{as_csv(rows)}", err=True)


def run_cells(cells: Sequence[Cell], jobs: int, *, again: bool = False) -> bool:
    """Run every cell that is not complete, and return whether all are complete afterwards.

    One that was stopped goes on at its last checkpoint.

    Parameters
    ----------
    cells : sequence of Cell
        In the order in which they are begun.
    jobs : int
        As for :func:`fill`.
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
    with _stopped_says_what_stays(again=again):
        none_failed = _carry_out(
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
        held = FileLock(path).acquire(timeout=0)
    except Timeout:
        raise CellTakenError("another queue runs it") from None
    with held:
        yield


def claims(output_dir: Path) -> Path:
    """Return where the locks of an output folder lie, which several queues may share."""
    return output_dir / _CLAIMS


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
        if complete is not None and RunFolder(complete).summary.path.stat().st_mtime > began:
            return
        for run_dir in (cell.config.run_dir, complete):
            if run_dir is not None:
                shutil.rmtree(run_dir, ignore_errors=True)
        _run(cell)


def _run(cell: Cell) -> None:
    cell.require_unchanged()
    progress = CellProgress(cell.name, cell.config.num_server_rounds)
    run_federation(LocalGrid(task_app(), cell.config.num_clients), cell.config, progress)
    cell.label()


@contextmanager
def _stopped_says_what_stays(*, again: bool) -> Iterator[None]:
    """Let a grid that is stopped while it measures again say that the same command does not go on.

    It would begin with all cells.
    """
    try:
        yield
    except GridInterrupted:
        if not again:
            raise
        what_stays = "stopped: cells that were not measured again are as they were"
        raise GridInterrupted(what_stays) from None


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
        typer.echo(f"{self._name}: round {row.round} of {self._num_rounds}, until {_time_in(left)}")


def _time_in(seconds: float) -> str:
    """Return the time of the day that it will be, with the day of the week."""
    return f"{datetime.now() + timedelta(seconds=seconds):%a %H:%M}"


def _carry_out(
    todo: Sequence[C],
    call: Callable[[C], R],
    keep: Callable[[C, R], None],
    name_of: Callable[[C], str],
    jobs: int,
    note_failure: Callable[[C, FedIFError], None] = lambda *_: None,
) -> bool:
    """Call for each cell, keep what comes of it, and return whether none failed."""
    began = time.monotonic()
    done = 0
    failed = 0
    try:
        with ended_as_interrupted():
            for cell, outcome in _call_each(todo, call, jobs):
                done += 1
                if isinstance(outcome, CellTakenError):
                    typer.echo(f"left out: {name_of(cell)}: {outcome}")
                    continue
                if isinstance(outcome, FedIFError):
                    failed += 1
                    typer.echo(f"failed: {name_of(cell)}: {outcome}", err=True)
                    note_failure(cell, outcome)
                    continue
                keep(cell, outcome)
                seconds_left = (time.monotonic() - began) / done * (len(todo) - done)
                place = f"[{done}/{len(todo)}, until {_time_in(seconds_left)}]"
                typer.echo(f"{place} {name_of(cell)}")
    except KeyboardInterrupt:
        left = len(todo) - done
        raise GridInterrupted(f"stopped: {left} cells are left; the same command goes on") from None
    return not failed


def _call_each(
    todo: Sequence[C], call: Callable[[C], R], jobs: int
) -> Iterator[tuple[C, R | FedIFError]]:
    """Yield each cell as it is done, with what came of it."""
    if jobs == 1:
        with torch_threads(1):  # Models as small as these are slower on more.
            for cell in todo:
                yield cell, _call_quietly(call, cell)
        return
    running: dict[Future[R | FedIFError], tuple[ProcessPoolExecutor, C]] = {}
    waiting = iter(todo)

    def begin(process: ProcessPoolExecutor, cell: C) -> None:
        running[process.submit(_call_quietly, call, cell)] = (process, cell)

    try:
        for cell in islice(waiting, jobs):
            begin(_new_process(), cell)
        while running:
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                process, cell = running.pop(future)
                outcome = _outcome_of(future)
                has_failed = isinstance(outcome, FedIFError)
                following = next(waiting, None)
                if following is None or has_failed:
                    process.shutdown(wait=False)
                if following is not None:
                    # An error may have spoiled its process, as one of a GPU does.
                    begin(_new_process() if has_failed else process, following)
                yield cell, outcome
    finally:
        for process, _ in running.values():
            process.shutdown(wait=False, cancel_futures=True)
        for child in multiprocessing.active_children():
            child.terminate()


def _outcome_of(future: Future[R | FedIFError]) -> R | FedIFError:
    """Return what a call came to; where its process was killed, such as for memory, an error."""
    killed = future.exception()
    if killed:
        return FedIFError(repr(killed))
    return future.result()


def _new_process() -> ProcessPoolExecutor:
    """Return a process of its own: where it is killed no other cell fails."""
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _prepare)


def _call_quietly(call: Callable[[C], R], cell: C) -> R | FedIFError:
    logging.disable(logging.WARNING)
    try:
        return call(cell)
    except FedIFError as error:
        return error
    except Exception as error:  # out of a task, or for want of memory: other cells go on
        return FedIFError(repr(error))
    finally:
        logging.disable(logging.NOTSET)


def _prepare() -> None:
    """Leave Ctrl-C to the process that started this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
