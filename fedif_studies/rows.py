"""The rows of studies: writes them to CSV files with the code, seed and machine that measured them.

Rows are added as soon as they are known, so that a study may be stopped at any time and go on
without measuring them again.
"""

from __future__ import annotations

import csv
import itertools
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from typing import Any

import torch

from fedif_flower.errors import ConfigError
from fedif_flower.run.provenance import package_version
from fedif_flower.run.rows import read_rows
from fedif_flower.storage import (
    cache_root,
    content_key,
    exclusive_lock,
    make_folder,
    write_atomically,
)

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"  # In a checkout.
_CPUS = Path("/proc/cpuinfo")  # On Linux.
_PACKAGES = ("fedif_flower", "fedif_consortium", "fedif_studies")
_LOADED_AT = time.time()

Row = Mapping[str, Any]
ORIGIN = ("revision", "seed")  # Columns without which no measured row is written.
NO_SEED = "none"  # The seed of a row if nothing random is drawn.
_CHANGED = "-changed"  # The end of a revision from which the code differs.


def add_rows(path: Path, rows: Sequence[Row]) -> None:
    """Add rows to a CSV file, all of them or none; two processes may add rows at the same time.

    Each row says what measured it: the ``revision`` of the code, and the ``seed`` (or ``"none"``).
    A column ``reconstructed`` names columns that were filled in later. A reconstructed revision or
    seed comes from the history of the repository: the revision is the one that committed the row,
    which may be later than the code that measured it. A reconstructed setting replaces another
    value, with which the run would have been the same.

    Parameters
    ----------
    path : Path
        The file, which begins with the names of its columns. New columns come last, and are empty
        in earlier rows.
    rows : sequence of mapping
        Values by column.

    Raises
    ------
    ConfigError
        If a row has no revision or seed; nothing is written then.
    """
    _require_origins(path, rows)
    with held_alone(path):
        _write(path, rows, leaves=_never)


def add_rows_unless(path: Path, rows: Sequence[Row], is_there: Callable[[Row], bool]) -> None:
    """Add rows as :func:`add_rows` does, unless ``is_there`` is true of a row in the file.

    So nothing is added twice if another process has added the same rows first.
    """
    _require_origins(path, rows)
    with held_alone(path):
        if not any(map(is_there, read_rows(path))):
            _write(path, rows, leaves=_never)


def replace_rows(path: Path, rows: Sequence[Row], leaves: Callable[[Row], bool]) -> None:
    """Add rows as :func:`add_rows` does, and remove those for which ``leaves`` is true."""
    _require_origins(path, rows)
    with held_alone(path):
        _write(path, rows, leaves)


def replace_all_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write rows as :func:`add_rows` does, in place of all rows of the file."""
    _require_origins(path, rows)
    with held_alone(path):
        _write(path, rows, leaves=_always)


def put_derived(path: Path, rows: Sequence[Row]) -> None:
    """Write rows that are computed from other rows, in place of all rows of the file.

    They need no revision and seed: the rows that they are computed from have these.

    Parameters
    ----------
    path : Path
        The CSV file.
    rows : sequence of mapping
        Values by column.
    """
    with held_alone(path):
        _write(path, rows, leaves=_always)


def as_csv(rows: Sequence[Row]) -> str:
    """Return rows as the text of a CSV file."""
    return _lines(rows, _columns_of(rows), with_head=True)


def _never(_: Row) -> bool:
    return False


def _always(_: Row) -> bool:
    return True


def _require_origins(path: Path, rows: Iterable[Row]) -> None:
    """Raise ConfigError if a row has no revision or no seed."""
    for row, name in itertools.product(rows, ORIGIN):
        if row.get(name) in (None, ""):
            # The first columns are those of the cell that was measured.
            cells = ", ".join(f"{key} = {value}" for key, value in list(row.items())[:6])
            raise ConfigError(
                f"{path.name}: the row with {cells} has no {name}; allowed: the revision of the "
                f"code that measured it, and its seed ({NO_SEED!r} where nothing is drawn)"
            )


def _write(path: Path, rows: Sequence[Row], leaves: Callable[[Row], bool]) -> None:
    """Add rows to a file and remove those that leave; the caller holds the file's lock."""
    make_folder(path.parent)
    old_rows = read_rows(path)
    staying: list[Row] = [row for row in old_rows if not leaves(row)]
    text = ""
    # If all rows leave, so do their columns.
    if path.exists() and (staying or not old_rows):
        text = path.read_text(encoding="utf-8-sig")  # Spreadsheets write a byte order mark.
    head = next(csv.reader([text.partition("\n")[0]]), [])
    columns = list(dict.fromkeys([*head, *_columns_of(rows)]))
    # An editor may have left the last line without its end. Text that is appended would continue
    # that line.
    can_go_on = not text or text.endswith("\n")
    if can_go_on and columns == head and len(staying) == len(old_rows):
        # No old row changes: append to the text, so that its formatting stays.
        write_atomically(path, text + _lines(rows, columns, with_head=not text))
    else:
        write_atomically(path, _lines([*staying, *rows], columns, with_head=True))


