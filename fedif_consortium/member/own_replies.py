"""Signatures and receipts of what leaves: made here, where no app of the operator's runs.

The member's key stays in this process. What is signed and noted is what the policy lets out, not
what the app offered; other apps' replies stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict

from fedif_consortium.evidence.attempts import agreed_in
from fedif_consortium.evidence.keys import SigningKey
from fedif_consortium.evidence.member_receipts import ReceiptKeeper, require_room, take_receipts
from fedif_consortium.evidence.signed import record_digest, sign_reply
from fedif_flower.errors import ConfigError, EvidenceError, ReplyError
from fedif_flower.messages.arrays import arrays_of
from fedif_flower.messages.instructions import RECEIPTS_KEY, ROUND_KEY, RUN_ID_KEY
from fedif_flower.messages.preflight import RECORD, Status
from fedif_flower.settings import Scalar

RECEIPTS_DIR, SIGNING_KEY, KEEPER_KEY = "receipts-dir", "signing-key", "keeper-key"


def app_config(node_config: Mapping[str, Scalar], key: str) -> dict[str, Scalar]:
    """Return the node config that an app gets beside a guard.

    Receipts are the guard's. An app is told of the member's key in masked runs alone, in which it
    signs the box that its mask lies in.

    Parameters
    ----------
    node_config : mapping of str to bool, int, float or str
        The SuperNode's.
    key : str
        The file of the key that the SuperNode logs in with; empty: none.
    """
    config = {k: v for k, v in node_config.items() if k not in (RECEIPTS_DIR, SIGNING_KEY)}
    boxes = node_config.get(SIGNING_KEY, key)
    return config | ({SIGNING_KEY: boxes} if KEEPER_KEY in config and boxes else {})


class OwnReplies:
    """Signs each update of this project's app as it leaves, and keeps the member's receipts.

    Parameters
    ----------
    node_id : int
        The member's.
    node_config : mapping of str to bool, int, float or str
        The SuperNode's: it names the folder of receipts.
    key : SigningKey, optional
        Signs; ``None``: nothing is signed.
    """

    def __init__(
        self, node_id: int, node_config: Mapping[str, Scalar], key: SigningKey | None
    ) -> None:
        self._key = key
        self._context = Context(0, node_id, dict(node_config), RecordDict(), {})

    def take(self, received: RecordDict, *, is_round: bool) -> None:
        """Check and keep what a message tells of the server's records.

        Raises
        ------
        StorageError
            If it asks for an update, and there is no room for the evidence of it.
        """
        if not self._context.node_config.get(RECEIPTS_DIR):
            return
        if is_round:
            require_room(received, self._context)
        take_receipts(received, self._context, is_round=is_round)

    def sign(self, received: RecordDict, leaving: RecordDict) -> Callable[[], None] | None:
        """Sign what leaves; return what notes it, if it is to be, to be called once it has left."""
        found = leaving.get(RECORD)
        if self._key is not None and isinstance(found, ConfigRecord):
            found[SIGNING_KEY] = f"{Status.OK}: the guard signs"
        settings, model = received.get("config"), received.get("arrays")
        if not isinstance(settings, ConfigRecord) or not isinstance(model, ArrayRecord):
            return None
        run, server_round = str(settings.get(RUN_ID_KEY, "")), settings.get(ROUND_KEY)
        if not run or not isinstance(server_round, int):
            return None  # Another app's.
        try:
            sent = record_digest(arrays_of(leaving))
        except ReplyError:
            return None
        agreed = agreed_in(settings)
        keeper, signed = None, None
        if self._context.node_config.get(RECEIPTS_DIR):
            with suppress(ConfigError, EvidenceError):
                # A server that has told of its records cannot take back that it did.
                own = ReceiptKeeper(self._context, run)
                keeper = own if settings.get(RECEIPTS_KEY) or own.last_root else None
        if self._key is not None:
            about = {"run": run, "asked_in": server_round, "node_id": self._context.node_id}
            about |= agreed.terms()
            head = keeper.last_root if keeper else b""
            signed = sign_reply(leaving, model, self._key, head=head, **about)
        if keeper is None:
            return None
        return partial(keeper.note_sent, server_round, sent, signed, agreed)
