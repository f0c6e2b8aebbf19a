"""``RunWriter``: the records of a federation that has no run config."""

from __future__ import annotations

import pytest

from fedif_flower import FedIF, RunWriter
from fedif_flower.errors import ConfigError
from fedif_flower.messages.models import model_arrays
from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.strategies import Setup
from tests.strategies.lines import Movers, Threshold, threshold_validation


def written(directory, rounds=3, **arguments) -> RunWriter:
    writer = RunWriter(directory, **arguments)
    strategy = FedIF(
        threshold_validation(), fraction_evaluate=0.0, callbacks=[writer], setup=Setup(device="cpu")
    )
    grid = LocalGrid(Movers([[1.0], [-1.0], [2.0]]), 3)
    strategy.start(grid, model_arrays(Threshold()), num_rounds=rounds)
    return writer


def test_rounds_clients_and_a_report(tmp_path):
    validation = threshold_validation()
    writer = written(
        tmp_path / "new" / "folder",
        validation=validation,
        title="Three members",
        is_malicious=lambda node: node.client_id == 1001,
    )
    rounds, clients = (read_rows(writer.run_dir / f"{name}.csv") for name in ("rounds", "clients"))
    assert [row["round"] for row in rounds] == ["0", "1", "2", "3"]
    assert float(rounds[0]["validation_accuracy"]) < float(rounds[3]["validation_accuracy"])
    assert rounds[1]["test_accuracy"] == ""
    assert [row["client_id"] for row in clients] == ["1000", "1001", "1002"] * 3
    assert [row["malicious"] for row in clients] == ["0", "1", "0"] * 3
    report = (writer.run_dir / "report.md").read_text()
    assert report.startswith("# Three members\n")
    assert "malicious |" in report
    for picture in ("accuracy.png", "weight-scores.png"):
        assert (writer.run_dir / picture).stat().st_size > 1000
        assert f"({picture})" in report


def test_without_held_out_data_there_are_no_accuracies(tmp_path):
    writer = written(tmp_path, rounds=1)
    assert not (tmp_path / "accuracy.png").exists()
    assert "accuracy.png" not in (tmp_path / "report.md").read_text()
    assert [row["validation_accuracy"] for row in read_rows(tmp_path / "rounds.csv")] == ["", ""]
    assert len(writer.rounds) == 2


def test_models_are_evaluated_every_so_many_rounds(tmp_path):
    rows = written(tmp_path, rounds=3, test=threshold_validation(), every=2).rounds
    assert [row.test_accuracy is not None for row in rows] == [True, False, True, False]


def test_an_earlier_writers_files_are_replaced_and_nothing_else(tmp_path):
    written(tmp_path, rounds=2)
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / "summary.json").write_text("a run's")
    RunWriter(tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"rounds.csv", "clients.csv", "attendance.csv", "mine.txt", "summary.json"}
    assert read_rows(tmp_path / "rounds.csv") == []


def test_a_place_that_cannot_be_written_to_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"directory = '.*file/below': cannot write"):
        RunWriter(tmp_path / "file" / "below")


def test_metrics_of_an_evaluate_fn_are_written(tmp_path):
    from flwr.app import MetricRecord

    writer = RunWriter(tmp_path)
    strategy = FedIF(
        threshold_validation(),
        fraction_evaluate=0.0,
        callbacks=[writer],
        setup=Setup(device="cpu"),
    )
    strategy.start(
        LocalGrid(Movers([[1.0], [-1.0]]), 2),
        model_arrays(Threshold()),
        num_rounds=1,
        evaluate_fn=lambda number, _: MetricRecord(
            {"test-accuracy": 0.25 * number, "test-loss": [1.0, 2.0]}
        ),
    )
    rows = read_rows(tmp_path / "rounds.csv")
    assert [(row["test_accuracy"], row["test_loss"]) for row in rows] == [("0.0", ""), ("0.25", "")]
