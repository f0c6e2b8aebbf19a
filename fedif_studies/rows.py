"""A study's rows, added as they become known, and the machine that its timings are of.

A study may be stopped at any time: what is there is not measured again.
"""

from __future__ import annotations

import csv
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from io import StringIO
from pathlib import Path

import torch

from fedif_flower.storage import write_atomically

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"  # of a checkout


def append_rows(
    path: Path,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    digits: int | None = None,
) -> None:
    """Add rows to a CSV file, all of them or none.

    Parameters
    ----------
    path : Path
        Begins with the names of the columns if it is new.
    columns : sequence of str
        Their names.
    rows : iterable of sequence
        As many values as columns in each.
    digits : int, optional
        Significant digits of a float, >= 1; default: all of them.
    """
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        [_rounded(value, digits) for value in row] for row in rows
    )
    before = path.read_text() if path.exists() else ",".join(columns) + "\n"
    write_atomically(path, before + text.getvalue())


def put_tables(page: Path, tables: Mapping[str, Sequence[str]]) -> None:
    """Put lines between the marks ``<!-- begin: NAME -->`` and ``<!-- end: NAME -->`` of a page.

    Parameters
    ----------
    page : Path
        A page in Markdown; a name that it has no marks for is left out.
    tables : mapping of str to sequence of str
        Lines by name.
    """
    text = page.read_text()
    for name, lines in tables.items():
        begin, end = f"<!-- begin: {name} -->\n", f"<!-- end: {name} -->"
        if begin in text:
            head, _, rest = text.partition(begin)
            _, _, tail = rest.partition(end)
            text = head + begin + "".join(f"{line}\n" for line in lines) + end + tail
    write_atomically(page, text)


def _rounded(value: object, digits: int | None) -> object:
    return f"{value:.{digits}g}" if digits and isinstance(value, float) else value


def machine() -> dict[str, str]:
    """Return what a figure must be read with; no host names, no paths."""
    names = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "processor": names[0] if names else platform.machine(),
        "cores": str(os.cpu_count()),
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else "",
        "threads": str(torch.get_num_threads()),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "flwr": version("flwr"),
    }
