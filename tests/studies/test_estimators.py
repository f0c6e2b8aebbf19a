"""Errors of estimators, by hand."""

from __future__ import annotations

import pytest
import torch

from fedif_flower.run.rows import read_rows
from fedif_flower.tables import ResultTable
from fedif_flower.valuation.shapley.exact import all_coalitions
from fedif_studies import estimators
from fedif_studies.estimators import MEMBERS, judge
from fedif_studies.lab import filling


def test_errors_are_told_in_shares_of_what_lies_between_members():
    # Member i adds i: between the first and the last lie 9.
    table = all_coalitions(MEMBERS).double() @ torch.arange(10.0).double()
    exact, least = judge(table, "exact", 1), judge(table, "permutation", 2)
    assert exact == {"error": 0, "resolution": 0, "alike": 0, "coalitions": 2**MEMBERS}
    assert least["error"] == pytest.approx(0, abs=1e-12)
    assert least["coalitions"] < 2**MEMBERS
    # One's worth is lost as soon as anybody else is there: 1 for the first member of an order.
    first = all_coalitions(MEMBERS).any(dim=1).double() + table
    assert 0 < judge(first, "permutation", 2)["error"] < 0.01


def test_a_round_in_which_all_members_are_worth_the_same_is_left_out(monkeypatch):
    table = all_coalitions(MEMBERS).double() @ torch.arange(10.0).double()
    rounds = [torch.zeros(2**MEMBERS).double(), table]
    monkeypatch.setattr(estimators, "games", lambda *_: rounds)
    cell = {"case": "honest", "seed": 0, "draws": 1, "estimator": "exact"}
    [row] = estimators.measure(cell)
    assert (row["error"], row["coalitions"]) == ("0", "1024")
    del rounds[1]
    assert estimators.measure(cell) == []


def test_an_estimator_that_has_no_row_is_measured_beside_those_that_have(monkeypatch, tmp_path):
    monkeypatch.setattr(estimators, "CSV", tmp_path / "estimators.csv")
    monkeypatch.setattr(filling, "require_committed", lambda: None)
    monkeypatch.setattr(estimators, "measure", lambda cell: [{"error": 0, "resolution": 0}])
    monkeypatch.setattr(
        estimators, "table", lambda: ResultTable("", ["estimator"], [], num_labels=1)
    )
    for name in ("owen", "exact"):
        monkeypatch.setattr(estimators, "ESTIMATORS", {"owen": None, name: None})
        estimators.main(seeds=1, draws=1)
    rows = read_rows(tmp_path / "estimators.csv")
    assert [row["estimator"] for row in rows] == ["owen"] * 3 + ["exact"] * 3
