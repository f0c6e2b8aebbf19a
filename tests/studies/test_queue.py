"""Cells of a sweep's file, run one by one, and found again by their rows."""

from __future__ import annotations

import os
import signal

import pytest
import typer

from fedif_flower.errors import ConfigError
from fedif_flower.run.rows import read_rows
from fedif_studies import compared, queue
from fedif_studies.lab import run
from fedif_studies.lab.run import missing

SWEEP = """
strategy = ["fedavg", "fedif"]
dataset = "digits"
num-clients = 4
fraction-train = 0.5
num-server-rounds = 3
local-epochs = 1
"""


def test_a_stopped_queue_goes_on_in_the_middle_of_its_cell(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run, "committed_revision", lambda: "abc")
    monkeypatch.setattr(queue, "RESULTS", tmp_path)
    path = tmp_path / "small.toml"
    path.write_text(SWEEP)
    trained, app = [], queue.task_app

    def counted():
        own = app()

        def call(message, context):
            if message.metadata.message_type == "train":
                trained.append(message)
            if len(trained) == 3:
                os.kill(os.getpid(), signal.SIGTERM)
            return own(message, context)

        return call

    monkeypatch.setattr(queue, "task_app", counted)
    for code in (130, 0):
        with pytest.raises(typer.Exit) as ended:
            queue.main([path], output_dir=tmp_path / "runs", seeds=1)
        assert ended.value.exit_code == code
    assert "stopped: 2 cells are left; go on with: " in capsys.readouterr().err
    rows = read_rows(tmp_path / "small.csv")
    assert [(row["strategy"], row["seed"]) for row in rows] == [("fedavg", "0"), ("fedif", "0")]
    # The first round of the first cell was not trained again.
    assert len(trained) <= 2 * 2 * 3 + 2
    cells, _, _ = queue.cells_of(path, "", 0)
    assert missing(tmp_path / "small.csv", cells) == []


def test_the_rows_of_the_comparison_are_all_there():
    cells = [compared.cell_of(place) for place in compared.places(range(3))]
    assert missing(compared.OUTPUT, cells) == []
    assert missing(compared.OUTPUT, [compared.cell_of(*one) for one in compared.choices()]) == []


def test_tables_of_cells_are_no_axes(tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_text('[[cells]]\nattack = "none"\n')
    with pytest.raises(ConfigError, match=r"cells in .*allowed in a queue: axes"):
        queue.cells_of(path, "", 0)
