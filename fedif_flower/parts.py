"""Every part that a run of the doors can have."""

from __future__ import annotations

from collections.abc import Sequence

from fedif_consortium.evidence.part import Evidence
from fedif_consortium.statement.part import Stated, receipt_key
from fedif_flower.run.part import RunPart
from fedif_flower.run.parts import run_parts


def built_in_parts() -> Sequence[RunPart]:
    """Return the parts of a run, and the statement at its end."""
    return (*run_parts(Evidence(receipt_key)), Stated())
