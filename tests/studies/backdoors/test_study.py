"""A method of the study, from a federation to the table, on the digits."""

from __future__ import annotations

import pytest

from fedif_flower.run.rows import read_rows
from fedif_studies.backdoors import __main__ as backdoors
from fedif_studies.lab import run


@pytest.mark.all
def test_a_method_of_the_study(tmp_path, monkeypatch, capsys):
    """Two rounds: figures are shares, and what is there is not measured again."""
    settings = backdoors.setup
    monkeypatch.setattr(run, "committed_revision", lambda: "abc")
    monkeypatch.setattr(backdoors, "OUTPUT", tmp_path / "rows.csv")
    monkeypatch.setattr(backdoors, "METHODS", {backdoors.PLAIN: {}})
    monkeypatch.setattr(backdoors, "setup", lambda *of: {**settings(*of), "num-server-rounds": 2})
    for _ in range(2):
        backdoors.main(seeds=1)
    rows = read_rows(tmp_path / "rows.csv")
    assert len(rows) == 3 * len(backdoors.ATTACKS)
    assert all(0 <= float(row["accuracy"]) <= 1 for row in rows)
    assert [bool(row["success"]) for row in rows] == [False] * 3 + [True] * 12
    assert "| FedAvg; unlearned | " in capsys.readouterr().out
