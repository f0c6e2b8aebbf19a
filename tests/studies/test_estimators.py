"""Errors of estimators, by hand."""

from __future__ import annotations

import pytest
import torch

from fedif_flower.valuation.shapley.exact import all_coalitions
from fedif_studies.estimators import MEMBERS, judge


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
