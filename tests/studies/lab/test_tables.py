from __future__ import annotations

from math import inf, nan

import pytest
from rich.console import Console

from fedif_flower.tables import ResultTable, print_line
from fedif_studies.lab.table import MeanStd, write_table


def test_a_name_in_brackets_is_shown_as_it_is(capsys):
    lines = [["[red]a[/]", "**[b]**"]]
    ResultTable("[i]", ["member", "[0, 1]"], lines, num_labels=1).print(Console(width=20))
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("[i]", "[red]a[/]", "[b]", "[0, 1]"))


def test_a_line_is_printed_as_it_is(capsys):
    """A folder ``a[/b]`` was an error of rich, and ``run[lr=0.1]`` a path that is not there."""
    lines = ["Report: /a[/b]/run[lr=0.1]/:x:/[red]x", f"Report: /{200 * 'x'}"]
    for line in lines:
        print_line(Console(width=20), line)
    assert capsys.readouterr().out.splitlines() == lines


def test_a_table_and_its_remarks_are_printed_as_they_are(tmp_path, capsys):
    table = ResultTable("[/t] :x:", [":y:"], [["[/c] :z:"]], num_labels=1)
    write_table(table, tmp_path / "a[/b]", Console(width=20), ["Of run[lr=0.1]."])
    *shown, remark, report = capsys.readouterr().out.splitlines()
    assert all(text in "".join(shown) for text in ("[/t] :x:", ":y:", "[/c] :z:"))
    assert remark == "Of run[lr=0.1]."
    assert report == f"Report: {tmp_path}/a[/b]/table.md"


def test_no_escape_of_somebody_else_s_file_reaches_the_terminal(capsys):
    """A name in ``names.csv``, or a strategy in ``config.json``, would clear the screen."""
    clear = "\x1b[2J\x9b2J"
    console = Console(width=100)
    ResultTable(f"a{clear}", [f"b{clear}"], [[f"**c{clear}**"]], num_labels=1).print(console)
    print_line(console, f"d{clear}\n京都")
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("a?[2J?2J", "b?[2J?2J", "c?[2J?2J", "d?[2J?2J?京都"))
    assert not {"\x1b", "\x9b"} & set(shown)


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([0.5], "0.50"),
        ([0.25, 0.75], "0.50±0.35"),
        ([nan], "nan"),
        ([0.5, nan], "nan±nan"),  # A metric may be NaN, such as that of a model that diverged.
        ([0.5, inf], "inf±nan"),
    ],
)
def test_a_mean_is_shown_with_its_deviation_where_there_is_one(values, shown):
    assert MeanStd.of(values).shown(".2f") == shown


def test_markdown_shows_a_repeated_first_column_once():
    lines = [["clean", "FedAvg", "60"], ["clean", "FedIF", "**63**"], ["noisy", "FedAvg", "-"]]
    table = ResultTable("", ["column", "row", "last"], lines, num_labels=2, grouped=True)
    assert table.to_markdown() == [
        "| column | row | last |",
        "| --- | --- | ---: |",
        "| clean | FedAvg | 60 |",
        "|  | FedIF | **63** |",
        "| noisy | FedAvg | - |",
    ]
