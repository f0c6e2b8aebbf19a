from __future__ import annotations

import csv
import dataclasses

import pytest

from fedif_studies.lab.measurements import (
    PATHS,
    Accuracy,
    find_measurements,
    from_row,
    read_measurement,
    to_row,
    write_csv,
)
from tests.studies.lab.small import write_result


def test_three_figures_of_a_run():
    accuracy = Accuracy.of([0.9, *[0.2, 0.4] * 5])
    assert accuracy == Accuracy(last=0.4, last_ten=pytest.approx(0.3), best=0.9)
    assert Accuracy.of([0.5, 0.7]) == Accuracy(0.7, pytest.approx(0.6), 0.7)


def test_a_run_is_read_without_its_initial_model(tmp_path):
    run_dir = write_result(
        tmp_path / "run",
        {"fedif.gamma": 0.5, "seed": 3, "num-server-rounds": 2},
        [0.6, 0.5],
        data="CIFAR-10 (JPEG)",
        seconds=12.5,
        evaluations_per_round=1.0,
        detection_auc=None,
    )
    measurement = read_measurement(run_dir)
    assert measurement.test == Accuracy(0.5, pytest.approx(0.55), 0.6)
    assert measurement.validation == Accuracy(0.51, pytest.approx(0.56), 0.61)
    assert (measurement.seed, measurement.rounds) == (3, 2)
    assert measurement.data == "CIFAR-10 (JPEG)"
    assert measurement.figures == {"seconds": 12.5, "evaluations-per-round": 1.0}
    assert measurement.machine == "2 cores, abacus"
    assert measurement.curve("test") == [(0, 0.1), (1, 0.6), (2, 0.5)]


def test_only_complete_runs_are_found_each_once(tmp_path):
    write_result(tmp_path / "table" / "one", {}, [0.6])
    write_result(tmp_path / "two", {"seed": 1}, [0.6])
    (write_result(tmp_path / "broken", {}, [0.6]) / "summary.json").write_text("{")
    (write_result(tmp_path / "running", {}, [0.6]) / "summary.json").unlink()
    found = find_measurements([tmp_path, tmp_path / "two"])
    assert [m.run_dir.name for m in found] == ["one", "two"]


def test_a_row_keeps_everything_but_paths(tmp_path):
    run_dir = write_result(
        tmp_path / "run", {"strategy": "afedsv", "afedsv.smooth-update": False}, [0.625]
    )
    measured = read_measurement(run_dir)
    path = tmp_path / "rows.csv"
    write_csv(path, [to_row(measured)])
    with path.open(newline="") as file:
        [row] = csv.DictReader(file)
    assert (row["strategy"], row["afedsv.smooth-update"], row["seed"]) == ("afedsv", "false", "0")
    assert not {"output-dir", "data-dir", "run-name"} & set(row)
    assert str(tmp_path) not in path.read_text()
    read = from_row(row)
    kept = {k: v for k, v in measured.config.items() if k in read.config}
    assert read == dataclasses.replace(measured, config=kept, run_dir=None)
    lost = {key for key in measured.config if key not in kept}
    assert all(key in PATHS or measured.config[key] == "" for key in lost)
    assert read.curve("test") == []
