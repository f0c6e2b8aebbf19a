from __future__ import annotations

import csv

import pytest

from fedif_flower.settings import Scalar
from fedif_flower.sweeps.measurements import find_measurements
from fedif_flower.sweeps.tables import MeanStd
from paper.compare import (
    best_paper_rows,
    best_rows,
    fill_table,
)
from paper.docs import read_results, update_docs
from paper.report import report_all
from paper.tables import TABLES
from tests.sweeps.small import DEFAULTS, printed, silent_console, write_result

ROUNDS = 100


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
    assert cells["fedavg"].accuracy("test", "last") == MeanStd(pytest.approx(60.0), None)
    fedif = cells["fedif"].accuracy("test", "last")
    assert fedif.mean == pytest.approx(63.0)
    assert fedif.std == pytest.approx(2**0.5)  # of 62 and 64
    assert cells["fedif"].accuracy("test", "best").mean == pytest.approx(64.5)
    assert cells["krum"].accuracy("test", "last") is None
    assert [m.seed for m in cells["fedif"].measurements] == [0, 1]


def test_the_best_of_a_column(results):
    cells = list(clean_cells(find_measurements([results])).values())
    assert best_rows(cells, "test", "last") == {("fedif", "clean")}
    assert best_paper_rows(cells) == {("fedif", "clean")}
    alone = [cell for cell in cells if cell.row.key == "fedavg"]
    assert best_rows(alone, "test", "last") == set()


@pytest.mark.parametrize(
    "changed",
    [
        {"learning_rate": 0.01},
        {"fedif.weight-scope": "population"},
        {"num_server_rounds": 50},
        {"model": "lenet5"},
        {"fedif.gamma": 0.4},
        {"fedif.smooth-update": False},
    ],
)
def test_a_run_with_another_setting_is_no_cell_of_the_table(tmp_path, changed):
    write_result(tmp_path / "run", settings("cifar10", "fedif", "clean", **changed), [0.5])
    assert not clean_cells(find_measurements([tmp_path]))["fedif"].measurements


def test_settings_that_are_no_part_of_the_protocol_do_not_matter(tmp_path):
    own = settings("cifar10", "fedif", "clean", device="cpu", threads_per_client=2)
    write_result(tmp_path / "run", own, [0.5])
    assert clean_cells(find_measurements([tmp_path]))["fedif"].measurements


def test_only_labelled_image_folders_are_cifar10(tmp_path):
    own = settings("cifar10", "fedif", "clean", dataset="image-folder", data_dir="there")
    write_result(tmp_path / "own" / "run", own, [0.5], data="image-folder")
    assert not clean_cells(find_measurements([tmp_path]))["fedif"].measurements
    write_result(tmp_path / "jpeg" / "run", own, [0.5], data="CIFAR-10 (JPEG)")
    assert clean_cells(find_measurements([tmp_path]))["fedif"].measurements


def test_a_clean_cell_belongs_to_both_tables_of_its_data_set(results):
    measured = find_measurements([results])
    for name in ("cifar10", "cifar10-gradient"):
        cells = fill_table(TABLES[name], measured, DEFAULTS)
        assert sum(bool(cell.measurements) for cell in cells) == 2


def test_a_report_from_results_alone(results, tmp_path):
    console = silent_console()
    report_all(find_measurements([results]), DEFAULTS, tmp_path / "out", console)
    folder = tmp_path / "out" / "cifar10"
    text = (folder / "table.md").read_text()
    fedavg = "| clean | FedAvg | 1 | 60.00 | 60.00 | 63.00 "
    assert fedavg + "| 62.52 ± 0.13 | -2.52 | -2.52 | +0.48 |" in text
    fedif = "|  | FedIF | 2 | **63.00 ± 1.41** | **63.00 ± 1.41** | **64.50 ± 0.71** "
    assert fedif + "| **63.60 ± 0.43** | -0.60 | -0.60 | +0.90 |" in text
    assert "Missing, 43 of 45 cells: clean (fedprox, krum, afedsv), " in text
    assert "label-noise_0.5_0.5-0.6 (all), " in text
    assert (folder / "clean.png").stat().st_size > 1000
    assert not (folder / "label-noise_0.5_0.5-0.6.png").exists()
    with (folder / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 45
    assert (rows[0]["row"], rows[0]["last round"], rows[0]["paper"]) == (
        "FedAvg",
        "60.00",
        "62.52 ± 0.13",
    )
    with (folder / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["row"], row["seed"], row["test-last"]) for row in rows] == [
        ("fedavg", "0", "0.600000"),
        ("fedif", "0", "0.620000"),
        ("fedif", "1", "0.640000"),
    ]
    assert "63.00 ± 1.41" in printed(console)


def test_shorter_runs_are_a_table_of_their_own(tmp_path):
    own = settings("cifar10", "fedif", "clean", num_server_rounds=3)
    write_result(tmp_path / "in" / "run", own, [0.1, 0.2, 0.3])
    report_all(find_measurements([tmp_path / "in"]), DEFAULTS, tmp_path, silent_console())
    text = (tmp_path / "cifar10-3-rounds" / "table.md").read_text()
    assert "rounds: 3; seeds: 0." in text
    assert not (tmp_path / "cifar10").exists()


