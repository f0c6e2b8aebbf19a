"""A simulation in this process: Flower's actors on Ray, no SuperLink."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from fedif_flower.errors import ConfigError
from fedif_flower.run.config import RunConfig
from fedif_flower.run.federation import run_federation
from fedif_flower.run.loaded_task import load_task
from fedif_flower.run.part import RunPart
from fedif_flower.run.parts import run_parts
from fedif_flower.run.preflight import with_free_folder
from fedif_flower.run.recorder import Again
from fedif_flower.run.writer import OnRow
from fedif_flower.runtime.ray_grid import RayGrid, ray_grid


def simulate(
    config: RunConfig,
    client_app: ClientApp,
    *,
    cpus_per_client: int = 1,
    gpus_per_client: float = 0.0,
    on_row: OnRow | None = None,
    again: Again | None = None,
    parts: Sequence[RunPart] | None = None,
) -> Path:
    """Run one federation on Ray in this process and return the directory of its results.

    Parameters
    ----------
    config : RunConfig
        The run; ``num_clients`` nodes are simulated.
    client_app : ClientApp
        The clients.
    cpus_per_client : int
        Cores per client, >= 1: with c cores, c // cpus_per_client clients run at once.
    gpus_per_client : float
        Share of a GPU per client, >= 0.
    on_row : callable, optional
        Called with each line of ``rounds.csv``.
    again : callable, optional
        As :func:`~fedif_flower.run.federation.run_federation` takes it.
    parts : sequence of RunPart, optional
        As :func:`~fedif_flower.run.federation.run_federation` takes them.

    Raises
    ------
    FedIFError
        Whatever stopped the run.
    """
    parts = run_parts() if parts is None else parts
    config.require_heard(parts)
    loaded = load_task(with_free_folder(config))  # What is wrong is said before Ray starts.
    run_dirs: list[Path] = []

    def main(grid: Grid) -> None:
        run_dir = run_federation(grid, config, on_row, again=again, loaded=loaded, parts=parts)
        run_dirs.append(run_dir)

    run_on_ray(
        main,
        client_app,
        num_clients=config.num_clients,
        cpus_per_client=cpus_per_client,
        gpus_per_client=gpus_per_client,
    )
    return run_dirs[0]


def run_on_ray(
    main: Callable[[RayGrid], None],
    client_app: ClientApp,
    *,
    num_clients: int,
    cpus_per_client: int = 1,
    gpus_per_client: float = 0.0,
) -> None:
    """Call ``main(grid)`` beside ``num_clients`` simulated nodes; re-raise what it raises.

    Parameters
    ----------
    main : callable
        Gets the grid, and runs the federation over it.
    client_app : ClientApp
        What each node runs.
    num_clients : int
        Nodes, >= 1.
    cpus_per_client : int
        Cores that Ray keeps for a client while it works, >= 1.
    gpus_per_client : float
        The same of GPUs, >= 0; 0.1: ten clients share one.
    """
    if cpus_per_client < 1:
        raise ConfigError(f"cpus_per_client = {cpus_per_client}; allowed: >= 1")
    if gpus_per_client < 0:
        raise ConfigError(f"gpus_per_client = {gpus_per_client}; allowed: >= 0")
    # Flower logs every round's settings and metrics; what counts is in the run's own records.
    logging.getLogger("flwr").setLevel(logging.ERROR)
    with ray_grid(
        client_app, num_clients, cpus_per_client=cpus_per_client, gpus_per_client=gpus_per_client
    ) as grid:
        main(grid)
