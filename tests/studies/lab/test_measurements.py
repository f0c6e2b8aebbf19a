from __future__ import annotations

import dataclasses
import json
from math import nan

import pytest

from fedif_flower.errors import ConfigError
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.machine import describe_machine
from fedif_flower.run.rows import read_rows
from fedif_studies.lab.cells import CLAIMS, LABEL
from fedif_studies.lab.measurements import (
    SPLITS,
    find_measurements,
    from_row,
    last_ten_remarks,
    read_measurement,
    to_row,
)
from fedif_studies.lab.run import last_ten
from fedif_studies.rows import replace_all_rows
from tests.studies.lab.small import write_result


def test_a_run_is_read_without_its_initial_model(tmp_path):
    run_dir = write_result(
        tmp_path / "run",
        {"fedif.gamma": 0.5, "seed": 3, "num-server-rounds": 12},
        [0.9, *[0.2, 0.4] * 5],
        seconds=12.5,
        evaluations_per_round=1.0,
        detection_auc=None,
    )
    (run_dir / "cell.json").write_text('{"data": "CIFAR-10 (JPEG)"}')
    measurement = read_measurement(run_dir)
    figures = {
        **{"test-last": 0.4, "test-last-ten": 0.3, "test-best": 0.9},
        **{"validation-last": 0.41, "validation-last-ten": 0.31, "validation-best": 0.91},
        **{"seconds": 12.5, "evaluations-per-round": 1.0},
    }
    assert measurement.figures == pytest.approx(figures)
    assert (measurement.seed, measurement.rounds) == (3, 12)
    assert measurement.data == "CIFAR-10 (JPEG)"
    assert measurement.machine == "2 cores, abacus"
    assert measurement.curve("test")[:3] == [(0, 0.1), (1, 0.9), (2, 0.2)]


def test_a_run_is_measured_by_a_metric_that_became_nan(tmp_path):
    """By its loss it would not be comparable with the other runs of its task."""
    error = {"higher_is_better": False, "test": None, "test_best": 0.5, "validation": 0.4}
    loss = {"higher_is_better": False, "test": 0.2, "test_best": 0.2, "validation": 0.1}
    metrics = {"error on weekdays": error, "loss": loss}
    run_dir = write_result(tmp_path / "run", {"num-server-rounds": 2}, [], metrics=metrics)
    columns = [f"{split}_{name}" for split in SPLITS for name in ("error_on_weekdays", "loss")]
    lines = ["0,0.9,0.9,0.9,0.9", "1,0.5,0.3,0.6,0.4", "2,nan,0.2,0.4,0.1", ""]
    (run_dir / "rounds.csv").write_text("\n".join([",".join(["round", *columns]), *lines]))
    measurement = read_measurement(run_dir)
    assert (measurement.metric, measurement.higher_is_better) == ("error on weekdays", False)
    figures = {
        **{"test-last": nan, "test-last-ten": nan, "test-best": 0.5},
        **{"validation-last": 0.4, "validation-last-ten": 0.5, "validation-best": 0.4},
    }
    assert measurement.figures == pytest.approx(figures, nan_ok=True)


def test_the_last_ten_rounds_are_no_earlier_ones_where_few_are_evaluated(tmp_path):
    run_dir = write_result(tmp_path / "run", {"num-server-rounds": 30}, [])
    lines = [f"{5 * n},{n / 10},{n / 10}" for n in range(7)]
    text = "\n".join(["round,test_accuracy,validation_accuracy", *lines, ""])
    (run_dir / "rounds.csv").write_text(text)
    measurement = read_measurement(run_dir)
    assert measurement.figures["test-last-ten"] == pytest.approx(0.55)  # Of rounds 25 and 30.
    short = read_measurement(write_result(tmp_path / "short", {}, [0.5] * 5))
    ten, more = (
        read_measurement(write_result(tmp_path / str(count), {}, [0.5] * count))
        for count in (10, 11)
    )
    said = "The mean of the last ten rounds includes only the evaluated ones: {}."
    assert last_ten_remarks([measurement]) == [said.format(2)]
    assert last_ten_remarks([ten, short, measurement]) == [said.format("2 to 10")]
    assert last_ten_remarks([ten, more]) == []
    assert last_ten(RunFolder(run_dir)) == [0.5, 0.6]


