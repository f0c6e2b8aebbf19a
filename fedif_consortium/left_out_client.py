"""The part that a client has in place of all parts of this package, without the extra.

Keys of a member's node config that ask for the missing parts protect the member. So a client whose
node config has such a key does not train.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp.typing import ClientAppCallable, Mod

from fedif_consortium.extra import what_it_needs
from fedif_flower.client.app import ClientPart
from fedif_flower.errors import ConfigError
from fedif_flower.messages.node_config import NodeConfig
from fedif_flower.messages.preflight import Finding, Status

if TYPE_CHECKING:
    from fedif_flower.tasks.task import Task

# Keys of a node config, and of the instructions that a run's server sends, that ask for a part of
# this package.
NODE_KEYS = ("statement-dir", "keeper-key", "signing-key", "receipts-dir", "gradients-dir")
TOLD_KEYS = ("masking-mode", "require-signatures")
logger = logging.getLogger(__name__)


class LeftOutOfClient(ClientPart):
    """Lets a client train only if neither its node config nor the run asks for a missing part."""

    def mods(self, task: Task | None) -> Sequence[Mod]:  # noqa: ARG002
        """Return the mod that refuses to train if a missing part is asked for."""
        return [refuse_what_is_asked]

    def checks(self, node: NodeConfig, settings: ConfigRecord) -> Sequence[Finding]:
        """Return one failed finding if a missing part is asked for, else none."""
        left_out_key = asked_key(node, settings)
        if left_out_key is None:
            logger.info("%s", what_it_needs("left out: what a consortium adds, which"))
            return []
        return [Finding("node", Status.FAILED, what_it_needs(left_out_key))]


def refuse_what_is_asked(
    message: Message, context: Context, call_next: ClientAppCallable
) -> Message:
    """Train as without this mod, unless a missing part is asked for.

    Raises
    ------
    ConfigError
        If the node config or the run's instructions ask for a part that is missing.
    """
    node = NodeConfig.from_node_config(context.node_config)
    left_out_key = asked_key(node, cast(ConfigRecord, message.content["config"]))
    if left_out_key is not None:
        raise ConfigError(what_it_needs(left_out_key))
    return call_next(message, context)


def asked_key(node: NodeConfig, settings: ConfigRecord) -> str | None:
    """Return the first key of a node config or of a run's instructions that needs a missing part.

    ``None``: neither asks for one.
    """
    of_node = node.to_mapping()
    for key in NODE_KEYS:
        if of_node.get(key):
            return key
    for key in TOLD_KEYS:
        if settings.get(key):
            return key
    return None
