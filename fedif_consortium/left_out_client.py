"""In the place of this package's parts of a client, where the extra ``consortium`` is missing.

What a member's node config asks of them protects the member: it does not train without.
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

# Of a node config; and of a run's instructions, where the server wants what they do.
NODE_KEYS = ("statement-dir", "keeper-key", "signing-key", "receipts-dir", "gradients-dir")
TOLD_KEYS = ("masking-mode", "require-signatures")
logger = logging.getLogger(__name__)


class LeftOutOfClient(ClientPart):
    """Lets a member train where neither it nor the run asks for more."""

    def mods(self, task: Task | None) -> Sequence[Mod]:  # noqa: ARG002
        """Return what refuses to train."""
        return [refuse_what_is_asked]

    def checks(self, node: NodeConfig, settings: ConfigRecord) -> Sequence[Finding]:
        """Return why this node cannot take part, if it cannot."""
        left_out_key = asked_key(node, settings)
        if left_out_key is None:
            logger.info("%s", what_it_needs("left out: what a consortium adds, which"))
            return []
        return [Finding("node", Status.FAILED, what_it_needs(left_out_key))]


def refuse_what_is_asked(
    message: Message, context: Context, call_next: ClientAppCallable
) -> Message:
    """Train.

    Raises
    ------
    ConfigError
        If the node or the run asks for what is left out.
    """
    node = NodeConfig.from_node_config(context.node_config)
    left_out_key = asked_key(node, cast(ConfigRecord, message.content["config"]))
    if left_out_key is not None:
        raise ConfigError(what_it_needs(left_out_key))
    return call_next(message, context)


def asked_key(node: NodeConfig, settings: ConfigRecord) -> str | None:
    """Return the key by which a node, or a run's instructions, ask for what is left out."""
    of_node = node.to_mapping()
    for key in NODE_KEYS:
        if of_node.get(key):
            return key
    for key in TOLD_KEYS:
        if settings.get(key):
            return key
    return None
