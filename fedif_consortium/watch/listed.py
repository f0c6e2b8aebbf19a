"""The runs in a folder, a line for each."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedif_consortium.watch.reader import read_records
from fedif_consortium.watch.state import Watched
from fedif_flower.errors import ConfigError
from fedif_flower.foreign import refused_as
from fedif_flower.run.config import subject_of
from fedif_flower.run.folder import RunFolder


@dataclass(frozen=True)
class ListedRun:
    """A run in a list.

    Attributes
    ----------
    run : str
        Its folder, below the one that was looked through.
    state : str
        ``running``, ``finished``, ``stopped``, ``failed``, or why its files cannot be read.
    strategy, data : str
        What it is; empty where it left no settings.
    rounds, num_rounds : int
        How many are over, and how many there are to be.
    accuracy : float, optional
        The last one on the test split, in [0, 1].
    figure : str
        The last figure of the test split, in words.
    age_seconds : float
        Since it last wrote anything.
    """

    run: str
    state: str
    strategy: str = ""
    data: str = ""
    rounds: int = 0
    num_rounds: int = 0
    accuracy: float | None = None
    figure: str = ""
    age_seconds: float = 0.0


def list_runs(directory: Path) -> list[ListedRun]:
    """Return the runs below a folder, the one that wrote last first."""
    now = time.time()
    found = [_listed(path, directory, now) for path in _folders(directory)]
    return sorted(found, key=lambda run: run.age_seconds)


def _folders(directory: Path) -> Iterator[Path]:
    """Return the folders of runs; what lies in them is not looked through."""
    for path, folders, files in os.walk(directory):
        if {"config.json", "rounds.csv"} & set(files):
            folders.clear()
            yield Path(path)


def _listed(path: Path, directory: Path, now: float) -> ListedRun:
    name = path.relative_to(directory).as_posix()
    try:
        return _read(path, name, now)
    except ConfigError as error:
        return ListedRun(name, str(error))


def _read(path: Path, name: str, now: float) -> ListedRun:
    with refused_as(ConfigError, "its files cannot be read"):
        run = Watched(read_records(RunFolder(path), members=False), now)
        config, accuracy = run.records.config, run.series("test_accuracy")
        return ListedRun(
            run=name,
            state=run.state,
            strategy=str(config.get("strategy", "")),
            data=subject_of(config) if "dataset" in config else "",
            rounds=run.last_round,
            num_rounds=run.num_rounds,
            accuracy=accuracy[-1][1] if accuracy else None,
            figure=run.figure,
            age_seconds=max(now - run.last_sign, 0.0),
        )
