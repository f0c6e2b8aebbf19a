"""Every part that a run can have, in the order in which they are built."""

from __future__ import annotations

from collections.abc import Sequence

from fedif_consortium.evidence.part import Evidence
from fedif_consortium.evidence.published_gradients import PublishGradients
from fedif_consortium.masking.part import MaskedRounds
from fedif_consortium.watch.served_metrics import ServedMetrics
from fedif_flower.run.attribution import Attribution, Quarantined
from fedif_flower.run.collusion import Collusion
from fedif_flower.run.kept_updates import KeepUpdates
from fedif_flower.run.live_state import Live
from fedif_flower.run.part import RunPart


def run_parts(evidence: Evidence | None = None) -> Sequence[RunPart]:
    """Return all built-in parts; ``evidence`` says with which key receipts are signed."""
    return (
        Live(),
        Collusion(),
        ServedMetrics(),
        Attribution(),
        Quarantined(),
        MaskedRounds(),  # At the end the keeper forgets what the attribution asks last.
        evidence or Evidence(),
        KeepUpdates(),
        PublishGradients(),
    )
