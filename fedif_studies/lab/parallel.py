"""Calls a function for each cell of a grid, in several processes, and keeps each result at once."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from tempfile import TemporaryDirectory
from threading import Thread
from typing import TypeVar

import torch
import typer

from fedif_flower.devices import torch_threads
from fedif_flower.errors import FedIFError
from fedif_flower.signals import ended_as_interrupted

C = TypeVar("C")
R = TypeVar("R")


class GridInterrupted(FedIFError):  # noqa: N818
    """A grid was stopped: complete cells are kept, and the same command measures the others."""

    exit_code = 130  # as a shell reports Ctrl-C


class CellTakenError(FedIFError):
    """Another process runs a cell at this moment."""


@contextmanager
def stopped_says_what_stays(*, again: bool) -> Iterator[None]:
    """Replace the message of a GridInterrupted if the grid measures ``again``.

    The usual message says that the same command goes on. With ``--again`` it would not: it would
    measure all cells once more.
    """
    try:
        yield
    except GridInterrupted:
        if not again:
            raise
        what_stays = "stopped: cells that were not measured again are as they were"
        raise GridInterrupted(what_stays) from None


def carry_out(
    todo: Sequence[C],
    call: Callable[[C], R],
    keep: Callable[[C, R], None],
    name_of: Callable[[C], str],
    jobs: int,
    note_failure: Callable[[C, FedIFError], None] = lambda *_: None,
    *,
    threads: int = 1,
) -> bool:
    """Call a function for each cell, keep the results, and return whether no call failed.

    Parameters
    ----------
    todo : sequence
        The cells, which are begun in this order.
    call : callable
        Takes a cell and returns its result; with several jobs, a function of a module. A
        FedIFError is a failure of the cell; a CellTakenError leaves it out, and is no failure.
    keep : callable
        Takes a cell and its result as soon as the call is done, in this process.
    name_of : callable
        Returns a cell's name, for what is printed.
    jobs : int
        How many cells are called for at a time, >= 1. With 1 the calls are made in this process.
    note_failure : callable
        Takes a cell that failed, and its error.
    threads : int
        How many torch threads each call has, >= 1. Models as small as the studies' are slower on
        several, but coalitions of clients are shared out among them.

    Raises
    ------
    GridInterrupted
        If a signal stops it.
    """
    began = time.monotonic()
    done = 0
    failed = 0
    try:
        with ended_as_interrupted():
            for cell, outcome in _call_each(todo, call, jobs, threads):
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
                place = f"[{done}/{len(todo)}, until {time_in(seconds_left)}]"
                typer.echo(f"{place} {name_of(cell)}")
    except KeyboardInterrupt:
        left = len(todo) - done
        raise GridInterrupted(f"stopped: {left} cells are left; the same command goes on") from None
    return not failed


def _call_each(
    todo: Sequence[C], call: Callable[[C], R], jobs: int, threads: int
) -> Iterator[tuple[C, R | FedIFError]]:
    """Yield each cell as it is done, with its result or its error."""
    if jobs == 1:
        with torch_threads(threads):
            for cell in todo:
                yield cell, _call_quietly(call, cell)
        return
    # A process that is ended leaves its temporary files behind. Here they are deleted with this
    # folder.
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        new_process = partial(_new_process, folder, threads)
        yield from _call_in_processes(todo, call, jobs, new_process)


def _call_in_processes(
    todo: Sequence[C],
    call: Callable[[C], R],
    jobs: int,
    new_process: Callable[[], ProcessPoolExecutor],
) -> Iterator[tuple[C, R | FedIFError]]:
    """Yield as :func:`_call_each` does; ``new_process`` starts a process."""
    running: dict[Future[R | FedIFError], tuple[ProcessPoolExecutor, C]] = {}
    waiting = iter(todo)

    def begin(process: ProcessPoolExecutor, cell: C) -> None:
        running[process.submit(_call_quietly, call, cell)] = (process, cell)

    try:
        for cell in islice(waiting, jobs):
            begin(new_process(), cell)
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
                    # After an error the next cell gets a new process: an error of a GPU, for
                    # example, leaves its process unusable.
                    begin(new_process() if has_failed else process, following)
                yield cell, outcome
    finally:
        # If the caller stops early, end the processes that still run a cell.
        for process, _ in running.values():
            process.shutdown(wait=False, cancel_futures=True)
        children = multiprocessing.active_children()
        for child in children:
            child.terminate()
        for child in children:  # They write temporary files as long as they live.
            child.join()


def _outcome_of(future: Future[R | FedIFError]) -> R | FedIFError:
    """Return a call's result; an error if its process was killed, for lack of memory perhaps."""
    killed = future.exception()
    if killed:
        return FedIFError(repr(killed))
    return future.result()


def _new_process(folder: str, threads: int) -> ProcessPoolExecutor:
    """Return a pool of a single process: if the process is killed, no other cell fails."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, context, _prepare, (folder, threads))


def _call_quietly(call: Callable[[C], R], cell: C) -> R | FedIFError:
    """Call with nothing but errors in the log, and return an exception instead of raising it."""
    logging.disable(logging.WARNING)
    try:
        return call(cell)
    except FedIFError as error:
        return error
    except Exception as error:  # A task may raise anything; other cells go on nevertheless.
        return FedIFError(repr(error))
    finally:
        logging.disable(logging.NOTSET)


def _prepare(folder: str, threads: int) -> None:
    """Ignore Ctrl-C, which the parent process handles, and compute on ``threads`` threads.

    Temporary files go to the folder. The process ends when its parent ends.
    """
    Thread(target=_end_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(threads)
    tempfile.tempdir = folder


def _end_with_parent() -> None:
    """Wait until the parent process has ended, and then end this one.

    A parent that is killed cannot end its processes. They would wait for their next cell forever.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def time_in(seconds: float) -> str:
    """Return the weekday and the time of day ``seconds`` from now."""
    return f"{datetime.now() + timedelta(seconds=seconds):%a %H:%M}"
