"""A study's rows, added as they become known, and the machine that its timings are of.

A study may be stopped at any time: what is there is not measured again.
"""

from __future__ import annotations

import csv
import itertools
import os
import platform
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
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

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"  # of a checkout
_CPUS = Path("/proc/cpuinfo")  # of Linux

Row = Mapping[str, Any]
ORIGIN = ("revision", "seed")  # No row of a measurement is written without them.
NO_SEED = "none"  # In the place of a seed where nothing is drawn by one.


def add_rows(path: Path, rows: Sequence[Row]) -> None:
    """Add rows to a CSV file, all of them or none; two processes that add at once lose nothing.

    Each row says what measured it: ``revision``, of the code, and ``seed``, or ``"none"``. A column
    ``reconstructed`` names what was filled in afterwards. A revision or seed is then from the
    history of the repository: the revision is that which brought the row, and may be later than the
    code that measured it. A setting had another value, with which the run was the same.

    Parameters
    ----------
    path : Path
        Begins with the names of the columns; those that it has not yet come last, and are empty in
        the rows before.
    rows : sequence of mapping
        Values by column.

    Raises
    ------
    ConfigError
        If a row does not say what measured it; nothing is written then.
    """
    _require_origins(path, rows)
    with held_alone(path):
        _write(path, rows, leaves=_never)


def add_rows_unless(path: Path, rows: Sequence[Row], is_there: Callable[[Row], bool]) -> None:
    """Add rows as :func:`add_rows` does, but none where ``is_there`` is true of an earlier row.

    Another process may have been first.
    """
    _require_origins(path, rows)
    with held_alone(path):
        if not any(map(is_there, read_rows(path))):
            _write(path, rows, leaves=_never)


def replace_rows(path: Path, rows: Sequence[Row], leaves: Callable[[Row], bool]) -> None:
    """Add rows as :func:`add_rows` does, in the place of those for which ``leaves`` is true."""
    _require_origins(path, rows)
    with held_alone(path):
        _write(path, rows, leaves)


def replace_all_rows(path: Path, rows: Sequence[Row]) -> None:
    """Add rows as :func:`add_rows` does, in the place of all that are there."""
    _require_origins(path, rows)
    with held_alone(path):
        _write(path, rows, leaves=_always)


def put_derived(path: Path, rows: Sequence[Row]) -> None:
    """Write rows that follow from others, which say what measured them, in place of what is there.

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
    """Raise ConfigError if a row does not say what measured it."""
    for row, name in itertools.product(rows, ORIGIN):
        if row.get(name) in (None, ""):
            cells = ", ".join(f"{key} = {value}" for key, value in list(row.items())[:6])
            raise ConfigError(
                f"{path.name}: the row with {cells} has no {name}; allowed: the revision of the "
                f"code that measured it, and its seed ({NO_SEED!r} where nothing is drawn)"
            )


def _write(path: Path, rows: Sequence[Row], leaves: Callable[[Row], bool]) -> None:
    """Add rows to those that do not leave; nobody else may write the file meanwhile."""
    make_folder(path.parent)
    old_rows = read_rows(path)
    staying: list[Row] = [row for row in old_rows if not leaves(row)]
    text = ""
    # Where all rows leave, their columns leave with them.
    if path.exists() and (staying or not old_rows):
        text = path.read_text(encoding="utf-8-sig")  # A spreadsheet writes a mark before it.
    head = next(csv.reader([text.partition("\n")[0]]), [])
    columns = list(dict.fromkeys([*head, *_columns_of(rows)]))
    # An editor may have left the last line without an end; a line behind it would be glued on.
    can_go_on = not text or text.endswith("\n")
    if can_go_on and columns == head and len(staying) == len(old_rows):
        # The text has the old rows as they are to stay.
        write_atomically(path, text + _lines(rows, columns, with_head=not text))
    else:
        write_atomically(path, _lines([*staying, *rows], columns, with_head=True))


@contextmanager
def held_alone(path: Path) -> Iterator[None]:
    """Hold a file or folder against others on this machine that hold it, too.

    A folder's files can be held meanwhile: whoever writes one need not hold the folder.
    """
    lock = cache_root() / "locks" / content_key(str(path.resolve()), 16)
    with exclusive_lock(lock):
        yield


def _columns_of(rows: Sequence[Row]) -> list[str]:
    """Return the columns of rows, in the order of their coming."""
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
    """Return the mark of a page behind which the lines of that name stand."""
    return f"<!-- begin: {name} -->"


def end_of(name: str) -> str:
    """Return the mark of a page before which the lines of that name end."""
    return f"<!-- end: {name} -->"


def put_tables(page: Path, tables: Mapping[str, Sequence[str]]) -> None:
    """Put lines between their marks on a page: :func:`begin_of` and :func:`end_of` their names.

    Parameters
    ----------
    page : Path
        A page in Markdown; a name that it has no marks for is left out.
    tables : mapping of str to sequence of str
        Lines by name.
    """
    text = page.read_text()
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
    """Return what a figure must be read with; no host names, no paths."""
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
    """Return what the CPU is called; where the system does not say, its architecture."""
    if _CPUS.exists():
        for line in _CPUS.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def revision() -> str:
    """Return the revision that is checked out; outside a checkout, the package's version.

    Where the code differs from the revision, ``-changed`` follows it.
    """
    number, changed = _checked_out()
    if changed:
        return f"{number}-changed"
    return number


def committed_revision() -> str:
    """Return :func:`revision`, of code that is committed.

    Raises
    ------
    ConfigError
        If the code differs from it: a row must name what measured it.
    """
    number, changed = _checked_out()
    if changed:
        raise ConfigError(f"uncommitted changes: {changed[0]}; commit first")
    return number


def _checked_out() -> tuple[str, list[str]]:
    """Return the revision, and which files of the code differ from it."""
    packages = ("fedif_flower", "fedif_consortium", "fedif_studies", "pyproject.toml")

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(RESULTS.parents[1]), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", *packages)  # Another project's may lie around.
        changed = git("status", "--porcelain", "--", *packages)
        number = git("rev-parse", "--short=12", "HEAD")
    except (OSError, subprocess.CalledProcessError):
        return package_version(), []
    return number, [line.strip() for line in changed.splitlines()]
