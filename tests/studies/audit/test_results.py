"""The page's tables: figures worked out by hand, from rows to Markdown."""

from __future__ import annotations

import pytest

from fedif_flower.run.rows import read_rows
from fedif_studies.audit.cases import RETRAINED
from fedif_studies.audit.federation import RULES
from fedif_studies.audit.findings import (
    AREA,
    BETWEEN_RULES,
    CEILING,
    DETECTION,
    GAIN,
    AuditFinding,
    findings,
    pair_of,
)
from fedif_studies.audit.lines import missing_federations
from fedif_studies.audit.removal import RETRAINED_VALUES
from fedif_studies.audit.results import FOLDERS, measures_table, rules_table, update_audit_page
from fedif_studies.rows import RESULTS, add_rows

DOCS = RESULTS.parent


def under(rule, values, seed="0", case="honest", valuation="v"):
    place = {"case": case, "rule": rule, "seed": seed, "valuation": valuation}
    return [
        {**place, "member": str(i), "marked": "0", "value": str(value), "revision": "abc"}
        for i, value in enumerate(values)
    ]


def test_ranks_under_two_rules_are_compared_seed_by_seed():
    lines = [
        *under("FedAvg", [1, 2, 3]),
        *under("FedIF", [1, 3, 2]),  # Ranks 1 3 2 beside 1 2 3: 1 - 6 * 2 / 24.
        *under("RFA", [9, 8, 7]),
        *under("FedAvg", [3, 2, 1], seed="1"),
        *under("FedIF", [3, 2, 1], seed="1"),
    ]
    found = {(f.question, f.case): (f.value, f.federations) for f in findings(lines, [])}
    of_first = found[BETWEEN_RULES, pair_of("FedAvg", "FedIF")]
    assert of_first == pytest.approx(((0.5 + 1.0) / 2, 2))
    assert found[BETWEEN_RULES, pair_of("FedAvg", "RFA")] == pytest.approx((-1.0, 1))
    assert found[BETWEEN_RULES, pair_of("FedIF", "RFA")] == pytest.approx((-0.5, 1))
    assert (BETWEEN_RULES, pair_of("FedAvg", "Multi-Krum")) not in found
    every_pair = found["stability, Spearman", "between aggregation rules"]
    assert every_pair == pytest.approx(((0.5 + 1.0 - 1.0 - 0.5) / 4, 4))


def test_a_line_has_the_five_measures_and_what_is_not_measured_is_a_dash():
    table = measures_table(
        [
            AuditFinding("retraining, Pearson", "honest", "v", 0.724, 3),
            AuditFinding(AREA, "label noise", "v", 0.3134, 1),
            AuditFinding(DETECTION, "label noise", "v", 1.0, 3),
            AuditFinding(DETECTION, "few examples", "v", 0.5, 3),
            AuditFinding(DETECTION, "backdoor", "v", 0.6, 3),
            AuditFinding("stability, Spearman", "between seeds", "v", 0.9, 3),
            AuditFinding(GAIN, "five identities", "v", 3.44, 3),
            AuditFinding(GAIN, "update times 10", "v", 0.1, 3),
            AuditFinding("retraining, Pearson", "honest", CEILING, 0.99, 3),
            AuditFinding(AREA, "label noise", RETRAINED_VALUES, 0.4, 1),
        ]
    )
    measured, ceiling = table.lines
    assert measured == [
        "v", "0.72", "-", "-", "31.3", "1.00", "0.55", "0.90", "-", "3.4 (five identities)"
    ]  # fmt: skip
    assert ceiling == ["retraining itself (ceiling)", "0.99", "-", "-", "40.0", *["-"] * 5]
    assert len(table.heading) == len(measured)


def test_a_gain_says_of_how_many_seeds_it_is_where_others_have_more():
    found = [
        AuditFinding(GAIN, "five identities", "v", 1.5, 3),
        AuditFinding(GAIN, "update times 10", "v", 2.4, 1),
        AuditFinding(GAIN, "five identities", "w", 1.0, 3),
    ]
    of_fewer, of_all = (line[-1] for line in measures_table(found).lines)
    assert of_fewer == "2.4 (update times 10; 1 of 3 seeds)"
    assert of_all == "1.0 (five identities)"


def test_a_gain_is_the_median_of_the_seeds_in_which_there_is_one():
    """The last member plays: in seed 1 nobody has anything then, in seed 2 it had nothing."""
    by_seed = {
        "0": ([2, 0, 2], [3, 0, 1]),
        "1": ([1, 0, 1], [-1, 0, -1]),
        "2": ([1, 0, 0], [1, 0, 1]),
    }
    lines = []
    for seed, (before, after) in by_seed.items():
        lines += under("FedAvg", before, seed)
        played = under("FedAvg", after, seed, case="update times 10")
        played[-1]["marked"] = "1"
        lines += played
    [gain] = [found for found in findings(lines, []) if found.question == GAIN]
    assert (gain.value, gain.federations) == (0.5, 1)  # Of 1/2 a quarter is left.


