"""How many clients a run has: a number that is set, or the nodes that there are as it begins."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

from flwr.serverapp import Grid

from fedif_flower.errors import ConfigError
from fedif_flower.run.config import RunConfig
from fedif_flower.settings import AUTO, Scalar
from fedif_flower.strategies.nodes import (
    NODE_TIMEOUT,
    is_simulated,
    other_number_simulated,
    simulated_nodes,
    wait_for_nodes,
)

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


def require_simulated(grid: Grid, config: RunConfig) -> None:
    """Raise ConfigError if another number of nodes is simulated than the run has clients."""
    if is_simulated(grid) and (found := len(simulated_nodes(grid))) != config.num_clients:
        raise other_number_simulated(found, config.num_clients, KEY)


def wait_for_clients(grid: Grid, config: RunConfig) -> None:
    """Wait until as many nodes are online as the run has clients.

    Raises
    ------
    TrainingFailedError
        If they are too few when the time is over.
    """
    wait_for_nodes(grid, config.num_clients, NODE_TIMEOUT, KEY)


def _fewest(config: RunConfig) -> int:
    """Return the least number of clients: two, and enough for a round of min-valid-replies."""
    replies = config.min_valid_replies
    return 2 if replies == 1 else max(2, math.ceil(replies / config.fraction_train - 1e-9))