def test_only_complete_runs_are_found_each_once(tmp_path):
    write_result(tmp_path / "table" / "one", {}, [0.6])
    write_result(tmp_path / "two", {"seed": 1}, [0.6])
    (write_result(tmp_path / "broken", {}, [0.6]) / "summary.json").write_text("{")
    (write_result(tmp_path / "running", {}, [0.6]) / "summary.json").unlink()
    own = write_result(tmp_path / "of an own app", {}, [0.6]) / "summary.json"
    own.write_text(json.dumps({"title": "without a run config"}))
    found = find_measurements([tmp_path, tmp_path / "two"])
    assert [m.run_dir.name for m in found] == ["one", "two"]
    (tmp_path / "two" / "summary.json").write_text("{}")  # Another program's.
    with pytest.raises(ConfigError, match="two holds no run that can be read: KeyError"):
        find_measurements([tmp_path])


def test_an_attempt_that_was_put_aside_is_no_measurement(tmp_path):
    run = RunFolder(write_result(tmp_path / "run", {}, [0.4]))
    run.keep_attempt()
    (run.path / "rounds.csv").write_text("round,test_accuracy,validation_accuracy\n1,0.6,0.6\n")
    # A run may have such a name.
    write_result(tmp_path / "attempt-1", {"seed": 1}, [0.5])
    found = find_measurements([tmp_path])
    assert sorted(m.figures["test-last"] for m in found) == [0.5, 0.6]


def test_a_run_that_has_not_replaced_the_result_of_its_cell_is_no_measurement(tmp_path):
    """A kill leaves it among the claims, although it is complete."""
    write_result(tmp_path / "table" / "cell-1234", {}, [0.4])
    write_result(tmp_path / CLAIMS / "again" / "cell-1234", {}, [0.6])
    [found] = find_measurements([tmp_path])
    assert found.figures["test-last"] == 0.4


@pytest.mark.parametrize(
    ("device", "gpu", "used"),
    [
        ("mps", None, "MPS"),
        ("mps", "MPS", "MPS"),
        ("auto", "MPS", "MPS"),
        ("cpu", "MPS", ""),
        ("auto", None, ""),
        ("cuda:1", "slide rule", "slide rule"),
    ],
)
def test_a_run_names_the_gpu_that_it_was_computed_on(tmp_path, device, gpu, used):
    machine = {"cores": 2, "processor": "abacus", "device": device, "gpu": gpu}
    run_dir = write_result(tmp_path / "run", {}, [0.625], machine=machine)
    assert read_measurement(run_dir).gpu == used


def test_a_machine_without_cuda_names_its_mps(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for is_there, gpu in ((True, "MPS"), (False, None)):
        monkeypatch.setattr("torch.backends.mps.is_available", lambda is_there=is_there: is_there)
        assert describe_machine("auto")["gpu"] == gpu


def test_a_run_without_a_label_is_told_by_the_hash_of_its_code(tmp_path):
    run_dir = write_result(tmp_path / "run", {}, [0.625])
    (run_dir / LABEL).unlink()
    (run_dir / "provenance.json").write_text(json.dumps({"code_sha256": "0123456789abcdef"}))
    assert read_measurement(run_dir).revision == "code-0123456789ab"
    (run_dir / "provenance.json").unlink()
    assert read_measurement(run_dir).revision == ""


def test_a_row_s_reconstructed_revision_stays_one_where_rows_are_read_and_written_again(tmp_path):
    row = to_row(read_measurement(write_result(tmp_path / "run", {}, [0.625])))
    row |= {"revision": "older", "reconstructed": "revision"}
    again = to_row(from_row(row))
    assert (again["revision"], again["reconstructed"]) == ("older", "revision")


def test_a_row_from_before_a_figure_was_measured_lacks_this_figure_alone(tmp_path):
    row = to_row(read_measurement(write_result(tmp_path / "run", {}, [0.625], seconds=3.0)))
    del row["detection-auc"]
    read = from_row(row)
    assert (read.figures["seconds"], "detection-auc" in read.figures) == (3.0, False)


def test_a_row_keeps_everything_but_paths(tmp_path):
    settings = {"strategy": "afedsv", "afedsv.smooth-update": False}
    measured = read_measurement(write_result(tmp_path / "run", settings, [0.625]))
    path = tmp_path / "rows.csv"
    replace_all_rows(path, [to_row(measured)])
    [row] = read_rows(path)
    assert (row["strategy"], row["afedsv.smooth-update"], row["seed"]) == ("afedsv", "false", "0")
    assert str(tmp_path) not in path.read_text()
    assert row["revision"] == "abc"
    read = from_row(row)
    kept = {k: v for k, v in measured.config.items() if k in read.config}
    assert read == dataclasses.replace(measured, config=kept, run_dir=None)
