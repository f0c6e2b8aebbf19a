"""A simulation in this process: Flower's actors on Ray, no SuperLink."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from flwr.clientapp import ClientApp

from fedif_flower.errors import DataError
from fedif_flower.run.config import RunConfig
from fedif_flower.run.federation import run_federation
from fedif_flower.run.folder import hold_directory
from fedif_flower.run.loaded_task import load_task, site_of
from fedif_flower.run.part import RunPart
from fedif_flower.run.preflight import require_never_late, with_free_folder
from fedif_flower.run.writer import OnRow
from fedif_flower.runtime.ray_grid import ray_grid
from fedif_flower.tasks.task import ClientSite


def simulate(
    config: RunConfig,
    client_app: ClientApp,
    *,
    cpus_per_client: int = 1,
    gpus_per_client: float = 0.0,
    on_row: OnRow | None = None,
    parts: Sequence[RunPart] | None = None,
) -> Path:
    """Run one federation on Ray in this process and return the directory of its results.

    Parameters
    ----------
    config : RunConfig
        The run's settings; ``num_clients`` nodes are simulated.
    client_app : ClientApp
        What the clients run.
    cpus_per_client : int
        CPU cores for each client, >= 1: with c cores, c // cpus_per_client clients run at once.
    gpus_per_client : float
        GPUs for each client, >= 0; a share of one is allowed.
    on_row : callable, optional
        Called with each :class:`~fedif_flower.server.record.Round`, once its line of ``rounds.csv``
        is written.
    parts : sequence of RunPart, optional
        As :func:`~fedif_flower.run.federation.run_federation` takes them.

    Raises
    ------
    FedIFError
        If anything stops the run.
    """
    # Errors are to show before Ray starts. So client 0 loads its data here, which divides the data
    # among the clients. That this client has too few data (DataError) need not stop the run.
    require_never_late(config)
    loaded = load_task(with_free_folder(config))
    with suppress(DataError):
        site = ClientSite(config.seed, site_of(config).data_dir, 0, config.num_clients)
        loaded.task.load("client_data", site)
    with hold_directory(loaded.config.run_dir):
        pass  # Only to see that it is free and can be written to; run_federation holds it later.
    with ray_grid(
        client_app,
        config.num_clients,
        cpus_per_client=cpus_per_client,
        gpus_per_client=gpus_per_client,
    ) as grid:
        if not config.resume:
            # While Ray started, another run may have begun in a folder of an automatic name. Only
            # the name is taken over: in the loaded task's settings "auto" is resolved.
            run_name = with_free_folder(config).run_name
            loaded = replace(loaded, config=loaded.config.replace(run_name=run_name))
        return run_federation(grid, config, on_row, loaded=loaded, parts=parts)
