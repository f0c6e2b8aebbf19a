from __future__ import annotations

import pytest

from fedif_studies.factorial import (
    DATA,
    PAGE,
    FactorialCell,
    cells,
    copies_remark,
    count_copies,
    effects,
    missing_cells,
    read,
)


def test_effects_are_paired_by_seed_and_a_rule_that_is_another_one_is_tested_once():
    base = {"fedavg": [80.0, 70.0, 60.0], "median": [82.0, 71.0, 63.0], "rfa": [81.0, 71.0, 61.1]}
    base["trimmed-mean"] = base["median"]
    found = {
        FactorialCell("digits", seed, "sign flip", 0.4, weights, "none", 0.0): accuracy
        for weights, own in base.items()
        for seed, accuracy in enumerate(own)
    }
    by_weights = {cell.weights: effect for cell, effect in effects(found, "digits").items()}
    assert set(by_weights) == {"median", "rfa"}
    # Gains of 2, 1 and 3: t = 2 / (1 / sqrt(3)) with two degrees of freedom, half of it 4.303 / t.
    assert by_weights["median"][:3] == pytest.approx((3, 2.0, 2.484), abs=1e-3)
    # Of two tests the smaller p counts twice, the larger once.
    assert by_weights["median"].p == pytest.approx(0.0742, abs=1e-4)
    assert by_weights["rfa"].p == pytest.approx(2 * 0.00104, abs=1e-4)


def test_two_seeds_whose_gains_are_alike_by_rounding_show_nothing():
    # In float the differences are 0.0500000000000114 and 0.0499999999999972.
    pairs = [(95.29, 95.24), (33.3, 33.25)]
    found = {}
    for seed, (own, control) in enumerate(pairs):
        cell = FactorialCell("digits", seed, "sign flip", 0.4, "fedif", "none", 0.0)
        found |= {cell: own, cell.control(): control}
    [effect] = effects(found, "digits").values()
    assert effect == (2, pytest.approx(0.05), 0.0, 1.0)


def test_an_effect_without_a_bound_that_acts_is_a_copy_of_the_one_without_bounds():
    """Alike in each seed, with the control: fedif's full and own, and not its none."""
    found = {}
    of_bounds = {
        "none": ([80.0, 70.0], [60.0, 50.0]),
        "own": ([81.0, 71.0], [60.0, 50.0]),
        "full": ([81.0, 71.0], [60.0, 50.0]),
    }
    for bounds, pairs in of_bounds.items():
        for weights, accuracies in zip(("fedif", "fedavg"), pairs, strict=True):
            for seed, accuracy in enumerate(accuracies):
                cell = FactorialCell("digits", seed, "sign flip", 0.4, weights, bounds, 0.0)
                found[cell] = accuracy
    assert count_copies(found, "digits") == (1, 3)
    [words] = copies_remark(found, "digits")
    assert "1 of the 3 effects are copies" in words
    for seed in (0, 1):  # The gains are the same, and the federations are not.
        cell = FactorialCell("digits", seed, "sign flip", 0.4, "fedif", "full", 0.0)
        found[cell] += 1
        found[cell.control()] += 1
    assert count_copies(found, "digits") == (0, 3)
    assert copies_remark(found, "digits") == []


def test_the_page_says_how_many_effects_of_the_rows_are_copies():
    page = PAGE.read_text()
    accuracies = read()
    for data in DATA:
        [words] = copies_remark(accuracies, data)
        assert f"<!-- begin: {data} copies -->\n{words}\n<!-- end: {data} copies -->\n" in page


def test_the_tables_say_how_many_federations_have_no_row():
    # 11 conditions, with and without momentum, and 9 + 3 + 2 + 7 rules by their bounds.
    accuracies = dict.fromkeys(cells(["digits"], 2), 90.0)
    assert missing_cells(accuracies, "digits") == []
    last = FactorialCell("digits", 1, "sign flip", 0.4, "fedif", "none", 0.0)
    del accuracies[last]
    assert missing_cells(accuracies, "digits") == ["", "Missing: 1 of 924 federations."]
    assert missing_cells(accuracies, "fashion-mnist") == ["", "Missing: 462 of 462 federations."]
