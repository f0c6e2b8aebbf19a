"""FedIF's leads over FedAvg, by column: from rows worked out by hand."""

from __future__ import annotations

from fedif_studies.lab.measurements import find_measurements
from fedif_studies.paper.cells import fill_table
from fedif_studies.paper.gains import gains_lines
from fedif_studies.paper.points import DATA
from fedif_studies.paper.tables import TABLES
from tests.studies.lab.small import DEFAULTS, write_result
from tests.studies.paper.test_tables import accuracies, settings

HEAVY = "label-noise_0.7_0.7-0.8"


def filled_of(folder):
    measurements = find_measurements([folder])
    names = [name for tables in DATA.values() for name in tables]
    return {name: fill_table(TABLES[name], measurements, DEFAULTS) for name in names}


def line_of(lines: list[str], column: str) -> list[str]:
    """Return the first line of a column: that of CIFAR-10."""
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if "|" in line]
    return next(row for row in cells if row[1] == column)


def test_a_lead_is_over_the_seeds_that_both_methods_have(tmp_path):
    for seed, fedavg in ((0, 0.40), (1, 0.44)):
        row = settings("cifar10", "fedavg", HEAVY) | {"seed": seed}
        write_result(tmp_path / f"a{seed}", row, accuracies(fedavg, 0.7))
    row = settings("cifar10", "fedif", HEAVY)
    write_result(tmp_path / "b", row, accuracies(0.50, 0.7), detection_auc=0.75)
    lines = gains_lines(filled_of(tmp_path))
    assert line_of(lines, "label noise 0.7 (0.7, 0.8)")[2:7] == [
        "42.0±2.8",
        "50.0",
        "+10.0",
        "+7.4",
        "0.750",
    ]
    # Only the paper has the others.
    assert line_of(lines, "label noise 0.5 (0.5, 0.6)")[2:7] == ["-", "-", "-", "+5.1", "-"]


def test_columns_are_counted_once_and_compared_with_the_paper(tmp_path):
    """Without attack FedIF is ahead in the paper, and stands in two tables."""
    for column, fedavg, fedif in (("clean", 0.60, 0.59), (HEAVY, 0.40, 0.50)):
        for row, accuracy in (("fedavg", fedavg), ("fedif", fedif)):
            folder = tmp_path / f"{column}-{row}"
            write_result(folder, settings("cifar10", row, column), accuracies(accuracy, 0.7))
    *_, said = gains_lines(filled_of(tmp_path))
    assert said == (
        "Both methods are measured in 2 of 26 columns. FedIF is ahead in 1 of them, in the paper "
        "in 2; both say the same in 1."
    )


def test_nothing_measured_is_said(tmp_path):
    *_, said = gains_lines(filled_of(tmp_path))
    assert said == "No column of 26 has both methods yet."
