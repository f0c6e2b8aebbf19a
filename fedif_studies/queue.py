"""``python -m fedif_studies.queue``: the cells that results still lack, in order of their worth.

One process, one cell at a time, one core. A row goes to ``docs/results/<sweep>.csv`` as soon as its
cell is complete, with the revision that measured it: a queue that is stopped goes on in the middle
of its cell, and on another machine after the last row that was committed.
"""

from __future__ import annotations

import csv
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from fedif_flower.client.app import task_app
from fedif_flower.devices import torch_threads
from fedif_flower.errors import ConfigError, FedIFError
from fedif_flower.run.config import RunConfig, default_run_config
from fedif_flower.run.rows import RoundRow
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.runtime.processes import StopRequest, own_command
from fedif_flower.settings import Scalar
from fedif_studies.lab.cells import Cell, find_result, make_cell
from fedif_studies.lab.data import find_data
from fedif_studies.lab.federations import Outcome, run_grid
from fedif_studies.lab.measurements import read_measurement, to_row, write_csv
from fedif_studies.lab.spec import chosen, flatten
from fedif_studies.rows import RESULTS, committed_revision, machine

# Influence descent is compared with FedAvg and FedIF there.
COMPARED = (
    *("cifar10-label-noise-heavy", "cifar10-gradient-noise", "fashion-mnist-label-noise-heavy"),
)
COLUMNS = (
    *COMPARED,
    *("cifar10-clean", "cifar10-label-noise-light", "fashion-mnist-clean"),
    *("fashion-mnist-gradient-noise", "fashion-mnist-label-noise-light"),
    *("cifar10-adversarial", "fashion-mnist-adversarial"),
)
BASELINES = (("fedavg", "off"), ("fedif", "off"))
DESCENT = ("influence-descent", "fedavgm")
SEEDS = 3
# What an adversarial cell takes, in one of the others.
_ADVERSARIAL = 2.0


@dataclass(frozen=True)
class Wanted:
    """A cell of a sweep, and by which of its settings a row of it is recognised.

    Attributes
    ----------
    sweep, data : str
        What its sweep and its data set are called.
    settings : mapping
        A complete run config.
    point : mapping
        The settings by which the sweep's cells differ, and the seed.
    output_dir, results : Path
        Where its run goes, and the file of the sweep's rows.
    """

    sweep: str
    data: str
    settings: Mapping[str, Scalar]
    point: Mapping[str, Scalar]
    output_dir: Path
    results: Path

    @property
    def name(self) -> str:
        """What it is called in its sweep."""
        return "_".join(f"{key}-{value}" for key, value in self.point.items())

    @cached_property
    def cell(self) -> Cell:
        """The cell, made when it is its turn: that takes a look at each of the data set's files."""
        return make_cell(self.sweep, self.name, self.settings, self.output_dir, self.data)

    def is_in(self, rows: Sequence[Mapping[str, str]]) -> bool:
        """Tell whether one of the rows is of this cell."""
        return any(all(_same(row.get(key), v) for key, v in self.point.items()) for row in rows)

    @property
    def work(self) -> float:
        """How long it takes, in rounds without adversarial samples."""
        slow = self.settings["attack"] == "adversarial"
        return int(self.settings["num-server-rounds"]) * (_ADVERSARIAL if slow else 1.0)


