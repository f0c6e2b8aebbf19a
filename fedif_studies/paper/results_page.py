"""Adds new results to the rows behind ``docs/results.md``, and renews its tables and pictures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from fedif_flower.run.rows import read_rows
from fedif_studies.lab.measurements import Measurement, from_row
from fedif_studies.paper.apart import Pixels, apart_lines
from fedif_studies.paper.cells import (
    TableCell,
    fill_table,
    measurements_of,
    settings_of_cells,
    why_in_no_cell,
    with_measurements,
)
from fedif_studies.paper.curves import path_of, update_curves
from fedif_studies.paper.gains import gains_lines
from fedif_studies.paper.glance import glance_picture
from fedif_studies.paper.pictures import write_pictures
from fedif_studies.paper.report import note, result_rows, result_table
from fedif_studies.paper.tables import TABLES, PaperTable, Settings
from fedif_studies.pictures.sheets import write_picture
from fedif_studies.rows import begin_of, held_alone, put_tables, replace_all_rows

_MOST_NAMED = 5  # At most so many runs are named that belong to no cell.
_PLACE = ("table", "row", "column")
# How pixels were scaled before the protocol adopted the scaling of AFedSV's authors.
_EARLIER: Settings = {"normalization": "data"}


def update_docs(docs: Path, measurements: Sequence[Measurement], defaults: Settings) -> Path:
    """Add new results to the committed rows, and write the page's tables anew from all rows.

    Parameters
    ----------
    docs : Path
        The folder that has ``results/<table>.csv``, with a row per cell and seed, and
        ``results.md``, with marks where the tables stand.
    measurements : sequence of Measurement
        New results; each replaces the row of its cell and seed.
    defaults : Mapping[str, Scalar]
        A complete run config: the values of all settings that a table does not set.

    Returns
    -------
    Path
        The page.
    """
    page = docs / "results.md"
    text: list[str] = []
    filled = {}
    with_other_pixels = {}
    # Without the lock, rows that another process adds between reading and writing would be lost.
    with held_alone(docs):
        for table in TABLES.values():
            cells, earlier = merge_rows(docs, table, measurements, defaults)
            filled[table.name] = cells
            with_other_pixels[table.name] = earlier
            text += section_of(table, cells, earlier)
        measured = [
            Pixels("as AFedSV's authors", filled),
            Pixels("the data's own mean", with_other_pixels),
        ]
        blocks = {
            "results": text,
            "pictures": write_pictures(docs, filled, with_other_pixels),
            "gains": gains_lines(filled),
            "apart": apart_lines(measured),
        }
        put_tables(page, blocks)
        put_glance(docs, page)
    return page


def merge_rows(
    docs: Path, table: PaperTable, measurements: Sequence[Measurement], defaults: Settings
) -> tuple[list[TableCell], list[TableCell]]:
    """Add new results to a table's rows, and return its cells with the measurements of all rows.

    No other process may write these rows meanwhile.

    Returns
    -------
    cells, earlier : list of TableCell
        The cells with pixels scaled as the protocol has it now, and as it had it before.
    """
    path = docs / "results" / _file_of(table)
    # Later ones win, so that a new result replaces an old one.
    old_and_new = [*read_results(path), *measurements]
    cells, earlier = _filled(table, old_and_new, defaults)
    if not _has_new(measurements_of([*cells, *earlier])):
        # Rows that are read and written again would lose the columns that are empty in all rows.
        return cells, earlier
    replace_all_rows(path, result_rows(table, [*cells, *earlier]))
    if not table.is_timed:
        update_curves(path_of(docs, table.name), [*cells, *earlier])
    # Rows keep six digits. The page shows what the rows say, so they are read back.
    return _filled(table, read_results(path), defaults)


def _has_new(measurements: Iterable[Measurement]) -> bool:
    """Tell whether a measurement is new: it has a run's folder, which committed rows lack."""
    return any(measurement.run_dir is not None for measurement in measurements)


def section_of(
    table: PaperTable, cells: Sequence[TableCell], earlier: Sequence[TableCell]
) -> list[str]:
    """Return a table's section of the page: a line for each cell that was measured."""
    measured = {cell.line_key for cell in with_measurements([*cells, *earlier])}
    shown = [cell for cell in cells if cell.line_key in measured]
    name = _file_of(table)
    return [
        f"## {table.title}",
        "",
        f"`fedif paper {table.name}`, rows: [{name}](results/{name})",
        "",
        *result_table(table, shown, earlier).to_markdown(),
        "",
        note(cells, earlier),
        "",
    ]


def _file_of(table: PaperTable) -> str:
    """Return the name of the file of a table's rows."""
    return f"{table.name}.csv"


def put_glance(docs: Path, page: Path) -> None:
    """Draw the picture at a glance, and put it on the pages that have marks for it.

    These are ``results.md``, and ``README.md`` beside the folder.
    """
    readme = docs.parent / "README.md"
    for path, seen_from in ((page, ""), (readme, f"{docs.name}/")):
        if path.is_file() and begin_of("at a glance") in path.read_text(encoding="utf-8"):
            lines = write_picture(docs, glance_picture(docs / "results"), seen_from)
            put_tables(path, {"at a glance": lines})


def _filled(
    table: PaperTable, measurements: Sequence[Measurement], defaults: Settings
) -> tuple[list[TableCell], list[TableCell]]:
    """Return a table's cells with pixels scaled as in the protocol now, and as in it before."""
    cells = fill_table(table, measurements, defaults)
    if table.is_timed:
        return cells, []
    return cells, fill_table(table, measurements, defaults, changed=_EARLIER)


def what_was_added(
    measurements: Sequence[Measurement], directories: Sequence[Path], defaults: Settings
) -> list[str]:
    """Return lines that say how many runs belong to a cell of a table, and why others do not."""
    if not directories:
        return ["No rows were added: no folder with runs is given."]
    if not measurements:
        places = ", ".join(map(str, directories))
        return [f"No rows were added: no complete run with an evaluated model lies in {places}."]
    cells = settings_of_cells(TABLES.values(), defaults, _EARLIER)
    others = []
    for measurement in measurements:
        reason = why_in_no_cell(measurement, cells)
        if reason:
            others.append(f"{measurement.run_dir} belongs to no cell. {reason}.")
    count = len(measurements) - len(others)
    lines = [
        f"{count} of {len(measurements)} runs belong to a cell of a table.",
        *others[:_MOST_NAMED],
    ]
    if len(others) > _MOST_NAMED:
        lines.append(f"Nor are {len(others) - _MOST_NAMED} more runs.")
    return lines


def read_results(path: Path) -> list[Measurement]:
    """Return the measurements of a file of committed rows; none if there is no such file."""
    measurements = []
    for row in read_rows(path):
        without_place = {column: value for column, value in row.items() if column not in _PLACE}
        measurements.append(from_row(without_place))
    return measurements
