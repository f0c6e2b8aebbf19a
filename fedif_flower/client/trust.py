"""What a client imports because a server names it."""

from __future__ import annotations

import sys

from fedif_flower.errors import ConfigError
from fedif_flower.messages.client_config import ClientConfig
from fedif_flower.messages.node_config import NodeConfig
from fedif_flower.registry import IN_PROCESS, is_import, package_of


def require_trusted(config: ClientConfig, node: NodeConfig) -> None:
    """Raise ConfigError if the server names code that this node's operator has not allowed.

    Built-in names and entry points are fine: the operator has installed their packages. An import
    ``module:object`` is not, since importing any module that happens to lie here executes it: its
    package has to be among the node config's ``import-from``. In a simulation server and clients
    are one user's.
    """
    named = (
        ("task", config.task),
        ("attack", config.attack),
        ("local-method", config.local_method),
    )
    for key, name in named:
        package = package_of(name)
        if is_import(name) and package not in node.importable and not _is_simulated():
            raise ConfigError(
                f"{key} = {name!r}: this node imports nothing from {package!r} for a server; its "
                f"operator can allow it with import-from={package!r} in the node config"
            )


def _is_simulated() -> bool:
    """Return whether this is the server's own process, or one of Ray's."""
    if IN_PROCESS.get():
        return True
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())
