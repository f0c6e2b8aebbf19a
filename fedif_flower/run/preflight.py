"""Before the first round: how many clients there are, and whether they can train at all."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from itertools import count

import torch
from flwr.serverapp import Grid

from fedif_flower.errors import ConfigError, DataError, FedIFError
from fedif_flower.messages.screened_grid import is_reliable
from fedif_flower.run.config import RunConfig
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.loaded_task import LoadedTask
from fedif_flower.settings import AUTO, Scalar
from fedif_flower.strategies.nodes import (
    NODE_TIMEOUT,
    is_simulated,
    other_number_simulated,
    simulated_nodes,
    wait_for_nodes,
)
from fedif_flower.tasks.batches import count_examples
from fedif_flower.tasks.task import ClientSite

logger = logging.getLogger(__name__)

KEY = "num-clients"
MOST = 2**31 - 1


def read_config(grid: Grid, run_config: Mapping[str, Scalar]) -> RunConfig:
    """Parse a run config; ``num-clients = "auto"`` is the number of nodes that there are now.

    In a simulation these are all of its nodes. Elsewhere they are those online, as soon as there
    are two of them and enough for ``min-valid-replies``; nodes that come later are asked as well.

    Parameters
    ----------
    grid : Grid
        The way to the nodes.
    run_config : mapping of str to bool, int, float or str
        Values by key; a key that is not there has its default.

    Raises
    ------
    ConfigError
        Naming the key, its value and what is allowed.
    TrainingFailedError
        If too few nodes come online.
    """
    values = {**RunConfig.defaults(), **run_config}
    if values[KEY] != AUTO:
        return RunConfig.from_run_config(values)
    # Every other mistake is an error before anyone is waited for.
    wanted = RunConfig.from_run_config({**values, KEY: MOST})
    if is_simulated(grid):
        found = len(simulated_nodes(grid))
        which = "simulated"
        more = f'--federation-config "num-supernodes={max(100, 10 * found)}"'
    elif wanted.resume:
        raise ConfigError(
            f"{KEY} = 'auto' with resume = {wanted.resume!r}; allowed: the number of the run that "
            "is to go on, since other nodes may be online now"
        )
    else:
        found = len(wait_for_nodes(grid, _fewest(wanted), NODE_TIMEOUT, KEY))
        which, more = "online now", "start SuperNodes before the run"
    config = RunConfig.from_run_config({**values, KEY: found})
    logger.info(
        "%s = %d: the nodes that are %s, %d of them in a round; for more: %s",
        KEY,
        found,
        which,
        config.clients_per_round,
        more,
    )
    return config


def with_free_folder(config: RunConfig) -> RunConfig:
    """Return a run's config with a folder in which no other run's results would be lost.

    A name of the run's own choice gets a number where it is taken: ``...-2``.

    Raises
    ------
    ConfigError
        If the name was given, and the folder holds a run, finished or stopped.
    """
    if config.overwrite or config.resume or not (held := _held(config)):
        return config
    if config.run_name != config.auto_name:
        raise ConfigError(
            f"run-name = {config.run_name!r}: {config.run_dir} holds {held[0]}; allowed: "
            f"{held[1]}another run-name, or overwrite = true"
        )
    numbered = (config.replace(run_name=f"{config.auto_name}-{n}") for n in count(2))
    return next(other for other in numbered if not _held(other))


def _held(config: RunConfig) -> tuple[str, str] | None:
    """Return what a run's folder holds that would be lost, and how to go on with it, in words."""
    folder = RunFolder(config.run_dir)
    if folder.is_complete():
        return "a finished run", ""
    if folder.checkpoints.is_dir() and any(folder.checkpoints.iterdir()):
        return "a run that stopped", "resume = 'auto' to go on with it, "
    return None


def require_simulated(grid: Grid, config: RunConfig) -> None:
    """Raise ConfigError if another number of nodes is simulated than the run has clients."""
    if is_simulated(grid) and (found := len(simulated_nodes(grid))) != config.num_clients:
        raise other_number_simulated(found, config.num_clients, KEY)


def warn_of_one(config: RunConfig) -> None:
    """Say what to do where a round has one of several clients: nothing can be weighed."""
    if config.clients_per_round == 1 < config.num_clients:
        logger.warning(
            "one of %d clients trains in each round, and its update counts whole, whatever it is "
            "worth: a higher fraction-train (%g here) lets them be compared",
            config.num_clients,
            config.fraction_train,
        )


def wait_for_clients(grid: Grid, config: RunConfig) -> None:
    """Wait until as many nodes are online as the run has clients.

    Raises
    ------
    TrainingFailedError
        If they are too few when the time is over.
    """
    wait_for_nodes(grid, config.num_clients, NODE_TIMEOUT, KEY)


def try_clients(grid: Grid, loaded: LoadedTask) -> None:
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
        _try_data(loaded)
        _try_model(loaded)


def _try_data(loaded: LoadedTask) -> None:
    config, task, error = loaded.config, loaded.task, None
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


def _try_model(loaded: LoadedTask) -> None:
    ours, theirs = _arrays(loaded.model), _arrays(loaded.task.build_model(seed=0))
    for name in dict.fromkeys([*ours, *theirs]):
        if ours.get(name) != theirs.get(name):
            raise ConfigError(
                f"task {loaded.task.name!r}: model() gives another model each time: {name!r} is "
                f"{ours.get(name, 'not there')} on the server, {theirs.get(name, 'not there')} on "
                "a client"
            )


def _arrays(model: torch.nn.Module) -> dict[str, str]:
    """Return dtype and shape of a model's arrays by name."""
    state = model.state_dict()
    return {
        name: f"{str(a.dtype).removeprefix('torch.')} {list(a.shape)}" for name, a in state.items()
    }


def _fewest(config: RunConfig) -> int:
    """Return the least number of clients: two, and enough for a round of min-valid-replies."""
    replies = config.min_valid_replies
    return 2 if replies == 1 else max(2, math.ceil(replies / config.fraction_train - 1e-9))
