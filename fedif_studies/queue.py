"""``python -m fedif_studies.queue``: the cells that results still lack, in order of their worth.

One process, one cell at a time, one core. A row goes to ``docs/results/<sweep>.csv`` as soon as its
cell is complete: a queue that is stopped goes on in the middle of its cell, and on another machine
after the last row that was committed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated

import typer

from fedif_flower.client.app import task_app
from fedif_flower.errors import ConfigError, FedIFError
from fedif_flower.foreign import read_toml
from fedif_flower.run.config import RunConfig, default_run_config
from fedif_flower.run.federation import run_federation
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.runtime.shared_grid import SharedGrid
from fedif_flower.settings import Scalar
from fedif_studies.lab.cells import find_result, make_cell
from fedif_studies.lab.data import find_data
from fedif_studies.lab.measurements import read_measurement, to_row
from fedif_studies.lab.run import fill, missing, stop_requested
from fedif_studies.lab.spec import chosen, flatten
from fedif_studies.rows import RESULTS, Row

# Influence descent is compared with FedAvg and FedIF there.
COLUMNS = (
    *("cifar10-label-noise-heavy", "cifar10-gradient-noise", "fashion-mnist-label-noise-heavy"),
    *("cifar10-clean", "cifar10-label-noise-light", "fashion-mnist-clean"),
    *("fashion-mnist-gradient-noise", "fashion-mnist-label-noise-light"),
    *("cifar10-adversarial", "fashion-mnist-adversarial"),
)
COMPARED = (("fedavg", "off"), ("fedif", "off"), ("influence-descent", "fedavgm"))
SEEDS = 3


def cells_of(path: Path, data_dir: str, seed: int) -> tuple[list[Row], dict[str, Scalar], str]:
    """Return the cells of a sweep's file with one seed, what they share, and the data's name.

    Parameters
    ----------
    path : Path
        A TOML file of run-config keys with lists for axes, as ``fedif sweep`` reads it, without
        ``[[cells]]``.
    data_dir : str
        Where the files of its data set are; CIFAR-10 may be a folder of images.
    seed : int
        Of each cell.

    Raises
    ------
    ConfigError
        If the file cannot be read, or a setting is not allowed.
    """
    spec = flatten(read_toml(path))
    for key in ("cells", "seed", "seeds"):
        if key in spec:
            raise ConfigError(f"{key} in {str(path)!r}; allowed in a queue: axes, and --seeds")
    spec.pop("name", None)
    defaults = default_run_config()
    found, title = find_data(str(spec.get("dataset", defaults["dataset"])), data_dir)
    axes = {key: value for key, value in spec.items() if isinstance(value, list)}
    common: dict[str, Scalar] = {**defaults, **spec, **found}
    cells: list[Row] = []
    for values in product(*axes.values()):
        point = {**dict(zip(axes, values, strict=True)), "seed": seed}
        RunConfig.from_run_config(settings_of(common, point))  # Said before the first cell.
        cells.append(point)
    return cells, common, title


def settings_of(common: Mapping[str, Scalar], cell: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return a cell's settings, without those of sections that it does not choose."""
    settings = {**common, **cell}
    return {key: value for key, value in settings.items() if chosen(key, settings)}


def resumed(
    sweep: str, data: str, output_dir: Path, settings: Mapping[str, Scalar], name: str
) -> list[Row]:
    """Run a cell, or what is left of it, and return its row; none if it never evaluated."""
    cell = make_cell(sweep, name, settings, output_dir, data)
    run_dir = find_result(cell)
    if run_dir is None:
        cell.config.run_dir.mkdir(parents=True, exist_ok=True)
        cell.label()
        grid = LocalGrid(task_app(), cell.config.num_clients)
        run_dir = run_federation(SharedGrid(grid, stop_requested), cell.config)
    measured = read_measurement(run_dir)
    return [] if measured is None else [dict(to_row(measured))]


def measure(
    sweep: str, data: str, output_dir: Path, common: Mapping[str, Scalar], cell: Row
) -> Sequence[Row]:
    """Run a cell of a sweep."""
    name = "_".join(f"{key}-{value}" for key, value in cell.items())
    point: dict[str, Scalar] = dict(cell)  # type: ignore[arg-type]
    return resumed(sweep, data, output_dir, settings_of(common, point), name)


def main(
    sweeps: Annotated[
        list[Path] | None,
        typer.Argument(help="TOML files, in order of worth; default: influence descent's columns"),
    ] = None,
    data_dir: Annotated[str, typer.Option(help="where the data sets' files are")] = "",
    output_dir: Annotated[Path, typer.Option(help="of runs and checkpoints")] = Path("runs/queue"),
    seeds: Annotated[int, typer.Option(min=1, help="the seeds 0, 1 ...")] = SEEDS,
    show: Annotated[bool, typer.Option("--list", help="say what is missing, and end")] = False,
) -> None:
    """Measure what the rows in docs/results lack, in order of worth."""
    paths = sweeps or [RESULTS / f"influence-descent-{column}.toml" for column in COLUMNS]
    complete = True
    try:
        for seed, path in product(range(seeds), paths):
            cells, common, data = cells_of(path, data_dir, seed)
            if not sweeps:
                cells = [c for c in cells if (c["strategy"], c["server-optimizer"]) in COMPARED]
            rows = RESULTS / f"{path.stem}.csv"
            if show:
                for cell in missing(rows, cells):
                    typer.echo(f"{path.stem} {', '.join(map(str, cell.values()))}")
                continue
            own = partial(measure, path.stem, data, output_dir, common)
            complete = fill(rows, cells, own) and complete
    except FedIFError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(getattr(error, "exit_code", 2)) from None
    raise typer.Exit(0 if complete else 1)


if __name__ == "__main__":
    typer.run(main)