def cells_of(
    path: Path, data_dir: str, output_dir: Path, seed: int, results: Path = RESULTS
) -> list[Wanted]:
    """Return the cells of a sweep's file with one seed, in its order.

    Parameters
    ----------
    path : Path
        A TOML file of run-config keys with lists for axes, as ``simulation.py sweep`` reads it,
        without ``[[cells]]``.
    data_dir : str
        Where the files of its data set are; CIFAR-10 may be a folder of images.
    output_dir : Path
        Runs go to ``<output>/<sweep>/``.
    seed : int
        Of each cell.
    results : Path
        Rows go to ``<results>/<sweep>.csv``.

    Raises
    ------
    ConfigError
        If the file cannot be read, or a setting is not allowed.
    """
    try:
        spec = flatten(tomllib.loads(path.read_text()))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"sweep {str(path)!r}: {error}") from error
    for key in ("cells", "seed", "seeds"):
        if key in spec:
            raise ConfigError(f"{key} in {str(path)!r}; allowed in a queue: axes, and --seeds")
    name = str(spec.pop("name", path.stem))
    defaults = default_run_config()
    found, title = find_data(str(spec.get("dataset", defaults["dataset"])), data_dir)
    axes = {key: value for key, value in spec.items() if isinstance(value, list)}
    wanted = []
    for values in product(*axes.values()):
        point: dict[str, Scalar] = {**dict(zip(axes, values, strict=True)), "seed": seed}
        settings = {**defaults, **spec, **found, **point}
        settings = {key: value for key, value in settings.items() if chosen(key, settings)}
        RunConfig.from_run_config(settings)  # What is not allowed is said before the first cell.
        file = results / f"{name}.csv"
        wanted.append(Wanted(name, title, settings, point, output_dir, file))
    return wanted


def by_worth(data_dir: str, output_dir: Path, seeds: int = SEEDS) -> Iterator[Wanted]:
    """Yield the cells of the ten columns in which influence descent is to be compared.

    First what a claim rests on: the baselines where influence descent has been measured; then
    influence descent and the baselines in each column; then the same with further seeds.
    """
    for seed in range(seeds):
        of = {
            column: cells_of(
                RESULTS / f"influence-descent-{column}.toml", data_dir, output_dir, seed
            )
            for column in COLUMNS
        }
        first = [(column, method) for column in COMPARED for method in BASELINES]
        later = [(column, method) for column in COLUMNS for method in (DESCENT, *BASELINES)]
        for column, method in dict.fromkeys([*first, *later]):
            for one in of[column]:
                if (one.point["strategy"], one.point["server-optimizer"]) == method:
                    yield one


def missing(wanted: Sequence[Wanted]) -> list[Wanted]:
    """Return those cells of which the results have no row."""
    rows = {path: _rows(path) for path in {one.results for one in wanted}}
    return [one for one in wanted if not one.is_in(rows[one.results])]


class Progress:
    """Prints a line as rounds end: where the queue is, and when it will be done.

    Parameters
    ----------
    todo : sequence of Wanted
        What the queue has to do.
    every : int
        Rounds between two lines, >= 1.
    """

    def __init__(self, todo: Sequence[Wanted], every: int = 10) -> None:
        self._todo = todo
        self._every = every
        self._at = 0
        self._seconds = self._work = 0.0
        self._since = time.monotonic()

    def on_start(self, cell: Cell) -> None:
        """Take the time at which a cell begins, and find its place in the queue."""
        self._at = next(i for i, one in enumerate(self._todo) if one.cell is cell)
        self._since = time.monotonic()
        typer.echo(f"[{self._at + 1}/{len(self._todo)}] {cell.group} {cell.name}")

    def on_row(self, cell: Cell, row: RoundRow) -> None:
        """Say how far a cell is, and when it and the queue will have ended."""
        now = time.monotonic()
        rounds, one = cell.config.num_server_rounds, self._todo[self._at]
        if row.round:  # Round 0 is the initial model's.
            self._seconds += now - self._since
            self._work += one.work / rounds
            if row.round % self._every == 0:
                left = one.work * (1 - row.round / rounds)
                after = sum(other.work for other in self._todo[self._at + 1 :])
                pace = self._seconds / self._work
                typer.echo(
                    f"  round {row.round} of {rounds}, {pace:.1f} s a round; this cell until "
                    f"{_clock(pace * left)}, the queue until {_clock(pace * (left + after))}"
                )
        self._since = now

    def on_end(self, outcome: Outcome) -> None:
        """Say why a cell failed, if it did."""
        if outcome.failed:
            typer.echo(f"  failed: {outcome.error}", err=True)


