from __future__ import annotations

from dataclasses import replace

import pytest

from fedif_consortium.statement.records import RoundLine
from fedif_flower.run.completeness import CompletenessRule, completeness
from fedif_flower.run.figures import summarize
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.report import ReportedRun, member_table, write_report
from fedif_flower.run.rows import ClientRow
from fedif_flower.strategies.attributed import ClientAttribution, RoundAttribution


def row(partition_id: int, client_id: int, weight_score: float = 0.25) -> ClientRow:
    return ClientRow(
        round=1,
        partition_id=partition_id,
        client_id=client_id,
        malicious=False,
        score=None,
        normalized=None,
        weight_score=weight_score,
        weight=0.5,
        accumulative_influence=None,
        num_examples=10,
        claimed_examples=None,
        train_seconds=0.1,
        train_loss=1.0,
        status="accepted",
        rejection="",
    )


def reported(*rows: ClientRow, contributed=None, names=None, **rule) -> ReportedRun:
    """Return a run with these lines of ``clients.csv``."""
    names = names or {}
    last = max(row.round for row in rows)
    rounds = [RoundLine(t, len(rows), False) for t in range(last + 1)]
    found = completeness(rounds, rows, (), names, CompletenessRule(**rule))
    parts = [
        ClientAttribution(-1, client_id, 0.5, value)
        for client_id, value in (contributed or {}).items()
    ]
    attributed = [RoundAttribution(1, 1.0, 0.5, tuple(parts))] if parts else []
    return ReportedRun("A run", [], rows, last, found, names=names, attributed=attributed)


def table(*rows: ClientRow, **options) -> tuple[list[str], list[list[str]]]:
    """Return the columns and the cells of each line."""
    lines = [line for line in member_table(reported(*rows, **options)) if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return cells[0], cells[2:]


def test_the_largest_contribution_comes_first():
    rows = row(0, 1000), row(1, 1001), replace(row(1, 1001), round=2)
    columns, lines = table(*rows, contributed={1000: -0.5, 1001: 1.5})
    shown = [dict(zip(columns, line, strict=True)) for line in lines]
    assert [(s["member"], s["node"], s["asked"], s["contributed"]) for s in shown] == [
        ("client 1", "1001", "2", "1.5000"),
        ("client 0", "1000", "1", "-0.5000"),
    ]


def test_who_was_away_is_not_refused():
    away = replace(row(1, 1001), round=2, status="away", rejection="no reply before the deadline")
    ended = replace(row(2, 1002), status="revoked", rejection="the operator ended its registration")
    refused = replace(row(0, 1000), status="refused", rejection="array 'w' is not finite")
    columns, lines = table(refused, row(1, 1001), away, ended)
    shown = {s["node"]: s for line in lines if (s := dict(zip(columns, line, strict=True)))}
    assert {key: (s["asked"], s["refused"], s["missing"]) for key, s in shown.items()} == {
        "1000": ("1", "1", ""),
        "1001": ("2", "0", "1"),
        "1002": ("1", "0", "1; revoked"),
    }
    assert "missing" not in table(refused)[0]


@pytest.mark.parametrize(
    ("remainder", "in_the_table", "in_words"),
    [
        (-0.2013, "3.6003: 3.8016 by members, less 0.2013 by nobody", "0.2013 more than the"),
        (0.25, "3.6003: 3.3503 by members, and 0.2500 by nobody", "0.2500 less than the"),
    ],
)
def test_the_remainder_is_told_in_words(tmp_path, remainder, in_the_table, in_words):
    sums = {"decrease": 3.6003, "attributed": 3.6003 - remainder, "remainder": remainder}
    folder = RunFolder(tmp_path)
    summary = summarize([], [row(0, 1000)]) | {"attribution": sums}
    write_report(folder, reported(row(0, 1000)), summary)
    text = " ".join(folder.report.read_text().split())
    assert f"| {in_the_table} |" in text
    assert f"add up to {in_words} validation loss fell by. This remainder is nobody's" in text
    assert "malicious" not in text
    assert "AUC" not in text
    assert "accuracy" not in text