def test_what_stands_beside_retraining_says_of_which_seed_it_is(tmp_path):
    page = tmp_path / "results" / "audit.md"
    page.parent.mkdir()
    names = ("removal curves", "five measures", "aggregation rules")
    page.write_text("".join(f"<!-- begin: {n} -->\n<!-- end: {n} -->\n" for n in names))
    folder = tmp_path / "audit" / FOLDERS["Digits"]
    retrained = []
    for case in RETRAINED:
        for seed in "01":
            add_rows(folder / "values.csv", under("FedAvg", [1, 2], seed, case))
        place = {"case": case, "seed": "0", "revision": "abc"}
        figures = [{"test_loss": -c, "test_accuracy": c / 4} for c in range(4)]
        retrained += [{**place, "coalition": c, **figure} for c, figure in enumerate(figures)]
    add_rows(folder / "retraining.csv", retrained)
    text = update_audit_page(tmp_path).read_text()
    words = "Retraining and removal, label noise: compared with seed 0 only."
    assert text.count(words) == 1
    assert "removal, honest: compared" not in text


def test_a_line_has_the_first_rule_beside_the_others_and_the_least_of_all_pairs():
    first, second, third, *others = RULES
    table = rules_table(
        [
            AuditFinding(BETWEEN_RULES, pair_of(first, second), "v", 0.9, 3),
            AuditFinding(BETWEEN_RULES, pair_of(first, third), "v", 0.8, 3),
            AuditFinding(BETWEEN_RULES, pair_of(second, third), "v", 0.4, 3),
            AuditFinding("stability, Spearman", "between seeds", "without rules", 0.9, 3),
        ]
    )
    least = f"0.40 ({pair_of(second, third)})"
    assert table.lines == [["v", "0.90", "0.80", *["-"] * len(others), "0.70", least]]
    assert len(table.heading) == len(table.lines[0])


def test_the_page_is_made_of_the_rows_and_of_nothing_else(tmp_path):
    page = tmp_path / "results" / "audit.md"
    page.parent.mkdir()
    names = ("removal curves", "five measures", "aggregation rules")
    page.write_text("".join(f"<!-- begin: {n} -->\nold\n<!-- end: {n} -->\n" for n in names))
    folder = tmp_path / "audit" / FOLDERS["Digits"]
    add_rows(folder / "values.csv", [*under("FedAvg", [1, 2, 3]), *under("FedIF", [1, 3, 2])])
    assert update_audit_page(tmp_path) == page
    text = page.read_text()
    assert "old" not in text
    assert "| v | 0.50 |" in text
    assert "of the federations: 0. Seeds of retraining: none. Missing: 6 of 6 retrainings." in text
    assert text.count("**Fashion-MNIST.** Missing: all rows.\n") == 2
    assert 'srcset="../pictures/removal-380.svg"' in text
    rows = read_rows(folder / "findings.csv")
    assert {row["question"] for row in rows} == {BETWEEN_RULES, "stability, Spearman"}
    assert (tmp_path / "pictures" / "removal-1240.svg").is_file()
    again = page.read_text()
    update_audit_page(tmp_path)
    assert page.read_text() == again


def test_a_federation_that_failed_in_one_seed_is_counted_as_missing():
    places = [("honest", "FedAvg", "0"), ("honest", "FedAvg", "1"), ("label noise", "FedAvg", "1")]
    lines = [{"case": case, "rule": rule, "seed": seed} for case, rule, seed in places]
    assert missing_federations(lines) == " Missing: 1 of 4 federations."
    assert missing_federations(lines[:2]) == ""


def test_whom_multi_krum_leaves_out_earns_most_under_fedavg():
    """As the page says of the committed rows of digits, in each of three seeds."""
    rows = read_rows(DOCS / "audit" / FOLDERS["Digits"] / "values.csv")

    def earned(rule, seed):
        place = {"case": "honest", "rule": rule, "seed": seed}
        place["valuation"] = "path attribution (simpson)"
        return [float(row["value"]) for row in rows if place.items() <= row.items()]

    for seed in "012":
        under_fedavg = earned("FedAvg", seed)
        assert len(under_fedavg) == 10
        assert 0.66 <= round(max(under_fedavg), 2) <= 0.71
        assert earned("Multi-Krum", seed)[under_fedavg.index(max(under_fedavg))] == 0
