"""The guard signs the updates that leave, and keeps the member's receipts.

Both happen in the guard's process, in which no code of the operator's app runs, so that the
member's key stays there. The guard signs and notes what the policy lets out, not what the app
offered. Replies of other apps than this project's are not signed.
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

# Keys of a node config.
RECEIPTS_DIR = "receipts-dir"
SIGNING_KEY = "signing-key"
KEEPER_KEY = "keeper-key"


def app_config(node_config: Mapping[str, Scalar], key: str) -> dict[str, Scalar]:
    """Return the node config that an app gets on a node with a guard.

    It has no folder for receipts, since the guard keeps these. It names the member's key only if
    the node has a keeper of masks: the app then signs the box with its mask.

    Parameters
    ----------
    node_config : mapping of str to bool, int, float or str
        The SuperNode's config.
    key : str
        The file of the key with which the SuperNode logs in; empty if it has none.
    """
    config = dict(node_config)
    config.pop(RECEIPTS_DIR, None)
    key_of_boxes = config.pop(SIGNING_KEY, key)
    if KEEPER_KEY in config and key_of_boxes:
        config[SIGNING_KEY] = key_of_boxes
    return config


class OwnReplies:
    """Signs each update of this project's app as it leaves, and keeps the member's receipts.

    Parameters
    ----------
    node_id : int
        The member's node id.
    node_config : mapping of str to bool, int, float or str
        The SuperNode's config, which names the folder of receipts.
    key : private key, optional
        Signs updates; ``None``: nothing is signed.
    """

    def __init__(
        self, node_id: int, node_config: Mapping[str, Scalar], key: SigningKey | None
    ) -> None:
        self._key = key
        self._context = Context(0, node_id, dict(node_config), RecordDict(), {})

    def take(self, received: RecordDict, *, is_round: bool) -> None:
        """Check and keep the receipts in a message, if the node has a folder for them.

        Parameters
        ----------
        received : RecordDict
            The message's content.
        is_round : bool
            Whether the message asks for an update.

        Raises
        ------
        StorageError
            If the message asks for an update, and there is no room for evidence of it.
        """
        if not self._context.node_config.get(RECEIPTS_DIR):
            return
        take_receipts(received, self._context, is_round=is_round)
        if is_round:  # Afterwards, since the receipts may have filled the folder.
            require_room(received, self._context)

    def sign(
        self, received: RecordDict, leaving: RecordDict, *, is_round: bool
    ) -> Callable[[], None] | None:
        """Sign an update of this project's app, and return a function that notes it as sent.

        The caller calls that function when the reply leaves. Other replies are not signed.

        Parameters
        ----------
        received : RecordDict
            The content of the message that the reply answers.
        leaving : RecordDict
            The content that leaves, to which the signature is added.
        is_round : bool
            Whether the message asks for an update. A guard counts rounds of these messages alone,
            so an answer to another message must not pass as a second update of a round.

        Returns
        -------
        callable, optional
            ``None`` if there is nothing to note.
        """
        preflight = leaving.get(RECORD)
        if self._key is not None and isinstance(preflight, ConfigRecord):
            preflight[SIGNING_KEY] = f"{Status.OK}: the guard signs"
        if not is_round:
            return None
        settings = received.get("config")
        model = received.get("arrays")
        if not isinstance(settings, ConfigRecord) or not isinstance(model, ArrayRecord):
            return None
        run = str(settings.get(RUN_ID_KEY, ""))
        server_round = settings.get(ROUND_KEY)
        if not run or not isinstance(server_round, int):
            return None  # The reply of another app.
        try:
            sent_digest = record_digest(arrays_of(leaving))
        except ReplyError:
            return None

        agreed_run = agreed_in(settings)
        receipts = self._receipts(run, settings)
        head = b""
        if receipts is not None:
            head = receipts.last_root
        signed = None
        if self._key is not None:
            signed = sign_reply(
                leaving,
                model,
                self._key,
                run=run,
                asked_in=server_round,
                node_id=self._context.node_id,
                head=head,
                **agreed_run.terms(),
            )
        if receipts is None:
            return None
        return partial(receipts.note_sent, server_round, sent_digest, signed, agreed_run)

    def _receipts(self, run: str, settings: ConfigRecord) -> ReceiptKeeper | None:
        """Return the member's receipts of a run; ``None`` if it keeps none of this run."""
        if not self._context.node_config.get(RECEIPTS_DIR):
            return None
        with suppress(ConfigError, EvidenceError):
            receipts = ReceiptKeeper(self._context, run)
            # Once the server has sent receipts, they go on even if it says that there are none.
            if settings.get(RECEIPTS_KEY) or receipts.last_root:
                return receipts
        return None
