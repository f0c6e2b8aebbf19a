"""``RunWriter``: the records of a federation that has no run config."""

from __future__ import annotations

import logging
import re

import pytest

from fedif_flower import CreditBounds, FedIF, PathAttribution, RunWriter, ShowRounds, load
from fedif_flower.messages.models import model_arrays
from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.strategies import Setup
from fedif_flower.strategies.callbacks import Callback
from tests.strategies.lines import Movers, Threshold, threshold_validation


def written(directory, *more, num_rounds=3, attribution=None, **arguments) -> FedIF:
    """Run a federation of three with a writer, in an app of one's own."""
    beside = [attribution] if attribution else []
    callbacks = [RunWriter(directory, **arguments), *beside, *more]
    validation = attribution.validation if attribution else threshold_validation()
    setup = Setup(device="cpu")
    strategy = FedIF(validation, fraction_evaluate=0.0, callbacks=callbacks, setup=setup)
    grid = LocalGrid(Movers([[1.0], [-1.0], [2.0]]), 3)
    strategy.start(grid, model_arrays(Threshold()), num_rounds=num_rounds)
    return strategy


def test_rounds_clients_and_a_report(tmp_path, pictures):
    folder = tmp_path / "new" / "folder"
    held_out, marked = threshold_validation(), lambda node: node.client_id == 1001
    written(folder, validation=held_out, title="Three members", is_malicious=marked)
    rounds, clients = (read_rows(folder / f"{name}.csv") for name in ("rounds", "clients"))
    assert [row["round"] for row in rounds] == ["0", "1", "2", "3"]
    assert float(rounds[0]["validation_accuracy"]) < float(rounds[3]["validation_accuracy"])
    assert rounds[1]["test_accuracy"] == ""
    assert [row["client_id"] for row in clients] == ["1000", "1001", "1002"] * 3
    assert [row["malicious"] for row in clients] == ["0", "1", "0"] * 3
    report = (folder / "report.md").read_text()
    assert report.startswith("# Three members\n")
    assert "(malicious) |" in report
    for picture in ("accuracy.png", "weight-scores.png"):
        assert (folder / picture).stat().st_size > 1000
        assert f"({picture})" in report


def test_beside_an_attribution_it_writes_contributions(tmp_path):
    attribution = PathAttribution(threshold_validation(), bounds=CreditBounds(weight=0.0))
    strategy = written(tmp_path, attribution=attribution)
    told = {member.label: member.contribution for member in load(tmp_path).members}
    assert set(told) == {"node 1000", "node 1001", "node 1002"} == set(strategy.weight_scores)
    assert told == pytest.approx(attribution.contributions)
    report = " ".join((tmp_path / "report.md").read_text().split())
    assert report.count("1002") == 1
    assert re.search(r"contributions add up to 0\.\d+ (more|less) than the validation loss", report)


def test_a_run_that_an_error_ended_has_a_report(tmp_path):
    class Failing(Callback):
        def on_round(self, report):
            if report.round == 2:
                raise RuntimeError("no more")

    attribution = PathAttribution(threshold_validation())
    with pytest.raises(RuntimeError, match="no more"):
        written(tmp_path, Failing(), attribution=attribution)
    assert (tmp_path / "report.md").is_file()


def test_a_notebook_sees_one_line_a_round_in_place_of_flowers(tmp_path, capsys, caplog):
    caplog.set_level(logging.INFO, "flwr")
    written(tmp_path, ShowRounds(every=2), num_rounds=4, validation=threshold_validation())
    assert [r for r in caplog.records if r.name == "flwr" and r.levelno < logging.WARNING] == []
    assert logging.getLogger("flwr").level == logging.INFO
    told = [
        line.split(" replies, validation acc")[0] for line in capsys.readouterr().out.split("\n")
    ]
    assert told == ["round 2: 3 of 3", "round 4: 3 of 3", ""]
