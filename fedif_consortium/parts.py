"""All parts of runs and clients, for the doors: ServerApp, ClientApp and command line.

Importing this module imports no part: the functions do. If the extra ``consortium`` is not
installed, they return :mod:`fedif_consortium.left_out` and :mod:`fedif_consortium.left_out_client`
in place of all parts of this package.
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
    """Return the parts of a simulated run: the library's own, then those of this package.

    ``evidence`` is the part that signs receipts; ``None``: a part that gives no receipts.
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
        # Behind the library's parts: the attribution asks the keeper once more at the run's end,
        # before the keeper is told to forget.
        MaskedRounds(),
        evidence or Evidence(),
        PublishGradients(),
        OwnPartsOfRun(),
    )


def server_parts() -> Sequence[RunPart]:
    """Return the parts of a deployed run: those of a simulation, receipts, and the statement."""
    if missing_modules():
        return run_parts()
    from fedif_consortium.evidence.part import Evidence
    from fedif_consortium.statement.part import Stated, receipt_key

    return (*run_parts(Evidence(receipt_key)), Stated())


def client_parts() -> Sequence[ClientPart]:
    """Return the parts of a client; the first one is the outermost around training."""
    if missing_modules():
        from fedif_consortium.left_out_client import LeftOutOfClient

        return [LeftOutOfClient()]
    from fedif_consortium.evidence.kept_gradients import KeptGradients
    from fedif_consortium.evidence.member_receipts import TakenReceipts
    from fedif_consortium.masking.masked_reply import MaskedReplies
    from fedif_consortium.statement.client_part import KeptStatements

    return TakenReceipts(), KeptGradients(), MaskedReplies(), KeptStatements()
