"""A run that was stopped goes on as if it had not been; tests/test_goldens.py compares all bits."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from flwr.app import ArrayRecord

from client_app import app as client_app
from fedif_flower import FedAvg
from fedif_flower.errors import ConfigError, FedIFError
from fedif_flower.run.checkpoint import CheckpointFolder
from fedif_flower.run.federation import run_federation
from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.strategies import nodes
from tests.clocked_grid import ClockedGrid
from tests.run.resuming import CLIENTS, recorder_of, run, run_config
from tests.strategies.waiting import Clock

SAVING = {"recorder.py", "checkpoint.py"}


def checkpoints(run_dir: Path) -> list[str]:
    return sorted(path.name for path in (run_dir / "checkpoints").glob("*.pt"))


def rounds_of(run_dir: Path) -> list[int]:
    return [int(row["round"]) for row in read_rows(run_dir / "rounds.csv")]


def test_elsewhere_a_partition_id_is_a_claim_and_inherits_nothing(tmp_path):
    config = run_config(tmp_path, resume="auto", num_server_rounds=4, fraction_train=1.0)
    run(config, kill_at=3)
    newcomer = LocalGrid(client_app, CLIENTS)
    newcomer.node_ids = [*range(1001, 1006), 2000]
    newcomer.contexts[2000] = newcomer.contexts[1000]
    rows = read_rows(run(config, newcomer) / "clients.csv")
    of = {(row["round"], row["partition_id"]): row for row in rows}
    omega = {key: float(row["weight_score"]) for key, row in of.items() if row["weight_score"]}
    psi = {key: float(row["normalized"]) for key, row in of.items()}
    assert [of[t, "0"]["client_id"] for t in "23"] == ["1000", "2000"]
    assert omega["3", "0"] == pytest.approx(0.3 * psi["3", "0"])
    assert omega["3", "1"] == pytest.approx(0.7 * omega["2", "1"] + 0.3 * psi["3", "1"])


def test_a_resumed_run_goes_on_without_nodes_that_do_not_come_back(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(nodes, "time", Clock())
    config = run_config(tmp_path, resume="auto", fraction_train=1.0)
    run(config, kill_at=3)
    grid = LocalGrid(client_app, CLIENTS)
    grid.node_ids = [1000, 1001, 1002, 1004, 1005]
    rows = read_rows(run(config, grid) / "clients.csv")
    assert {row["client_id"] for row in rows if row["round"] == "3"} == set(map(str, grid.node_ids))
    assert "5 of 6 nodes are online" in caplog.text
    assert "going on with those that are there" in caplog.text


def test_a_buffered_run_goes_on_and_asks_its_members_anew(tmp_path):
    def clocked() -> ClockedGrid:
        return ClockedGrid(client_app, CLIENTS, lambda partition: 1.0 + 3.0 * partition)

    own = {"pace.rounds": "buffered", "pace.buffer-size": 2, "num_server_rounds": 8}
    config = run_config(tmp_path, **own, resume="auto")
    killed = run(config, clocked(), kill_at=5)
    assert any(row["status"] == "late" for row in read_rows(killed / "clients.csv"))
    rows = read_rows(run(config, clocked()) / "clients.csv")
    usable = Counter(row["round"] for row in rows if row["status"] == "accepted")
    assert usable == dict.fromkeys("12345678", 2)
    # The checkpoint was made after round 4: in round 5 nobody is at work.
    asked = [row["asked_in"] for row in rows if row["round"] == "5"]
    assert asked == [""] * CLIENTS
    assert any(row["asked_in"] for row in rows if row["round"] in "678")


def test_a_completed_run_is_only_reported_again(tmp_path):
    config = run_config(tmp_path, resume="auto", num_server_rounds=2)
    run_dir = run(config)
    names = ("rounds.csv", "clients.csv", "model.pt", "report.md")
    before = [(run_dir / name).read_bytes() for name in names]
    (run_dir / "report.md").unlink()
    run(config, LocalGrid(client_app, 0))
    assert [(run_dir / name).read_bytes() for name in names] == before


def test_a_run_is_replaced_where_that_is_asked_for_alone(tmp_path):
    config = run_config(tmp_path, num_server_rounds=3)
    run(config)
    with pytest.raises(ConfigError, match=r"run-name = 'run': .* a finished run; .*overwrite"):
        run(config)
    assert rounds_of(config.run_dir) == [0, 1, 2, 3]
    run(config.replace(overwrite=True), kill_at=1)
    assert checkpoints(config.run_dir) == []
    assert rounds_of(config.run_dir) == [0, 1]


def test_a_signal_may_interrupt_a_save_at_any_line(tmp_path):
    """The second save, interrupted before its k-th line, leaves what a run can go on from."""

    def saved_twice(folder: Path, interrupted_at: int) -> bool:
        strategy = FedAvg()
        strategy.model.receive(ArrayRecord([torch.zeros(2).numpy()]))
        recorder = recorder_of(run_config(folder, checkpoint_every=1), strategy)
        recorder.on_start(strategy)
        for server_round in range(3):
            recorder.on_metrics(server_round, {})
            if server_round < 2:
                recorder.on_round_end(server_round)
        lines, before = 0, sys.gettrace()

        def trace(frame, event, _):
            nonlocal lines
            if Path(frame.f_code.co_filename).name not in SAVING:
                return None
            lines += event == "line"
            if lines == interrupted_at:
                sys.settrace(before)
                raise KeyboardInterrupt
            return trace

        sys.settrace(trace)
        try:
            recorder.on_round_end(2)
        except KeyboardInterrupt as signal:
            recorder.stopped(signal)
        finally:
            sys.settrace(before)  # That of a measurement of coverage goes on.
        checkpoint = CheckpointFolder(recorder.checkpoints.folder, {}).find("auto")
        assert checkpoint is not None
        rounds = [line["round"] for line in checkpoint.lines["rounds"]]
        assert rounds == list(range(checkpoint.server_round + 1))
        assert checkpoint.server_round == 2 or interrupted_at == 1
        return lines == interrupted_at

    at = 1
    while saved_twice(tmp_path / str(at), at):
        at += 1
    assert at > 20


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"dataset": "image-folder", "data_dir": "/nowhere"}, "/nowhere"),
        ({"resume": "nowhere.pt"}, "no such file"),
        ({}, "nobody is there"),
    ],
)
def test_what_is_refused_before_the_first_round_leaves_no_folder(tmp_path, wrong, error):
    class Refusing(LocalGrid):
        def get_node_ids(self):
            raise ConfigError("nobody is there")

    config = run_config(tmp_path, **wrong)
    with pytest.raises(FedIFError, match=error):
        run_federation(Refusing(client_app, CLIENTS), config)
    assert list(tmp_path.iterdir()) == []