@contextmanager
def held_alone(path: Path) -> Iterator[None]:
    """Lock a file or folder against other processes on this machine that lock it, too.

    The lock of a folder does not include its files: another process can lock and write these.
    """
    lock = cache_root() / "locks" / content_key(str(path.resolve()), 16)
    with exclusive_lock(lock):
        yield


def _columns_of(rows: Sequence[Row]) -> list[str]:
    """Return the columns of rows, in the order in which they first appear."""
    return list(dict.fromkeys(itertools.chain.from_iterable(rows)))


def _lines(rows: Sequence[Row], columns: Sequence[str], *, with_head: bool) -> str:
    """Return rows as lines of a CSV file."""
    text = StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    if with_head:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def begin_of(name: str) -> str:
    """Return the mark in a page after which the lines of this name begin."""
    return f"<!-- begin: {name} -->"


def end_of(name: str) -> str:
    """Return the mark in a page before which the lines of this name end."""
    return f"<!-- end: {name} -->"


def put_tables(page: Path, tables: Mapping[str, Sequence[str]]) -> None:
    """Put lines between their marks on a page, :func:`begin_of` and :func:`end_of` their names.

    Parameters
    ----------
    page : Path
        A page in Markdown.
    tables : mapping of str to sequence of str
        Lines by name. Lines are left out if the page has no marks for their name.
    """
    text = page.read_text(encoding="utf-8")
    for name, lines in tables.items():
        begin = f"{begin_of(name)}\n"
        end = end_of(name)
        before, _, rest = text.partition(begin)
        _, end_mark, after = rest.partition(end)
        if end_mark:
            table = "".join(f"{line}\n" for line in lines)
            text = before + begin + table + end + after
    write_atomically(page, text)


def machine() -> dict[str, str]:
    """Return the machine, versions and date that a row records; no host names, no paths."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else "",
        "threads": str(torch.get_num_threads()),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "flwr": version("flwr"),
    }


def _processor() -> str:
    """Return the name of the CPU, or its architecture if the system does not tell the name."""
    if _CPUS.exists():
        for line in _CPUS.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


@cache
def loaded_revision() -> str:
    """Return the :func:`revision` whose code this process has loaded.

    It is asked once, so that rows that are written later name it even if another revision is
    checked out by then. The first call therefore belongs before what is measured, in the process
    that measures. If the code was edited between its import and that call, the revision ends in
    ``-changed``, too: it may not be the one that was loaded.
    """
    number = revision()
    if number.endswith(_CHANGED) or not _was_edited_after_import():
        return number
    return f"{number}{_CHANGED}"


def _was_edited_after_import() -> bool:
    """Return whether a file of the code was written after this process loaded it.

    A checkout of another revision writes the files in which the two differ.
    """
    for package in _PACKAGES:
        for path in (RESULTS.parents[1] / package).rglob("*.py"):
            if path.stat().st_mtime > _LOADED_AT:
                return True
    return False


def revision() -> str:
    """Return the revision that is checked out, or outside a checkout, the package's version.

    If the code differs from the revision, it ends in ``-changed``.
    """
    number, changed = _checked_out()
    if changed:
        return f"{number}{_CHANGED}"
    return number


def require_committed() -> None:
    """Raise ConfigError if the code differs from the revision, which a row would name wrongly."""
    _, changed = _checked_out()
    if changed:
        raise ConfigError(f"uncommitted changes: {changed[0]}; commit first")


def _checked_out() -> tuple[str, list[str]]:
    """Return the revision, and lines that name the files of the code that differ from it."""
    packages = (*_PACKAGES, "pyproject.toml")

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(RESULTS.parents[1]), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        # Fails if git does not know these files: an installed package may lie in the checkout of
        # another project.
        git("ls-files", "--error-unmatch", *packages)
        changed = git("status", "--porcelain", "--", *packages)
        number = git("rev-parse", "--short=12", "HEAD")
    except (OSError, subprocess.CalledProcessError):
        return package_version(), []
    return number, [line.strip() for line in changed.splitlines()]
