from __future__ import annotations

import pytest
from rich.console import Console

from fedif_flower.run.rows import read_rows
from fedif_flower.settings import Scalar
from fedif_studies.lab.measurements import find_measurements
from fedif_studies.lab.table import MeanStd
from fedif_studies.paper.cells import fill_table
from fedif_studies.paper.report import report_table
from fedif_studies.paper.tables import TABLES
from tests.studies.lab.small import DEFAULTS, write_result


def settings(table: str, row: str, column: str, **changed: Scalar) -> dict[str, Scalar]:
    found = TABLES[table]
    [r] = [r for r in found.rows if r.key == row]
    [c] = [c for c in found.columns if c.key == column]
    return found.settings(r, c) | {key.replace("_", "-"): value for key, value in changed.items()}


def accuracies(last: float, best: float) -> list[float]:
    """Return 100 rounds whose last ten have the mean of ``last``."""
    return [best] + [0.2] * 89 + [last] * 10


@pytest.fixture
def results(tmp_path):
    """FedAvg and FedIF on CIFAR-10, clean: one seed and two."""
    folder = tmp_path / "results"
    fedavg = settings("cifar10", "fedavg", "clean")
    fedif = settings("cifar10", "fedif", "clean")
    write_result(folder / "cifar10" / "a", fedavg, accuracies(0.60, 0.63))
    write_result(folder / "cifar10" / "b", fedif, accuracies(0.62, 0.65))
    write_result(folder / "cifar10" / "c", fedif | {"seed": 1}, accuracies(0.64, 0.64))
    return folder


def clean_cells(measurements, rounds=None):
    cells = fill_table(TABLES["cifar10"], measurements, DEFAULTS, rounds)
    return {cell.row.key: cell for cell in cells if cell.column.key == "clean"}


def test_means_and_deviations_over_seeds(results):
    cells = clean_cells(find_measurements([results]))
    assert cells["fedavg"].mean("test-last", 100) == MeanStd(pytest.approx(60.0), None)
    fedif = cells["fedif"].mean("test-last", 100)
    assert (fedif.mean, fedif.std) == pytest.approx((63.0, 2**0.5))  # of 62 and 64
    assert cells["krum"].mean("test-last", 100) is None
    assert [m.seed for m in cells["fedif"].measurements] == [0, 1]


@pytest.mark.parametrize("changed", [{"model": "lenet5"}, {"fedif.smooth-update": False}])
def test_a_run_with_another_setting_is_no_cell_of_the_table(tmp_path, changed):
    write_result(tmp_path / "run", settings("cifar10", "fedif", "clean", **changed), [0.5])
    assert not clean_cells(find_measurements([tmp_path]))["fedif"].measurements


def test_a_table_is_written_with_its_rows_and_pictures(results, tmp_path, capsys):
    console, table = Console(width=200), TABLES["cifar10"]
    cells = fill_table(table, find_measurements([results]), DEFAULTS)
    report_table(table, cells, tmp_path / "out", console, 100)
    folder = tmp_path / "out" / "cifar10"
    text = (folder / "table.md").read_text()
    fedavg = "| clean | FedAvg | 1 | 60.00 | 60.00 | 63.00 "
    assert fedavg + "| 62.52±0.13 | -2.52 |" in text
    fedif = "|  | FedIF | 2 | **63.00±1.41** | **63.00±1.41** | **64.50±0.71** "
    assert fedif + "| **63.60±0.43** | -0.60 |" in text
    assert "Rounds: 100; seeds: 0, 1; missing: 43 of 45 cells." in text
    assert [path.name for path in folder.glob("*.png")] == ["clean.png"]
    rows = read_rows(folder / "results.csv")
    assert [(row["row"], row["seed"]) for row in rows] == [
        *(("fedavg", "0"), ("fedif", "0"), ("fedif", "1"))
    ]
    assert "63.00±1.41" in capsys.readouterr().out
