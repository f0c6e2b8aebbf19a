"""What members sign of their updates, and what they are told of the records."""

from __future__ import annotations

from collections.abc import Callable

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedif_consortium.evidence.client_part import SIGNATURES_KEY
from fedif_consortium.evidence.kept_replies import KeptReplies
from fedif_consortium.evidence.receipt_book import ReceiptBook
from fedif_consortium.evidence.reply_witness import ReplyWitness
from fedif_consortium.evidence.signature_records import SignatureRecords
from fedif_flower.errors import ConfigError
from fedif_flower.messages.instructions import RECEIPTS_KEY
from fedif_flower.run.part import Built, Kept, RunContext, RunPart
from fedif_flower.strategies.attribution import PathAttribution
from fedif_flower.strategies.callbacks import Callback
from fedif_flower.strategies.nodes import is_simulated


class Evidence(RunPart):
    """Signed updates are looked at and written down; with ``receipts``, members get receipts.

    Parameters
    ----------
    head_key : callable, optional
        Returns the key that signs what members are told of the records. ``None``: no run of this
        door has receipts.
    """

    heeds = ("require_signatures", "receipts")

    def __init__(self, head_key: Callable[[], Ed25519PrivateKey] | None = None) -> None:
        self._head_key = head_key

    def build(self, run: RunContext) -> Built:
        """Return the witness of replies, and the records that it fills."""
        config, folder = run.config, run.folder
        witness = ReplyWitness(
            run.run_id,
            run.grid,
            late_rounds=config.late_rounds,
            required=config.require_signatures,
            digests=config.receipts,
            keeps=config.keep_updates,
        )
        signatures = SignatureRecords(folder, witness)
        callbacks: list[Callback] = [witness, signatures]
        kept: dict[str, Kept] = {"signatures": signatures}
        if config.receipts:
            attribution = run.find(PathAttribution)
            if self._head_key is None or attribution is None or is_simulated(run.grid):
                raise ConfigError("receipts = True; allowed: false where clients are simulated")
            book = kept["receipts"] = ReceiptBook(folder, witness, self._head_key())
            attribution.on_attribution.append(book.attributed)
            callbacks.append(book)
        if config.keep_updates:
            callbacks.append(KeptReplies(folder, witness, after=run.done))
        return Built(
            setup={"look": witness.look},
            told={RECEIPTS_KEY: config.receipts},
            asked={SIGNATURES_KEY: config.require_signatures},
            callbacks=callbacks,
            kept=kept,
        )
