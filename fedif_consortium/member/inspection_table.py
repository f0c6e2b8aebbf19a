"""The table of an inspection, which stays on the member's host."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedif_consortium.member.inspection import Findings
from fedif_flower.run.rows import csv_text
from fedif_flower.storage import make_folder, write_atomically

_OWNER_ALONE = 0o600


class Line(NamedTuple):
    """An example; that of the largest loss has rank 1."""

    rank: int
    example: int
    file: str
    label: str
    influence: float
    loss: float
    agreement: float | None


def table_lines(
    findings: Findings, classes: Sequence[str] = (), files: Sequence[Path] | None = None
) -> list[Line]:
    """Return every example, the likeliest mislabelled first.

    Parameters
    ----------
    findings : Findings
        What was found.
    classes : sequence of str
        The names of the classes, if they have any.
    files : sequence of Path, optional
        Each example's.
    """
    lines = []
    for rank, i in enumerate(findings.order.tolist(), start=1):
        label = "" if findings.labels is None else str(int(findings.labels[i]))
        lines.append(
            Line(
                rank=rank,
                example=i,
                file="" if files is None else str(files[i]),
                label=classes[int(label)] if label and int(label) < len(classes) else label,
                influence=float(findings.influence[i]),
                loss=float(findings.losses[i]),
                agreement=None if findings.agreement is None else float(findings.agreement[i]),
            )
        )
    return lines


def write_table(path: Path, lines: Sequence[Line]) -> None:
    """Write all lines as CSV, readable for their owner alone; an earlier table is replaced.

    Raises
    ------
    StorageError
        If it cannot be written.
    """
    make_folder(path.parent)
    write_atomically(path, csv_text([Line._fields, *lines]), _OWNER_ALONE)
