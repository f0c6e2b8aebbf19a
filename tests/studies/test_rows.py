from __future__ import annotations

from fedif_flower.run.rows import read_rows
from fedif_studies.rows import append_rows


def test_rows_are_added_below_the_columns(tmp_path):
    path = tmp_path / "rows.csv"
    append_rows(path, ("case", "value"), [("first, with a comma", 1 / 3)], digits=6)
    append_rows(path, ("case", "value"), [("second", 2)])
    assert path.read_text() == 'case,value\n"first, with a comma",0.333333\nsecond,2\n'
    assert [row["case"] for row in read_rows(path)] == ["first, with a comma", "second"]
