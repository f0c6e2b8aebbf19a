"""Runs grids of federations: each grid in one simulation, resumable, stopped by a signal."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from rich.console import Console

from fedif_flower.errors import TrainingFailedError
from fedif_flower.run.report import require_last_round
from fedif_flower.runtime.processes import StopRequest, own_command
from fedif_flower.runtime.shared_grid import GridInterrupted
from fedif_flower.runtime.simulation import run_on_ray
from fedif_flower.tasks.registry import build_task
from fedif_studies.lab.cells import Cell, by_num_clients, distinct, find_result
from fedif_studies.lab.federations import GridClock, Outcome, run_grid
from fedif_studies.lab.progress import GridProgress

# launch(num_clients, main) calls main(grid, actors); so many actors train at once.
Launch = Callable[[int, Callable[[Grid, int], None]], None]
_MOST_JOBS = 16


@dataclass(frozen=True)
class RayLauncher:
    """Starts Flower's simulation on Ray for a grid.

    Attributes
    ----------
    client_app : ClientApp
        The clients.
    cpus_per_client : int
        Cores per client, >= 1; decides how many train at once.
    gpus_per_client : float
        Share of a GPU per client, >= 0.
    """

    client_app: ClientApp
    cpus_per_client: int = 1
    gpus_per_client: float = 0.0

    def __call__(self, num_clients: int, main: Callable[[Grid, int], None]) -> None:
        """Call ``main(grid, actors)`` beside so many simulated clients."""
        run_on_ray(
            lambda grid: main(grid, grid.num_actors),
            self.client_app,
            num_clients=num_clients,
            cpus_per_client=self.cpus_per_client,
            gpus_per_client=self.gpus_per_client,
        )


def run_cells(
    cells: Sequence[Cell],
    launch: Launch,
    console: Console,
    *,
    jobs: int | None = None,
) -> bool:
    """Run every cell that is not complete, and return whether all are complete afterwards.

    Parameters
    ----------
    cells : sequence of Cell
        In the order in which they are begun.
    launch : callable
        Gives a grid to the clients, once for all cells with the same number of clients.
    console : Console
        Where progress is shown.
    jobs : int, optional
        Cells at a time, >= 1; ``None``: enough to keep every actor busy, if memory allows.

    Raises
    ------
    GridInterrupted
        If a signal asked for an end; the same call goes on from there.
    """
    wanted = distinct(cells)
    missing = [cell for cell in wanted if find_result(cell) is None]
    if len(missing) < len(wanted):
        console.print(f"{len(wanted) - len(missing)} of {len(wanted)} cells are complete already")
    outcomes: list[Outcome] = []
    with StopRequest() as stop:
        for group in by_num_clients(missing):
            outcomes += _run_group(group, launch, console, jobs, stop)
            if stop.signal_number is not None:
                done = sum(find_result(cell) is not None for cell in wanted)
                raise GridInterrupted(
                    f"stopped: {done} of {len(wanted)} cells are complete; go on with the same "
                    f"command: {own_command()}"
                )
    failed = [outcome for outcome in outcomes if outcome.failed]
    for outcome in failed:
        console.print(f"failed: {outcome.cell.name}: {outcome.error}", style="red", markup=False)
    return not failed and _last_rounds_worked(wanted, console)


def _last_rounds_worked(cells: Sequence[Cell], console: Console) -> bool:
    """Return whether no complete cell ended with a failed round, and name those that did."""
    worked = True
    for cell in cells:
        if (run_dir := find_result(cell)) is not None:
            try:
                require_last_round(run_dir)
            except TrainingFailedError as error:
                worked = False
                console.print(f"failed: {cell.name}: {error}", style="red", markup=False)
    return worked


def _run_group(
    cells: list[Cell], launch: Launch, console: Console, jobs: int | None, stop: StopRequest
) -> list[Outcome]:
    outcomes: list[Outcome] = []
    clock = GridClock()

    def main(grid: Grid, actors: int) -> None:
        clock.actors = actors
        at_once = jobs or default_jobs(cells, actors)
        progress.announce(actors, at_once)
        outcomes.extend(
            run_grid(
                grid,
                cells,
                progress,
                jobs=at_once,
                stopped=lambda: stop.signal_number is not None,
            )
        )

    with GridProgress(cells, console) as progress:
        launch(cells[0].config.num_clients, main)
    train_seconds = sum(outcome.train_seconds for outcome in outcomes)
    console.print(clock.describe(train_seconds), highlight=False, soft_wrap=True)
    return outcomes


def default_jobs(cells: Sequence[Cell], actors: int) -> int:
    """Return how many cells keep every actor busy while one more aggregates and evaluates."""
    fewest = min(cell.config.clients_per_round for cell in cells)
    wanted = math.ceil(actors / fewest) + 1
    affordable = available_memory() / 2 / max(map(server_bytes, cells))
    return int(max(1, min(wanted, affordable, len(cells), _MOST_JOBS)))


def server_bytes(cell: Cell) -> int:
    """Return roughly how many bytes the server needs for a cell: mostly models."""
    config = cell.config
    model = build_task(config).build_model(seed=0)
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    # The clients' vectors, their messages and the replies to these; a few global ones.
    return size * (4 * config.clients_per_round + 10)


def available_memory() -> float:
    """Return the bytes of memory that are free, or infinity where that cannot be found out."""
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):
        return math.inf
