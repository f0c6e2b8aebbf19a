"""What members sign of their updates, and what they are told of the records."""

from __future__ import annotations

from collections.abc import Callable

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedif_consortium.evidence.member_receipts import SIGNATURES_KEY
from fedif_consortium.evidence.receipt_book import ReceiptBook, read_chain
from fedif_consortium.evidence.receipts import RoundChain
from fedif_consortium.evidence.reply_witness import ReplyWitness
from fedif_flower.errors import ConfigError, require
from fedif_flower.messages.instructions import RECEIPTS_KEY
from fedif_flower.run.config import RunConfig, UpdatesSettings
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.part import Built, RunContext, RunPart
from fedif_flower.settings import Settings, in_section, setting
from fedif_flower.strategies.attribution import PathAttribution
from fedif_flower.strategies.callbacks import Callback
from fedif_flower.strategies.nodes import is_simulated


class EvidenceSettings(Settings, alias_generator=in_section("evidence")):
    """What members sign, and what they are given for it."""

    require_signatures: bool = setting(
        False,
        "a reply that its member did not sign is refused: each node needs a guard, which "
        "signs ([receipts](consortium.md))",
    )
    receipts: bool = setting(
        False,
        "with `attribution`, where clients are real nodes: each gets receipts for its own lines of "
        "the records, by which it sees whether they are rewritten later",
        changes_result=False,
    )


class Evidence(RunPart):
    """Signed updates are looked at and written down; with ``receipts``, members get receipts.

    Parameters
    ----------
    head_key : callable, optional
        Returns the key that signs what members are told of the records. ``None``: no run of this
        door has receipts.
    """

    settings = EvidenceSettings

    def __init__(self, head_key: Callable[[], Ed25519PrivateKey] | None = None) -> None:
        self._head_key = head_key

    def fits(self, config: RunConfig) -> None:
        """Raise ConfigError where there is nothing to give receipts for."""
        is_fine = not config.section(EvidenceSettings).receipts or config.attribution != "off"
        require(is_fine, "evidence.receipts", True, "false with attribution = 'off'")

    def build(self, run: RunContext) -> Built:
        """Return the witness of replies, and the records that it fills."""
        config, folder = run.config, run.folder
        own, chain = config.section(EvidenceSettings), RoundChain()
        if own.receipts and run.checkpoint and run.checkpoint.source:
            before = RunFolder(run.checkpoint.source[0].absolute().parents[1])
            chain = read_chain(before, run.run_id)
        witness = ReplyWitness(
            *(folder, run.run_id),
            heads=chain.sizes,
            late_rounds=config.pace.late_rounds,
            required=own.require_signatures,
            digests=own.receipts,
            keeps=config.section(UpdatesSettings).keep,
        )
        callbacks: list[Callback] = [witness]
        if own.receipts:
            attribution = run.find(PathAttribution)
            if self._head_key is None or attribution is None or is_simulated(run.grid):
                raise ConfigError(
                    "evidence.receipts = True; allowed: false where clients are simulated"
                )
            book = ReceiptBook(folder, witness, self._head_key(), chain)
            attribution.on_attribution.append(book.attributed)
            callbacks.append(book)
        return Built(
            setup={"look": witness.look},
            told={RECEIPTS_KEY: own.receipts},
            asked={SIGNATURES_KEY: own.require_signatures},
            callbacks=callbacks,
            kept={"signatures": witness},
            stays=[folder.receipts.path, folder.round_heads.path] if chain.rounds else [],
        )
