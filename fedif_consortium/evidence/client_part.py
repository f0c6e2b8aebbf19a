"""A member's side of the evidence: signatures and receipts around training, kept gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.clientapp.typing import ClientAppCallable, Mod

from fedif_flower.client.part import ClientPart

if TYPE_CHECKING:
    from fedif_flower.messages.node_config import NodeConfig
    from fedif_flower.messages.preflight import Finding
    from fedif_flower.tasks.task import Task


class SignedReplies(ClientPart):
    """A member signs what it sends, and checks what it is told of the records."""

    def mods(self, task: Task | None) -> Sequence[Mod]:  # noqa: ARG002
        """Return what signs a reply, and takes receipts."""
        return [sign]

    def checks(self, node: NodeConfig, settings: ConfigRecord) -> Sequence[Finding]:  # noqa: ARG002
        """Return whether the node's key can be read."""
        from fedif_consortium.evidence.reply_signing import check_signing_key
        from fedif_flower.client.preflight import tried

        return [tried("signing-key", lambda: check_signing_key(node))]


class KeptGradients(ClientPart):
    """A member keeps the gradients that the server publishes."""

    def mods(self, task: Task | None) -> Sequence[Mod]:  # noqa: ARG002
        """Return what keeps a gradient."""
        return [keep]


def sign(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Take receipts, train, and sign what goes out; a key that cannot be read is said first."""
    from fedif_consortium.evidence.member_receipts import note_sent, take_receipts
    from fedif_consortium.evidence.reply_signing import signed_reply, signing_key
    from fedif_flower.messages.node_config import NodeConfig

    key = signing_key(NodeConfig.from_node_config(context.node_config))
    take_receipts(message.content, context)
    reply = call_next(message, context)
    settings = cast(ConfigRecord, message.content["config"])
    arrays = cast(ArrayRecord, message.content["arrays"])
    signed = None
    if key is not None:
        signed = signed_reply(reply.content, arrays, settings, key, message.metadata.dst_node_id)
    note_sent(reply.content, settings, context, signed)
    return reply


def keep(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Keep the gradient in a message, and train."""
    from fedif_consortium.evidence.kept_gradients import keep_gradient
    from fedif_flower.messages.node_config import NodeConfig

    keep_gradient(message.content, NodeConfig.from_node_config(context.node_config))
    return call_next(message, context)
