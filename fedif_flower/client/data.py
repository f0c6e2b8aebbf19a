"""Which data a client asks its task for."""

from __future__ import annotations

from pathlib import Path

from fedif_flower.errors import ConfigError
from fedif_flower.messages.client_config import ClientConfig
from fedif_flower.messages.node_config import NodeConfig
from fedif_flower.tasks.task import ClientSite


def client_site(config: ClientConfig, node: NodeConfig) -> ClientSite:
    """Return what a task's ``client_data`` is told of a node.

    Raises
    ------
    ConfigError
        If node and server do not agree on the number of clients.
    """
    if node.num_partitions not in (None, config.num_clients):
        raise ConfigError(
            f"num-clients = {config.num_clients}, but this node is one of "
            f"{node.num_partitions} partitions: give both the same number"
        )
    data_dir = node.data_dir or config.data_dir
    return ClientSite(
        seed=config.seed,
        data_dir=Path(data_dir) if data_dir else None,
        partition_id=node.partition_id,
        num_partitions=node.num_partitions,
    )
