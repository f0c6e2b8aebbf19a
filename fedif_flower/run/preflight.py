"""What of the clients' side can be tried before training, in a simulation: data and model."""

from __future__ import annotations

import torch
from flwr.serverapp import Grid

from fedif_flower.errors import ConfigError, DataError, FedIFError
from fedif_flower.messages.screened_grid import is_reliable
from fedif_flower.run.server import Server
from fedif_flower.tasks.batches import count_examples
from fedif_flower.tasks.task import ClientSite


def try_clients(grid: Grid, server: Server) -> None:
    """Raise in one sentence what would otherwise be every client's error in every round.

    Real nodes have data of their own, which only they can try.

    Raises
    ------
    DataError
        If no client has data: clients are tried until one has.
    ConfigError
        If a client's model would not be the server's.
    """
    if is_reliable(grid):
        _try_data(server)
        _try_model(server)


def _try_data(server: Server) -> None:
    config, task, error = server.config, server.task, None
    for partition_id in range(config.num_clients):
        site = ClientSite(
            config.seed,
            config.data_path,
            partition_id=partition_id,
            num_partitions=config.num_clients,
        )
        try:
            if count_examples(task.load("client_data", site)) != 0:
                return
        except FedIFError as found:
            error = error or found
    raise error or DataError(f"task {task.name!r}: client_data of every client is empty")


def _try_model(server: Server) -> None:
    ours, theirs = _arrays(server.model), _arrays(server.task.build_model(seed=0))
    for name in dict.fromkeys([*ours, *theirs]):
        if ours.get(name) != theirs.get(name):
            raise ConfigError(
                f"task {server.task.name!r}: model() gives another model each time: {name!r} is "
                f"{ours.get(name, 'not there')} on the server, {theirs.get(name, 'not there')} on "
                "a client"
            )


def _arrays(model: torch.nn.Module) -> dict[str, str]:
    """Return dtype and shape of a model's arrays by name."""
    state = model.state_dict()
    return {
        name: f"{str(a.dtype).removeprefix('torch.')} {list(a.shape)}" for name, a in state.items()
    }
