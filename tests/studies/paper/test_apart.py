"""Cells far from the paper's figures: from rows worked out by hand."""

from __future__ import annotations

from fedif_studies.lab.measurements import find_measurements
from fedif_studies.paper.apart import Pixels, apart_lines
from fedif_studies.paper.cells import fill_table
from fedif_studies.paper.tables import TABLES
from tests.studies.lab.small import DEFAULTS, write_result
from tests.studies.paper.test_tables import accuracies, settings

HEAVY = "label-noise_0.7_0.7-0.8"  # FedAvg has 44.30 in the paper.


def pixels_of(folder, words: str) -> Pixels:
    measurements = find_measurements([folder])
    filled = {
        name: fill_table(table, measurements, DEFAULTS)
        for name, table in TABLES.items()
        if not table.is_timed
    }
    return Pixels(words, filled)


def cells_of(lines: list[str]) -> list[list[str]]:
    """Return the cells of the table's lines, without its heading."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if "|" in line]
    return rows[2:]


def test_what_is_more_than_three_points_from_the_paper_is_listed(tmp_path):
    """Without attack FedAvg has 62.52 in the paper, and stands in two tables: it counts once."""
    write_result(tmp_path / "a", settings("cifar10", "fedavg", HEAVY), accuracies(0.41, 0.7))
    write_result(tmp_path / "b", settings("cifar10", "fedavg", "clean"), accuracies(0.60, 0.7))
    lines = apart_lines([pixels_of(tmp_path, "usual")])
    (row,) = cells_of(lines)
    assert row[:5] == [
        "usual",
        "CIFAR-10, accuracy",
        "label noise 0.7 (0.7, 0.8)",
        "FedAvg",
        "41.0",
    ]
    assert row[-2:] == ["44.3±0.3", "-3.3"]
    assert lines[-1] == "1 of 2 cells are more than 3 points from the paper."


def test_a_cell_that_was_measured_in_both_ways_counts_in_the_first(tmp_path):
    row = settings("cifar10", "fedavg", HEAVY)
    write_result(tmp_path / "first" / "a", row, accuracies(0.44, 0.7))
    write_result(tmp_path / "second" / "a", row, accuracies(0.30, 0.7))
    first = pixels_of(tmp_path / "first", "first")
    second = pixels_of(tmp_path / "second", "second")
    assert cells_of(apart_lines([first, second])) == []
    (far,) = cells_of(apart_lines([second, first]))
    assert far[0] == "second"
    assert far[-1] == "-14.3"


def test_what_the_ablation_repeats_counts_once(tmp_path):
    """FedIF without attack stands in three tables: as WN+RN+SU in the ablation."""
    write_result(tmp_path / "a", settings("cifar10", "fedif", "clean"), accuracies(0.50, 0.7))
    lines = apart_lines([pixels_of(tmp_path, "usual")])
    places = [row[1:4] for row in cells_of(lines) if "validation" not in row[1]]
    assert places == [["CIFAR-10, accuracy", "clean", "FedIF"]]


def test_a_validation_accuracy_is_a_figure_of_its_own(tmp_path):
    """FedIF with gamma 0.3 is also a row of the table by gamma, which is of another split."""
    write_result(tmp_path / "a", settings("cifar10", "fedif", "clean"), accuracies(0.50, 0.7))
    lines = apart_lines([pixels_of(tmp_path, "usual")])
    assert [row[3] for row in cells_of(lines)] == ["FedIF", "gamma = 0.3"]
    assert lines[-1] == "2 of 2 cells are more than 3 points from the paper."
