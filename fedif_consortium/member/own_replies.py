"""What an app signs and notes of its replies, brought in line with what leaves.

The app signs its update, and notes it for the member's receipts, before the policy judges it. Where
the policy shortens, rounds, adds noise or refuses, both would be of a reply that nobody got.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict

from fedif_consortium.evidence.member_receipts import ReceiptKeeper
from fedif_consortium.evidence.reply_signing import (
    SIGNATURE_RECORD,
    record_digest,
    signed_reply,
    signing_key,
)
from fedif_flower.errors import ConfigError, EvidenceError, ReplyError
from fedif_flower.messages.instructions import RECEIPTS_KEY, ROUND_KEY, RUN_ID_KEY
from fedif_flower.messages.node_config import NodeConfig
from fedif_flower.messages.reply_arrays import model_arrays_of
from fedif_flower.settings import Scalar


class OwnReplies:
    """Signs and notes replies of this project's app anew; those of other apps stay as they are.

    Parameters
    ----------
    node_id : int
        The member's.
    node_config : mapping of str to bool, int, float or str
        As the app gets it: its key, and its folder of receipts.
    """

    def __init__(self, node_id: int, node_config: Mapping[str, Scalar]) -> None:
        self._node_id, self._config = node_id, dict(node_config)
        try:
            self._key = signing_key(NodeConfig.from_node_config(node_config))
        except ConfigError:  # Another app's, or this one says so itself.
            self._key = None

    def amend(self, received: RecordDict, offered: RecordDict, leaving: RecordDict) -> None:
        """Sign what leaves in place of what the app offered, and note it."""
        model, settings, sent = received.get("arrays"), _settings(received), _arrays(leaving)
        if settings is None or sent is None or not isinstance(model, ArrayRecord):
            return
        signed = None
        if self._key is not None and SIGNATURE_RECORD in leaving:
            signed = signed_reply(leaving, model, settings, self._key, self._node_id)
        digest = record_digest(sent)
        if digest == _digest(offered) or (keeper := self._keeper(settings)) is None:
            return
        self.disown(received, offered)
        keeper.note_sent(_round(settings), digest, signed)

    def disown(self, received: RecordDict, offered: RecordDict) -> None:
        """Take back the note of a reply that does not leave."""
        settings, digest = _settings(received), _digest(offered)
        if settings is None or digest is None or (keeper := self._keeper(settings)) is None:
            return
        keeper.forget_sent(_round(settings), digest)

    def _keeper(self, settings: ConfigRecord) -> ReceiptKeeper | None:
        """Return what notes replies; ``None``: the run has no receipts."""
        if not settings.get(RECEIPTS_KEY):
            return None
        own = Context(0, self._node_id, dict(self._config), RecordDict(), {})
        try:
            return ReceiptKeeper(own, str(settings.get(RUN_ID_KEY, "")))
        except (ConfigError, EvidenceError):
            return None


def _settings(received: RecordDict) -> ConfigRecord | None:
    """Return what the server tells clients of a round; ``None``: it is another app's."""
    found = received.get("config")
    if not isinstance(found, ConfigRecord) or not isinstance(found.get(ROUND_KEY), int):
        return None
    return found


def _round(settings: ConfigRecord) -> int:
    return cast(int, settings[ROUND_KEY])


def _arrays(content: RecordDict) -> ArrayRecord | None:
    """Return the arrays that the app signs; ``None``: it is no reply of this project's app."""
    try:
        return model_arrays_of(content)
    except ReplyError:
        return None


def _digest(content: RecordDict) -> bytes | None:
    """Return what the app noted; ``None``: it has no arrays that can be read."""
    arrays = _arrays(content)
    try:
        return None if arrays is None else record_digest(arrays)
    except (ReplyError, ValueError):
        return None
