"""A run that was stopped goes on as if it had not been; tests/test_goldens.py compares all bits."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord

from client_app import app as client_app
from fedif_flower import FedAvg
from fedif_flower.errors import ConfigError, FedIFError
from fedif_flower.run.checkpoint import CheckpointFolder
from fedif_flower.run.federation import run_federation
from fedif_flower.run.recorder import as_pairs
from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.clocked_grid import ClockedGrid
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.strategies import Setup
from tests.run.resuming import CLIENTS, recorder_of, run, run_config

SAVING = {"recorder.py", "checkpoint.py"}


def checkpoints(run_dir: Path) -> list[str]:
    return sorted(path.name for path in (run_dir / "checkpoints").glob("*.pt"))


def rounds_of(run_dir: Path) -> list[int]:
    return [int(row["round"]) for row in read_rows(run_dir / "rounds.csv")]


def test_the_scores_of_a_resumed_run_are_those_of_an_uninterrupted_one(tmp_path):
    whole = run(run_config(tmp_path / "whole", strategy="s-fedavg"))
    config = run_config(tmp_path / "resumed", strategy="s-fedavg", resume="auto")
    assert checkpoints(run(config, kill_at=4)) == ["round-000002.pt"]
    again = run(config)
    assert checkpoints(again) == ["round-000004.pt", "round-000005.pt"]
    for column in ("client_id", "score", "weight_score", "weight", "train_loss"):
        scores = [[row[column] for row in read_rows(d / "clients.csv")] for d in (whole, again)]
        assert scores[0] == scores[1]


def test_elsewhere_a_partition_id_is_a_claim_and_inherits_nothing(tmp_path):
    config = run_config(tmp_path, resume="auto", num_server_rounds=4, fraction_train=1.0)
    run(config, kill_at=3)
    newcomer = LocalGrid(client_app, CLIENTS)
    newcomer.node_ids = [*range(1001, 1006), 2000]
    newcomer.contexts[2000] = newcomer.contexts[1000]
    rows = read_rows(run(config, newcomer) / "clients.csv")
    omega = {
        (row["round"], row["partition_id"]): (row["client_id"], float(row["weight_score"]))
        for row in rows
        if row["weight_score"]
    }
    psi = {(row["round"], row["partition_id"]): float(row["normalized"]) for row in rows}
    assert omega["2", "0"][0] == "1000"
    assert omega["3", "0"] == ("2000", pytest.approx(0.3 * psi["3", "0"]))
    remembered = 0.7 * omega["2", "1"][1] + 0.3 * psi["3", "1"]
    assert omega["3", "1"] == ("1001", pytest.approx(remembered))


def test_a_resumed_run_goes_on_without_nodes_that_do_not_come_back(tmp_path):
    def recorder(**base):
        strategy = FedAvg(min_train_nodes=1, min_available_nodes=CLIENTS, **base)
        return recorder_of(run_config(tmp_path, checkpoint_every=1, resume="auto"), strategy)

    grid = LocalGrid(client_app, CLIENTS)
    first = recorder()
    first.on_start(first.strategy)
    first.strategy.nodes.online(grid, CLIENTS)
    for server_round in (0, 1):
        first.on_metrics(server_round, {})
    model = ArrayRecord([torch.zeros(2).numpy()])
    first.strategy.model.receive(model)
    first.on_round_end(1)
    second = recorder(setup=Setup(node_timeout=0.01))
    grid.node_ids = [1000, 1001, 1002, 1004, 1005]
    arrays = second.restore(second.run.checkpoint, grid, model)
    assert second.rounds_left == 4
    messages = second.strategy.configure_train(1, arrays, ConfigRecord(), grid)
    asked = sorted(message.metadata.dst_node_id for message in messages)
    assert asked == [1000, 1001, 1002, 1004, 1005]
    assert [node.node_id for node in second.strategy.nodes.known] == list(range(1000, 1006))


def test_a_buffered_run_goes_on_and_asks_its_members_anew(tmp_path):
    def clocked() -> ClockedGrid:
        return ClockedGrid(client_app, CLIENTS, lambda partition: 1.0 + 3.0 * partition)

    own = {
        "pace.rounds": "buffered",
        "pace.buffer-size": 2,
        "num_server_rounds": 8,
        "attack": "none",
    }
    config = run_config(tmp_path, **own, resume="auto")
    killed = run(config, clocked(), kill_at=5)
    under_way = [r for r in read_rows(killed / "clients.csv") if r["status"] == "late"]
    assert under_way
    run_dir = run(config, clocked())
    assert rounds_of(run_dir) == list(range(9))
    rows = read_rows(run_dir / "clients.csv")
    of_round = {t: [row for row in rows if row["round"] == str(t)] for t in range(1, 9)}
    usable = {t: [r for r in found if r["status"] == "accepted"] for t, found in of_round.items()}
    assert {t: len(found) for t, found in usable.items()} == dict.fromkeys(range(1, 9), 2)
    # The checkpoint was made after round 4: in round 5 nobody is at work.
    assert len(of_round[5]) == CLIENTS
    assert {row["asked_in"] for row in of_round[5]} == {""}
    assert any(row["asked_in"] for t in (6, 7, 8) for row in usable[t])


def test_a_completed_run_is_only_reported_again(tmp_path):
    config = run_config(tmp_path, resume="auto", num_server_rounds=2)
    run_dir = run(config)
    model = torch.load(run_dir / "model.pt", weights_only=True)
    before = [(run_dir / name).read_bytes() for name in ("rounds.csv", "clients.csv")]
    (run_dir / "report.md").unlink()
    run(config, LocalGrid(client_app, 0))
    assert (run_dir / "report.md").exists()
    assert [(run_dir / name).read_bytes() for name in ("rounds.csv", "clients.csv")] == before
    again = torch.load(run_dir / "model.pt", weights_only=True)
    assert all(torch.equal(model[key], again[key]) for key in model)


def test_a_run_is_replaced_where_that_is_asked_for_alone(tmp_path):
    config = run_config(tmp_path, num_server_rounds=3)
    run(config)
    kept = {p.name: p.read_bytes() for p in config.run_dir.iterdir() if p.is_file()}
    with pytest.raises(ConfigError, match=r"run-name = 'run': .* a finished run; .*overwrite"):
        run(config)
    assert {p.name: p.read_bytes() for p in config.run_dir.iterdir() if p.is_file()} == kept
    run(config.replace(overwrite=True), kill_at=1)
    assert checkpoints(config.run_dir) == []
    assert rounds_of(config.run_dir) == [0, 1]


def test_ctrl_c_loses_no_complete_round_and_says_how_to_go_on(tmp_path, caplog):
    def on_row(row) -> None:
        if row.round == 4:
            raise KeyboardInterrupt

    config = run_config(tmp_path, checkpoint_every=100)
    with pytest.raises(KeyboardInterrupt):
        run_federation(LocalGrid(client_app, CLIENTS), config, on_row, again=as_pairs)
    (said,) = (r.getMessage() for r in caplog.records if "stopped after" in r.getMessage())
    keys = 'run-name="run" resume="auto"'
    assert said == f"stopped after round 3 of 5; go on at round 4 with: {keys}"
    assert checkpoints(config.run_dir) == ["round-000003.pt"]
    run(run_config(tmp_path, checkpoint_every=100, resume="auto"))
    assert rounds_of(config.run_dir) == list(range(6))


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
        lines = 0

        def trace(frame, event, _):
            nonlocal lines
            if Path(frame.f_code.co_filename).name not in {
                "recorder.py",
                "checkpoint.py",
                "journal.py",
            }:
                return None
            lines += event == "line"
            if lines == interrupted_at:
                sys.settrace(None)
                raise KeyboardInterrupt
            return trace

        sys.settrace(trace)
        try:
            recorder.on_round_end(2)
        except KeyboardInterrupt as signal:
            recorder.stopped(signal, None)
        finally:
            sys.settrace(None)
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
