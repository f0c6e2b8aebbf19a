"""A member's side of masked runs: a mod around its training, and a check before the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp.typing import ClientAppCallable, Mod

from fedif_flower.client.part import ClientPart

if TYPE_CHECKING:
    from fedif_flower.messages.node_config import NodeConfig
    from fedif_flower.messages.preflight import Finding
    from fedif_flower.tasks.task import Task

MASKING_KEY = "masking-mode"  # In the question before a run.


class MaskedReplies(ClientPart):
    """The update leaves under a mask where the run, or the node itself, wants it so."""

    def mods(self, task: Task | None) -> Sequence[Mod]:
        """Return what masks a reply."""

        def mask(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
            from fedif_consortium.masking.masked_reply import masked_round

            return masked_round(message, context, call_next, task)

        return [mask]

    def checks(self, node: NodeConfig, settings: ConfigRecord) -> Sequence[Finding]:
        """Return whether the run is masked as the node wants it."""
        from fedif_consortium.masking.masked_reply import check_masking
        from fedif_flower.client.preflight import tried

        mode = str(settings.get(MASKING_KEY, "off"))
        return [tried("masking", lambda: check_masking(node, mode))]
