"""A function called for each cell of a grid, in several processes; what is done stays done."""

from __future__ import annotations

import logging
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import islice
from typing import TypeVar

import torch
import typer

from fedif_flower.devices import torch_threads
from fedif_flower.errors import FedIFError
from fedif_flower.signals import ended_as_interrupted

C = TypeVar("C")
R = TypeVar("R")


class GridInterrupted(FedIFError):  # noqa: N818
    """A grid was stopped; what is complete stays, and the rest goes on with the same command."""

    exit_code = 130  # as a shell reports Ctrl-C


class CellTakenError(FedIFError):
    """Another queue runs a cell at this moment."""


@contextmanager
def stopped_says_what_stays(*, again: bool) -> Iterator[None]:
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


def carry_out(
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
                place = f"[{done}/{len(todo)}, until {time_in(seconds_left)}]"
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


def time_in(seconds: float) -> str:
    """Return the time of the day that it will be, with the day of the week."""
    return f"{datetime.now() + timedelta(seconds=seconds):%a %H:%M}"
