"""A member's side of the evidence: receipts and kept gradients around training.

Nothing is signed here: an app is the operator's. The member's guard signs what leaves
(:mod:`fedif_consortium.member.own_replies`), and takes receipts in place of this app.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp.typing import ClientAppCallable, Mod

from fedif_flower.client.app import ClientPart

if TYPE_CHECKING:
    from fedif_flower.messages.node_config import NodeConfig
    from fedif_flower.messages.preflight import Finding
    from fedif_flower.tasks.task import Task

SIGNATURES_KEY = "require-signatures"  # In the question before a run.
UNSIGNED = "it has no guard that signs: fedif node start --policy"


class TakenReceipts(ClientPart):
    """A member without a guard checks what it is told of the records."""

    def mods(self, task: Task | None) -> Sequence[Mod]:  # noqa: ARG002
        """Return what takes receipts."""
        return [take]

    def checks(self, node: NodeConfig, settings: ConfigRecord) -> Sequence[Finding]:  # noqa: ARG002
        """Return whether the run takes a member that signs nothing; a guard answers instead."""
        from fedif_flower.messages.preflight import Finding, Status

        if settings.get(SIGNATURES_KEY):
            words = f"this run has require-signatures, and this member does not sign: {UNSIGNED}"
            return [Finding("signing-key", Status.FAILED, words)]
        return [Finding("signing-key", Status.OK, "this member does not sign")]


class KeptGradients(ClientPart):
    """A member keeps the gradients that the server publishes."""

    def mods(self, task: Task | None) -> Sequence[Mod]:  # noqa: ARG002
        """Return what keeps a gradient."""
        return [keep]


def take(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Take receipts, train, and note what goes out, where this node keeps receipts itself."""
    from fedif_consortium.evidence.member_receipts import note_sent, take_receipts
    from fedif_flower.messages.node_config import NodeConfig

    if not NodeConfig.from_node_config(context.node_config).receipts_dir:
        return call_next(message, context)
    take_receipts(message.content, context)
    reply = call_next(message, context)
    note_sent(reply.content, cast(ConfigRecord, message.content["config"]), context)
    return reply


def keep(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Keep the gradient in a message where this node has a folder for it, and train."""
    from fedif_flower.messages.node_config import NodeConfig

    folder = NodeConfig.from_node_config(context.node_config).gradients_dir
    if folder:
        from fedif_consortium.evidence.gradients import keep_gradient

        keep_gradient(message.content, Path(folder).expanduser().absolute())
    return call_next(message, context)
