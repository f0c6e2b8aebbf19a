"""The cells of a study, each a federation of this machine: a row as soon as one is done."""

from __future__ import annotations

import logging
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import typer
from flwr.serverapp import Grid

from fedif_flower.client.app import app as client_app
from fedif_flower.devices import torch_threads
from fedif_flower.errors import FedIFError
from fedif_flower.run.config import RunConfig, default_run_config
from fedif_flower.run.federation import run_federation
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.runtime.processes import StopRequest, own_command
from fedif_flower.runtime.shared_grid import GridInterrupted
from fedif_flower.settings import Scalar
from fedif_studies.rows import Row, add_rows, committed_revision, machine

Measure = Callable[[Any], Sequence[Row]]
"""Takes a cell and returns what its rows have beside it; a function of a module."""


@contextmanager
def federated(
    settings: Mapping[str, Scalar], grid: Grid | None = None, **more: Any
) -> Iterator[RunFolder]:
    """Run a federation in this process and give its folder, which is gone afterwards.

    Parameters
    ----------
    settings : mapping
        What differs from the defaults of a run config; the CPU, and no checkpoints.
    grid : Grid, optional
        The clients; default: the app's, called in this process.
    **more
        Further arguments of :func:`~fedif_flower.run.federation.run_federation`.
    """
    with TemporaryDirectory() as folder:
        usual: dict[str, Scalar] = {"device": "cpu", "checkpoint-every": 0, "run-name": "run"}
        config = RunConfig.from_run_config(
            {**default_run_config(), **usual, **settings, "output-dir": folder}
        )
        clients = grid or LocalGrid(client_app, config.num_clients)
        yield RunFolder(run_federation(clients, config, **more))


def last_ten(run: RunFolder, column: str = "test_accuracy") -> list[float]:
    """Return a column of the last ten rounds that have it."""
    return [float(row[column]) for row in run.rounds.read() if row[column]][-10:]


def missing(path: Path, cells: Sequence[Row]) -> list[Row]:
    """Return the cells of which a file has no row: one with the same values in their columns."""
    rows = read_rows(path)
    known: dict[tuple[str, ...], set[tuple[object, ...]]] = {}
    todo = []
    for cell in cells:
        columns = tuple(cell)
        if columns not in known:
            known[columns] = {_place(row, columns) for row in rows}
        if _place(cell, columns) not in known[columns]:
            todo.append(cell)
    return todo


def _place(row: Row, columns: Sequence[str]) -> tuple[object, ...]:
    return tuple(_value(row.get(key)) for key in columns)


def _value(value: object) -> object:
    text = str(value)
    try:
        return float(text)
    except ValueError:
        return text.lower()


def fill(path: Path, cells: Sequence[Row], measure: Measure, *, jobs: int = 1) -> bool:
    """Measure the cells of which a file has no row, and add theirs; return whether all are there.

    Every row names the revision and the processor that it is from. A signal ends it after the
    cells that are running; an error ends its own cell only.

    Parameters
    ----------
    path : Path
        The CSV file.
    cells : sequence of mapping
        In the order in which they are begun.
    measure : callable
        Takes a cell and returns its rows' other columns; it runs in other processes.
    jobs : int
        So many cells at a time, >= 1, each on one thread; 1: in this process.

    Raises
    ------
    ConfigError
        If the code is not committed.
    GridInterrupted
        If a signal asked for an end; the same call goes on from there.
    """
    todo = missing(path, cells)
    typer.echo(f"{len(cells) - len(todo)} of {len(cells)} cells have a row")
    own = {"revision": committed_revision(), "processor": machine()["processor"]}
    began, done, failed = time.monotonic(), 0, 0
    with StopRequest() as stop, suppress(GridInterrupted):
        for cell, found in _measured(todo, measure, jobs, stop):
            done += 1
            if isinstance(found, FedIFError):
                failed += 1
                typer.echo(f"failed: {_named(cell)}: {found}", err=True)
                continue
            add_rows(path, [{**cell, **row, **own} for row in found])
            left = (time.monotonic() - began) / done * (len(todo) - done)
            until = f"{datetime.now() + timedelta(seconds=left):%a %H:%M}"
            typer.echo(f"[{done}/{len(todo)}, until {until}] {_named(cell)}")
    if done < len(todo):
        raise GridInterrupted(
            f"stopped: {len(todo) - done} cells are left; go on with: {own_command()}"
        )
    return not failed


def _measured(
    todo: Sequence[Row], measure: Measure, jobs: int, stop: StopRequest
) -> Iterator[tuple[Row, Sequence[Row] | FedIFError]]:
    """Yield each cell as it is done, until a signal asks for an end."""
    if jobs == 1:
        with torch_threads(1):  # Models as small as these are slower on more.
            for cell in todo:
                if stop.signal_number is not None:
                    return
                yield cell, _quietly(measure, cell)
        return
    context = multiprocessing.get_context("spawn")
    waiting = list(reversed(todo))
    running: dict[Future[Sequence[Row] | FedIFError], Row] = {}
    with ProcessPoolExecutor(jobs, context, _prepare) as pool:
        while True:
            while waiting and len(running) < jobs and stop.signal_number is None:
                cell = waiting.pop()
                running[pool.submit(_quietly, measure, cell)] = cell
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(future), future.result()


def _quietly(measure: Measure, cell: Row) -> Sequence[Row] | FedIFError:
    logging.disable(logging.WARNING)
    try:
        return measure(cell)
    except GridInterrupted:
        raise
    except FedIFError as error:
        return error
    finally:
        logging.disable(logging.NOTSET)


def _prepare() -> None:
    torch.set_num_threads(1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # The process that started this one decides.


def _named(cell: Row) -> str:
    return ", ".join(map(str, cell.values()))