def test_gamma_is_judged_by_validation_accuracy(tmp_path):
    own = settings("gamma-cifar10", "gamma-0.5", "clean")
    write_result(tmp_path / "in" / "run", own, accuracies(0.60, 0.63))
    report_all(find_measurements([tmp_path / "in"]), DEFAULTS, tmp_path, silent_console())
    text = (tmp_path / "gamma-cifar10" / "table.md").read_text()
    assert "gamma = 0.5 | 1 | 61.00 | 61.00 | 64.00 | 62.14 | -1.14 | -1.14 | +1.86 |" in text


def test_the_table_of_seconds(tmp_path):
    own = settings("timing", "afedsv", "cifar10")
    write_result(
        tmp_path / "in" / "run",
        own,
        [0.1] * 10,
        train_seconds_per_client=0.75,
        aggregation_seconds_per_round=12.5,
        evaluations_per_round=480.0,
    )
    report_all(find_measurements([tmp_path / "in"]), DEFAULTS, tmp_path, silent_console())
    text = (tmp_path / "timing" / "table.md").read_text()
    assert "|  | AFedSV | 0.7500 | 0.2312 | 12.5000 | 91.7635 | 480 |" in text
    assert "| cifar10 | FedAvg | - | 0.2268 | - | 0.0005 | - |" in text
    header = (tmp_path / "timing" / "table.csv").read_text().splitlines()[0]
    assert "aggregation, s per round, paper" in header.replace('"', "")


def test_other_runs_are_reported_by_the_settings_that_differ(tmp_path):
    for strategy, seed, accuracy in (("fedif", 0, 0.8), ("fedif", 1, 0.9), ("krum", 0, 0.5)):
        write_result(
            tmp_path / "in" / "mine" / f"{strategy}{seed}",
            {"strategy": strategy, "seed": seed, "update-clipping": 0.0},
            [accuracy],
            detection_auc=0.75,
        )
    console = silent_console()
    report_all(find_measurements([tmp_path / "in"]), DEFAULTS, tmp_path / "out", console)
    text = (tmp_path / "out" / "mine" / "table.md").read_text()
    assert "| strategy | seeds | last round |" in text
    assert "| fedif | 2 | 85.00 ± 7.07 | 85.00 ± 7.07 | 85.00 ± 7.07 | 0.750 ± 0.000 |" in text
    assert "| krum | 1 | 50.00 | 50.00 | 50.00 | 0.750 |" in text
    assert (tmp_path / "out" / "mine" / "accuracy.png").exists()


def test_docs_grow_and_are_written_from_their_rows(results, tmp_path):
    docs = tmp_path / "docs"
    (docs / "results").mkdir(parents=True)
    (docs / "results" / "notes.md").write_text("Krum is far off because of this.\n")
    page = update_docs(docs, find_measurements([results]), DEFAULTS)
    text = page.read_text()
    assert "Krum is far off because of this." in text
    assert "| clean | FedAvg | 1 | 60.00 |" in text
    assert "Not measured yet: `python simulation.py paper timing`." in text
    assert str(tmp_path) not in text
    rows = read_results(docs / "results" / "cifar10.csv")
    assert [(m.config["strategy"], m.seed) for m in rows] == [
        ("fedavg", 0),
        ("fedif", 0),
        ("fedif", 1),
    ]
    # Without any run at hand the page stays the same; a new result replaces its own row only.
    assert update_docs(docs, [], DEFAULTS).read_text() == text
    newer = tmp_path / "newer"
    write_result(newer / "run", settings("cifar10", "fedavg", "clean"), accuracies(0.61, 0.63))
    text = update_docs(docs, find_measurements([newer]), DEFAULTS).read_text()
    assert "| clean | FedAvg | 1 | 61.00 |" in text
    assert "FedIF | 2 | **63.00 ± 1.41**" in text


def test_docs_show_the_digits_that_their_rows_keep(tmp_path):
    own = settings("cifar10", "fedavg", "clean")
    write_result(tmp_path / "run", own, accuracies(0.2365499999, 0.2365499999))
    docs = tmp_path / "docs"
    text = update_docs(docs, find_measurements([tmp_path / "run"]), DEFAULTS).read_text()
    assert update_docs(docs, [], DEFAULTS).read_text() == text


def test_jpeg_is_said(tmp_path):
    own = settings("cifar10", "fedif", "clean", dataset="image-folder", data_dir="there")
    write_result(tmp_path / "run", own, accuracies(0.6, 0.6), data="CIFAR-10 (JPEG)")
    docs = tmp_path / "docs"
    text = update_docs(docs, find_measurements([tmp_path / "run"]), DEFAULTS).read_text()
    assert "Measured on CIFAR-10 (JPEG)" in text
    assert "not the original bitmaps" in text