def work_through(todo: Sequence[Wanted], revision: str, progress: Progress) -> bool:
    """Run cells one after the other, add the row of each, and return whether all are complete.

    A signal ends it after the round's current client; what was complete of the cell is kept.

    Raises
    ------
    KeyboardInterrupt
        If a signal asked for an end.
    """
    complete = True
    with StopRequest() as stop, torch_threads(1):
        for one in todo:
            if (run_dir := find_result(one.cell)) is None:
                grid = LocalGrid(task_app(), one.cell.config.num_clients)
                (outcome,) = run_grid(
                    grid,
                    [one.cell],
                    progress,
                    jobs=1,
                    stopped=lambda: stop.signal_number is not None,
                )
                run_dir = outcome.run_dir
                if run_dir is None and not outcome.failed:
                    raise KeyboardInterrupt
            complete = (run_dir is not None and _add_row(one, run_dir, revision)) and complete
            if stop.signal_number is not None:
                raise KeyboardInterrupt
    return complete


def _add_row(one: Wanted, run_dir: Path, revision: str) -> bool:
    """Append the row of a complete run to its sweep's; tell whether it evaluated its model."""
    measured = read_measurement(run_dir)
    if measured is None:
        return False
    own = {"revision": revision, "processor": machine()["processor"]}
    write_csv(one.results, [*_rows(one.results), {**to_row(measured), **own}])
    return True


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _same(text: str | None, value: Scalar) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return (text or "").lower() == str(value).lower()
    try:
        return float(text or "") == value
    except ValueError:
        return False


def _clock(seconds: float) -> str:
    return f"{datetime.now() + timedelta(seconds=seconds):%a %H:%M}"


def work_off(find: Callable[[], Sequence[Wanted]], *, show: bool = False) -> NoReturn:
    """Run those cells that have no row, as a command: say where it is, and how it goes on.

    Parameters
    ----------
    find : callable
        Returns all cells; what it raises of this package's errors is said in a line.
    show : bool
        Say what is missing, and run nothing.
    """
    wanted: Sequence[Wanted] = ()
    try:
        wanted = find()
        todo = missing(wanted)
        typer.echo(f"{len(wanted) - len(todo)} of {len(wanted)} cells have a row")
        if show:
            for one in todo:
                typer.echo(f"{one.sweep} {one.name}")
            raise typer.Exit(0)
        complete = work_through(todo, committed_revision(), Progress(todo))
    except KeyboardInterrupt:
        left = len(missing(wanted))
        typer.echo(f"stopped: {left} of {len(wanted)} cells left; go on with: {own_command()}")
        typer.echo("on another machine: commit docs/results first; a half cell begins anew there")
        raise typer.Exit(130) from None
    except FedIFError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    raise typer.Exit(0 if complete else 1)


def main(
    sweeps: Annotated[
        list[Path] | None,
        typer.Argument(help="TOML files, in order of worth; default: influence descent's columns"),
    ] = None,
    data_dir: Annotated[str, typer.Option(help="where the data sets' files are")] = "",
    output_dir: Annotated[Path, typer.Option(help="of runs and checkpoints")] = Path("runs/queue"),
    seeds: Annotated[
        int, typer.Option(min=1, help="the seeds 0, 1 ..., one after another")
    ] = SEEDS,
    show: Annotated[bool, typer.Option("--list", help="say what is missing, and end")] = False,
) -> None:
    """Measure what the rows in docs/results lack, in order of worth."""

    def wanted() -> list[Wanted]:
        if not sweeps:
            return list(by_worth(data_dir, output_dir, seeds))
        return [
            one
            for seed in range(seeds)
            for path in sweeps
            for one in cells_of(path, data_dir, output_dir, seed)
        ]

    work_off(wanted, show=show)


if __name__ == "__main__":
    typer.run(main)
