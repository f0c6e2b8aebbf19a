from __future__ import annotations

from rich.console import Console

from fedif_flower.tables import ResultTable


def test_a_name_in_brackets_is_shown_as_it_is(capsys):
    lines = [["[red]a[/]", "**[b]**"]]
    ResultTable("[i]", ["member", "[0, 1]"], lines, num_labels=1).print(Console(width=20))
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("[i]", "[red]a[/]", "[b]", "[0, 1]"))


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
