"""What parties add who do not trust each other, for the doors: importing this imports no room.

Where the extra ``consortium`` is not installed, :mod:`fedif_consortium.left_out` and
:mod:`fedif_consortium.left_out_client` stand in the place of all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedif_consortium.extra import missing_modules

if TYPE_CHECKING:
    from fedif_consortium.evidence.part import Evidence
    from fedif_flower.client.app import ClientPart
    from fedif_flower.run.part import RunPart


def run_parts(evidence: Evidence | None = None) -> Sequence[RunPart]:
    """Return the parts of a run: the library's own, and those of the rooms of this package.

    ``evidence`` says with which key receipts are signed; ``None``: there are no receipts.
    """
    from fedif_flower.run import parts

    if missing_modules():
        from fedif_consortium.left_out import LeftOut

        return *parts.run_parts(), LeftOut()
    from fedif_consortium.evidence.gradients import PublishGradients
    from fedif_consortium.evidence.part import Evidence
    from fedif_consortium.masking.part import MaskedRounds
    from fedif_consortium.statement.own_parts import OwnPartsOfRun
    from fedif_consortium.watch.metrics import ServedMetrics

    return (
        *parts.run_parts(),
        ServedMetrics(),
        MaskedRounds(),  # At the end the keeper forgets what the attribution asks last.
        evidence or Evidence(),
        PublishGradients(),
        OwnPartsOfRun(),
    )


def server_parts() -> Sequence[RunPart]:
    """Return the parts of a server's run: receipts as well, and the statement at its end."""
    if missing_modules():
        return run_parts()
    from fedif_consortium.evidence.part import Evidence
    from fedif_consortium.statement.part import Stated, receipt_key

    return (*run_parts(Evidence(receipt_key)), Stated())


def client_parts() -> Sequence[ClientPart]:
    """Return every part of a client, the outermost first."""
    if missing_modules():
        from fedif_consortium.left_out_client import LeftOutOfClient

        return [LeftOutOfClient()]
    from fedif_consortium.evidence.kept_gradients import KeptGradients
    from fedif_consortium.evidence.member_receipts import TakenReceipts
    from fedif_consortium.masking.masked_reply import MaskedReplies
    from fedif_consortium.statement.client_part import KeptStatements

    return TakenReceipts(), KeptGradients(), MaskedReplies(), KeptStatements()
