"""What a client does for a server that asks: which code it imports, and which data it loads."""

from __future__ import annotations

import json
import sys
from functools import lru_cache
from pathlib import Path

from flwr.app import ConfigRecord

from fedif_flower.errors import ConfigError
from fedif_flower.messages.client_config import ClientConfig
from fedif_flower.messages.instructions import FACTS_KEY, TASK_KEY, read_config
from fedif_flower.messages.node_config import NodeConfig
from fedif_flower.registry import IN_PROCESS, is_import, package_of
from fedif_flower.tasks.config import TaskConfig
from fedif_flower.tasks.registry import build_task
from fedif_flower.tasks.task import ClientSite, Task


def agreed(
    settings: ConfigRecord, node: NodeConfig, task: Task | None
) -> tuple[ClientConfig, Task]:
    """Return a run's settings and its task: the app's own task, or the one that they name.

    Parameters
    ----------
    settings : ConfigRecord
        The run's instructions.
    node : NodeConfig
        The node's config.
    task : Task, optional
        The app's own task; ``None``: the settings name one.

    Raises
    ------
    ConfigError
        If a setting is wrong, names code that this node does not import for a server, or if the
        server's task has another name than this one.
    """
    config = read_config(settings)
    require_trusted(config, node)
    task = task or _named_task(config.extract(TaskConfig), str(settings[FACTS_KEY]))
    if task.name != settings[TASK_KEY]:
        raise ConfigError(
            f"this client's task is {task.name!r}, the server's {settings[TASK_KEY]!r}"
        )
    return config, task


@lru_cache(maxsize=4)
def _named_task(settings: TaskConfig, facts: str) -> Task:
    """Return the task that a run config names; ``facts`` is the server's JSON about its data."""
    return build_task(settings, json.loads(facts))


def require_trusted(config: ClientConfig, node: NodeConfig) -> None:
    """Raise ConfigError if the server names code that this node's operator has not allowed.

    Built-in names and entry points are allowed: the operator has installed their packages. For
    ``module:object`` the package has to be in the node config's ``import-from``, because importing
    a module executes it, and the server could name any module on this host. In a simulation
    everything is allowed, since server and clients belong to one user.
    """
    for key in ("task", "attack", "local-method"):
        name = config.to_mapping()[key]
        package = package_of(str(name))
        if is_import(name) and package not in node.import_from.split() and not is_simulated():
            raise ConfigError(
                f"{key} = {name!r}: this node imports nothing from {package!r} for a server; its "
                f"operator can allow it with import-from={package!r} in the node config"
            )


def client_site(config: ClientConfig, node: NodeConfig) -> ClientSite:
    """Return the site for which a task's ``client_data`` loads this node's data.

    Raises
    ------
    ConfigError
        If there are fewer partitions than clients: some clients would have the same data. More
        partitions are allowed: nodes may be away, and each keeps its own part.
    """
    if node.num_partitions is not None and node.num_partitions < config.num_clients:
        raise ConfigError(
            f"num-clients = {config.num_clients}, but this node is one of {node.num_partitions} "
            "partitions: no more clients than partitions"
        )
    data_dir = node.data_dir or config.data_dir
    return ClientSite(
        seed=config.seed,
        data_dir=Path(data_dir).expanduser() if data_dir else None,
        partition_id=node.partition_id,
        num_partitions=node.num_partitions,
    )


def is_simulated() -> bool:
    """Return whether the client runs in a simulation: in the server's process or one of Ray's."""
    ray = sys.modules.get("ray")
    return IN_PROCESS.get() or (ray is not None and bool(ray.is_initialized()))
