from __future__ import annotations

import io

import pytest
from rich.console import Console

from paper.listing import list_cells, list_tables
from paper.selection import Selection, cell_name
from paper.tables import TABLES

WIDTHS = [(20, False), (80, False), (80, True), (300, True)]


@pytest.mark.parametrize(("width", "is_terminal"), WIDTHS)
def test_names_that_are_to_be_copied_are_never_shortened(width, is_terminal):
    output = io.StringIO()
    console = Console(file=output, width=width, force_terminal=is_terminal, no_color=True)
    list_tables(TABLES.values(), [], console)
    for table in TABLES.values():
        list_cells(table, Selection(), [], console)
    words = set(output.getvalue().replace("\x1b[1m", "").replace("\x1b[0m", "").split())
    for table in TABLES.values():
        keys = {table.name, *(row.key for row in table.rows)}
        keys |= {column.key for column in table.columns}
        keys |= {cell_name(row, column, 0) for row in table.rows for column in table.columns}
        assert keys <= words
    assert "…" not in output.getvalue()
