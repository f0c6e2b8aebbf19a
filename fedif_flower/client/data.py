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
        If there are fewer partitions than clients: some would have the same data. More are
        allowed: nodes may be away, and each keeps its own part.
    """
    if node.num_partitions is not None and node.num_partitions < config.num_clients:
        raise ConfigError(
            f"num-clients = {config.num_clients}, but this node is one of {node.num_partitions} "
            "partitions: no more clients than partitions"
        )
    data_dir = node.data_dir or config.data_dir
    return ClientSite(
        seed=config.seed,
        data_dir=Path(data_dir) if data_dir else None,
        partition_id=node.partition_id,
        num_partitions=node.num_partitions,
    )
