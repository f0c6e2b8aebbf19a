from __future__ import annotations

from rich.console import Console

from fedif_flower.tables import ResultTable
from fedif_studies.lab.table import MeanStd

TABLE = ResultTable(
    "accuracy",
    ["column", "row", "last", "paper", "best", "paper"],
    [
        ["clean", "FedAvg", "60.00", "62", "63", "64"],
        ["clean", "FedIF", "**63.00 ± 1.41**", "63", "64", "65"],
        ["noisy", "FedAvg", "-", "1", "2", "3"],
    ],
    num_labels=2,
    grouped=True,
)


def test_mean_and_standard_deviation():
    assert MeanStd.of([62.0, 64.0]).shown(".2f") == "63.00 ± 1.41"
    assert MeanStd.of([62.0]).shown(".2f") == "62.00"


def test_a_name_in_brackets_is_shown_as_it_is(capsys):
    lines = [["[red]a[/]", "**[b]**"]]
    ResultTable("[i]", ["member", "[0, 1]"], lines, num_labels=1).print(Console(width=20))
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("[i]", "[red]a[/]", "[b]", "[0, 1]"))


def test_markdown_shows_a_repeated_first_column_once():
    assert TABLE.to_markdown() == [
        "| column | row | last | paper | best | paper |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
        "| clean | FedAvg | 60.00 | 62 | 63 | 64 |",
        "|  | FedIF | **63.00 ± 1.41** | 63 | 64 | 65 |",
        "| noisy | FedAvg | - | 1 | 2 | 3 |",
    ]
