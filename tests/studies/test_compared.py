"""The comparison's cells on federations of a moment, and its tables from rows by hand."""

from __future__ import annotations

from fedif_flower.run.rows import read_rows
from fedif_studies.compared import (
    OUTPUT,
    PAGE,
    with_tables,
)


def test_the_page_has_the_tables_of_the_committed_rows():
    page = PAGE.read_text()
    assert with_tables(page, read_rows(OUTPUT), seeds=3) == page
    without = with_tables(page, [], seeds=3)
    assert "| FedIF | 0 | - |" in without
    assert with_tables(without, read_rows(OUTPUT), seeds=3) == page
