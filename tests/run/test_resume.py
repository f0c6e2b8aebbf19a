"""A run that was stopped goes on as if it had not been; tests/test_goldens.py compares all bits."""

from __future__ import annotations

import errno
import hashlib
import math
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord
from hypothesis import given
from hypothesis import strategies as st

from client_app import app as client_app
from fedif_flower import FedAvg, PathAttribution
from fedif_flower.errors import CheckpointError, ConfigError, FedIFError, StorageError
from fedif_flower.run.checkpoint import (
    Checkpoint,
    CheckpointFolder,
    JournalEnd,
    append_lines,
    read_checkpoint,
    read_lines,
)
from fedif_flower.run.config import RunConfig
from fedif_flower.run.federation import run_federation
from fedif_flower.run.folder import RunFolder, hold_directory
from fedif_flower.run.preflight import with_free_folder
from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.server import nodes
from fedif_flower.strategies import ScreenedStrategy
from tests.clocked_grid import ClockedGrid
from tests.run.resuming import CLIENTS, recorder_of, run, run_config
from tests.server.waiting import Clock

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
    by_place = {(row["round"], row["partition_id"]): row for row in rows}
    omega = {}
    psi = {}
    for place, row in by_place.items():
        psi[place] = float(row["normalized"])
        if row["weight_score"]:
            omega[place] = float(row["weight_score"])
    assert [by_place[t, "0"]["client_id"] for t in "23"] == ["1000", "2000"]
    assert omega["3", "0"] == pytest.approx(0.3 * psi["3", "0"])
    assert omega["3", "1"] == pytest.approx(0.7 * omega["2", "1"] + 0.3 * psi["3", "1"])


def test_a_resumed_run_goes_on_without_nodes_that_do_not_come_back(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(nodes, "time", Clock())
    config = run_config(tmp_path, resume="auto", fraction_train=1.0)
    run(config, kill_at=3)
    grid = LocalGrid(client_app, CLIENTS)
    grid.node_ids = [1000, 1001, 1002, 1004, 1005]
    run_dir = run(config, grid)
    rows = read_rows(run_dir / "clients.csv")
    assert {row["client_id"] for row in rows if row["round"] == "3"} == set(map(str, grid.node_ids))
    # Of those that were there before and still are, nothing is told.
    rows = read_rows(run_dir / "attendance.csv")
    told = [(row["round"], row["client_id"], row["presence"]) for row in rows]
    came = [("1", str(1000 + number), "there") for number in range(CLIENTS)]
    assert told == [*came, ("3", "1003", "offline")]
    assert "5 of 6 nodes are online" in caplog.text
    assert "going on with those that are there" in caplog.text


def test_a_buffered_run_goes_on_and_asks_its_members_anew(tmp_path):
    def clocked() -> ClockedGrid:
        return ClockedGrid(client_app, CLIENTS, lambda partition: 1.0 + 3.0 * partition)

    buffered = {"pace.rounds": "buffered", "pace.buffer-size": 2, "num_server_rounds": 8}
    config = run_config(tmp_path, **buffered, resume="auto")
    killed = run(config, clocked(), kill_at=5)
    assert any(row["status"] == "late" for row in read_rows(killed / "clients.csv"))
    rows = read_rows(run(config, clocked()) / "clients.csv")
    usable = Counter(row["round"] for row in rows if row["status"] == "accepted")
    assert usable == dict.fromkeys("12345678", 2)
    # The checkpoint was made after round 4: in round 5 nobody is at work.
    asked_in = [row["asked_in"] for row in rows if row["round"] == "5"]
    assert asked_in == [""] * CLIENTS
    assert any(row["asked_in"] for row in rows if row["round"] in "678")


def test_a_model_that_nobody_can_train_is_taken_back_after_a_restart_too(tmp_path):
    """All diverge on the model of round 2: in one go, and where the run stops before they do."""

    def diverging_in_round_3(message, context):
        reply = client_app(message, context)
        config = message.content.get("config", {})
        if config.get("server-round") == 3:
            arrays = reply.content["arrays"].to_torch_state_dict()
            broken = {name: values * math.nan for name, values in arrays.items()}
            reply.content["arrays"] = ArrayRecord(broken)
        return reply

    def grid() -> LocalGrid:
        return LocalGrid(diverging_in_round_3, CLIENTS)

    settings = {
        "server_optimizer": "fedavgm",
        "attribution": "trapezoid",
        "checkpoint_every": 1,
        "num_server_rounds": 4,
        "fraction_train": 1.0,
        "validation.vet": False,
    }
    whole = run(run_config(tmp_path / "whole", **settings), grid())
    config = run_config(tmp_path / "stopped", resume="auto", **settings)
    run(config, grid(), kill_at=3)
    again = run(config, grid())
    for table in ("attribution.csv", "attribution_rounds.csv"):
        assert (again / table).read_bytes() == (whole / table).read_bytes()
    # What round 2 gave each member, round 3 took.
    given = {"2": {}, "3": {}}
    for row in read_rows(again / "attribution.csv"):
        given.get(row["round"], {})[row["client_id"]] = float(row["contribution"])
    assert given["3"] == {client_id: -value for client_id, value in given["2"].items()}
    assert any(given["2"].values())
    models = [torch.load(folder / "model.pt", weights_only=True) for folder in (whole, again)]
    assert all(torch.equal(models[0][name], values) for name, values in models[1].items())


def test_a_run_goes_on_after_a_round_that_asked_nobody(tmp_path, monkeypatch):
    """Round 2 is attributed to nobody; later rounds are attributed as in a whole run."""
    select = ScreenedStrategy.select

    def nobody_in_round_2(strategy, nodes, server_round):
        if server_round == 2:
            return []
        return select(strategy, nodes, server_round)

    monkeypatch.setattr(ScreenedStrategy, "select", nobody_in_round_2)
    settings = {"attribution": "trapezoid", "checkpoint_every": 1, "num_server_rounds": 4}
    settings |= {"validation.vet": False}
    whole = run(run_config(tmp_path / "whole", **settings))
    config = run_config(tmp_path / "stopped", resume="auto", **settings)
    run(config, kill_at=4)
    again = run(config)
    attributed = [row["round"] for row in read_rows(again / "attribution_rounds.csv")]
    assert attributed == ["1", "2", "3", "4"]
    for table in ("attribution.csv", "attribution_rounds.csv"):
        assert (again / table).read_bytes() == (whole / table).read_bytes()


def test_a_pause_that_ends_as_a_simulation_goes_on_does_not_hold_to_its_end(tmp_path):
    """Client 0 fails in rounds 1 and 2, is paused in round 3, and back in round 4."""

    class Simulated(LocalGrid):
        simulated = True

        def get_nodes(self):
            return [SimpleNamespace(node_id=i, registered_at=i) for i in self.node_ids]

    def failing_twice(message, context):
        config = message.content.get("config", {})
        if config.get("server-round") in (1, 2) and context.node_config["partition-id"] == 0:
            raise RuntimeError("out of memory")
        return client_app(message, context)

    settings = {"checkpoint_every": 1, "num_server_rounds": 4, "fraction_train": 1.0}
    config = run_config(tmp_path, resume="auto", **settings, **{"validation.vet": False})
    run(config, Simulated(failing_twice, CLIENTS), kill_at=4)
    rows = read_rows(run(config, Simulated(failing_twice, CLIENTS)) / "attendance.csv")
    told = [(row["round"], row["client_id"], row["presence"]) for row in rows]
    assert told == [("3", "0", "paused"), ("4", "0", "there")]


def test_a_completed_run_is_only_reported_again(tmp_path, caplog):
    caplog.set_level("INFO")
    config = run_config(tmp_path, resume="auto", num_server_rounds=2)
    run_dir = run(config)
    names = ("rounds.csv", "clients.csv", "model.pt", "report.md")
    before = [(run_dir / name).read_bytes() for name in names]
    (run_dir / "report.md").unlink()
    run(config, LocalGrid(client_app, 0))
    assert [(run_dir / name).read_bytes() for name in names] == before
    assert "Resumed: all 2 rounds are done" in caplog.text
    assert "is next" not in caplog.text


def test_a_run_is_replaced_where_that_is_asked_for_alone(tmp_path):
    config = run_config(tmp_path, num_server_rounds=3)
    run(config)
    with pytest.raises(ConfigError, match=r"run-name = 'run': .* a finished run; .*overwrite"):
        run(config)
    assert rounds_of(config.run_dir) == [0, 1, 2, 3]
    run(config.replace(overwrite=True), kill_at=1)
    assert checkpoints(config.run_dir) == []
    assert rounds_of(config.run_dir) == [0, 1]


@pytest.mark.parametrize(("every", "resume"), [(10, "auto"), (2, "auto")])
def test_what_an_attempt_left_is_put_aside_and_named(tmp_path, caplog, every, resume):
    """Killed in round 4: before a first checkpoint, and after one of round 2."""
    config = run_config(tmp_path, checkpoint_every=every)
    run(config, kill_at=4)
    left = {name: (config.run_dir / name).read_bytes() for name in ("rounds.csv", "clients.csv")}
    done = 2 if every == 2 else 0
    run(config.replace(resume=resume))
    aside = config.run_dir / "attempt-1"
    assert {name: (aside / name).read_bytes() for name in left} == left
    words = f"rounds {done + 1} to 4 of an earlier attempt count no more; their records are kept in"
    assert f"{words} {aside}" in caplog.text
    assert rounds_of(config.run_dir) == [0, 1, 2, 3, 4, 5]
    # What goes on without a loss, or is only reported again, leaves nothing aside.
    run(config.replace(resume=resume))
    assert not (config.run_dir / "attempt-2").exists()


@pytest.mark.parametrize("overwrite", [True, False])
def test_files_of_others_in_the_place_of_a_run_are_put_aside(tmp_path, overwrite):
    config = run_config(tmp_path, num_server_rounds=1, overwrite=overwrite)
    config.run_dir.mkdir()
    (config.run_dir / "report.md").write_text("mine")
    run(config)
    assert (config.run_dir / "attempt-1" / "report.md").read_text() == "mine"


@pytest.mark.parametrize("has_links", [True, False])
def test_kept_updates_of_an_attempt_are_put_aside_too(tmp_path, monkeypatch, has_links):
    def refuses(*_: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    settings = {"attribution": "trapezoid", "updates.keep": True, "checkpoint_every": 10}
    config = run_config(tmp_path, resume="auto", **settings)
    run(config, kill_at=2)
    before = (config.run_dir / "updates" / "round-000001.pt").read_bytes()
    if not has_links:
        monkeypatch.setattr("fedif_flower.run.folder.os.link", refuses)
    run(config)
    aside = config.run_dir / "attempt-1" / "updates"
    assert (aside / "round-000001.pt").read_bytes() == before


def test_a_name_under_which_records_lie_is_not_taken_again_without_a_word(tmp_path):
    """A run that was killed before its first checkpoint has records, and members receipts."""
    config = run_config(tmp_path, checkpoint_every=10)
    run(config, kill_at=3)
    before = (config.run_dir / "rounds.csv").read_bytes()
    with pytest.raises(ConfigError, match=r"holds rounds of a run that stopped; allowed: resu"):
        run(config)
    assert (config.run_dir / "rounds.csv").read_bytes() == before
    run(config.replace(overwrite=True))
    assert not (config.run_dir / "attempt-1").exists()


KEPT_UPDATES = {"attribution": "trapezoid", "updates.keep": True, "validation.vet": False}


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory) -> Path:
    """One of two rounds in a folder of its own, and one of another seed in `run`."""
    output_dir = tmp_path_factory.mktemp("runs")
    settings = {"checkpoint_every": 1, "num_server_rounds": 2, **KEPT_UPDATES}
    run(run_config(output_dir, run_name="first", **settings))
    run(run_config(output_dir, run_name="other", seed=7, **settings))
    return output_dir


def going_on_elsewhere(runs: Path, output_dir: Path, **overrides) -> RunConfig:
    """Return the config of the first run, which goes on in the place of the other one."""
    shutil.copytree(runs, output_dir)
    file = output_dir / "first" / "checkpoints" / "round-000001.pt"
    settings = {"checkpoint_every": 1, "num_server_rounds": 2, **KEPT_UPDATES}
    return run_config(output_dir, run_name="other", resume=str(file), **settings, **overrides)


def test_a_run_that_goes_on_from_another_ones_file_does_not_replace_a_third(two_runs, tmp_path):
    config = going_on_elsewhere(two_runs, tmp_path / "runs")
    with pytest.raises(ConfigError, match=r"run-name = 'other': .* holds a finished run; .*overwr"):
        run(config)
    assert RunFolder(config.run_dir).config.read()["seed"] == 7
    # In a folder that holds none it goes on, and so does the run whose own file it is.
    assert rounds_of(run(config.replace(run_name="new"))) == [0, 1, 2]
    assert rounds_of(run(config.replace(run_name="first"))) == [0, 1, 2]


def test_an_own_name_is_not_that_of_another_run_that_goes_on(two_runs, tmp_path):
    config = going_on_elsewhere(two_runs, tmp_path / "runs")
    config = config.replace(run_name=config.auto_name)
    assert with_free_folder(config).run_name == config.auto_name
    shutil.copytree(tmp_path / "runs" / "other", config.run_dir)
    numbered = with_free_folder(config)
    assert numbered.run_name == f"{config.auto_name}-2"
    # Where it is the numbered one that goes on, it keeps its number.
    shutil.copytree(tmp_path / "runs" / "first", numbered.run_dir)
    file = numbered.run_dir / "checkpoints" / "round-000001.pt"
    assert with_free_folder(config.replace(resume=str(file))).run_dir == numbered.run_dir


def test_a_run_goes_on_under_the_number_that_it_got(two_runs, tmp_path):
    """The same command and resume="auto" go on with what stopped, not with what is finished."""
    config = run_config(tmp_path / "runs", run_name="auto", resume="auto")
    config = config.replace(run_name=config.auto_name)
    assert with_free_folder(config).run_name == config.auto_name  # A new one.
    finished, second = two_runs / "other", f"{config.auto_name}-2"
    shutil.copytree(finished, config.run_dir)
    assert with_free_folder(config).run_name == config.auto_name
    for number in (2, 3, 10):
        shutil.copytree(finished, config.run_dir.parent / f"{config.auto_name}-{number}")
    assert with_free_folder(config).run_name == f"{config.auto_name}-10"
    (config.run_dir.parent / second / "summary.json").unlink()
    assert with_free_folder(config).run_name == second
    # A name of the user's own is that name.
    assert with_free_folder(config.replace(run_name="other")).run_name == "other"


def test_the_place_of_a_run_that_goes_on_now_is_taken(tmp_path):
    config = run_config(tmp_path, run_name="auto")
    config = config.replace(run_name=config.auto_name)
    with hold_directory(config.run_dir):
        assert with_free_folder(config).run_name == f"{config.auto_name}-2"
    assert with_free_folder(config).run_name == config.auto_name
    named = config.replace(run_name="own")
    told = r"own is in use by process \d+ on .*: wait for its end, or set another run-name$"
    with hold_directory(named.run_dir), pytest.raises(StorageError, match=told):
        with_free_folder(named)


def test_the_log_says_where_the_results_are(two_runs, tmp_path, caplog):
    """In a folder with a number, where the name is taken."""
    caplog.set_level("INFO")
    config = run_config(tmp_path / "runs", num_server_rounds=1)
    config = config.replace(run_name=config.auto_name)
    shutil.copytree(two_runs / "other", config.run_dir)
    run_dir = run(config)
    assert run_dir.name == f"{config.auto_name}-2"
    assert f"Results: {run_dir}" in caplog.messages


def test_nothing_of_a_run_that_another_one_replaces_counts_as_its_own(two_runs, tmp_path, caplog):
    """The other run kept its updates of round 1, from which the checkpoint goes on."""
    config = going_on_elsewhere(two_runs, tmp_path / "runs", overwrite=True)
    run_dir = run(config)
    words = "rounds 1 to 2 of an earlier attempt count no more; overwrite = true removes their"
    assert words in caplog.text
    updates = sorted(path.name for path in (run_dir / "updates").iterdir())
    assert updates == ["round-000002.pt"]
    lacking = f"{run_dir / 'updates'} lacks the rounds 1, from which this run goes on: nobody can"
    assert lacking in caplog.text
    caplog.clear()
    # From a file of its own folder it goes on, and its updates count.
    file = run_dir / "checkpoints" / "round-000001.pt"
    shutil.copy(tmp_path / "runs" / "first" / "checkpoints" / "round-000001.pt", file)
    shutil.copy(tmp_path / "runs" / "first" / "updates" / "round-000001.pt", run_dir / "updates")
    run(config.replace(resume=str(file)))
    assert "lacks the rounds" not in caplog.text
    assert sorted(path.name for path in (run_dir / "updates").iterdir()) == [
        "round-000001.pt",
        "round-000002.pt",
    ]


def test_a_deployed_run_goes_on_at_its_last_finished_round(tmp_path, monkeypatch):
    """Each round of real nodes has a checkpoint, however few `checkpoint-every` asks for."""
    monkeypatch.setattr("fedif_flower.run.recorder.MOST_SAVING", math.inf)  # These take no time.

    class Deployed(LocalGrid):
        reliable = False

    config = run_config(tmp_path, checkpoint_every=10, resume="auto", start_without="unfit")
    run(config, Deployed(client_app, CLIENTS), kill_at=4)
    assert checkpoints(config.run_dir)[-1] == "round-000003.pt"
    run(config, Deployed(client_app, CLIENTS))
    assert rounds_of(config.run_dir) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("seconds", "saved"),
    [
        (1.0, [1, 2, 3, 4]),  # 0.02 s of each.
        (0.5, [1, 3, 4]),  # 4 %, so every second one; and the last.
    ],
)
def test_checkpoints_cost_at_most_a_small_share_of_a_deployed_runs_time(
    tmp_path, monkeypatch, seconds, saved
):
    now = [0.0]
    rounds_saved = []
    monkeypatch.setattr("fedif_flower.run.recorder.time.perf_counter", lambda: now[0])
    recorder = recorder_of(run_config(tmp_path, checkpoint_every=10, num_server_rounds=4), FedAvg())

    def save(checkpoint):
        rounds_saved.append(checkpoint.server_round)
        now[0] += 0.02

    monkeypatch.setattr(recorder.checkpoints, "save", save)
    recorder.run = replace(recorder.run, grid=SimpleNamespace(reliable=False, simulated=False))
    recorder.strategy.model.receive(ArrayRecord([torch.zeros(2).numpy()]))
    for server_round in range(1, 5):
        now[0] += seconds
        recorder.on_round_end(server_round)
    assert rounds_saved == saved


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
        before = sys.gettrace()

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


def test_a_signal_may_interrupt_the_attribution_of_a_round_at_any_line(tmp_path, monkeypatch):
    """That of round 2, before its k-th line: a run that goes on has the same contributions."""
    settings = {"attribution": "trapezoid", "num_clients": 2, "fraction_train": 1.0}
    settings |= {"attack": "none", "num_server_rounds": 2, "checkpoint_every": 1}
    settings |= {"validation.vet": False}
    whole = run(run_config(tmp_path / "whole", **settings), LocalGrid(client_app, 2))

    settle = PathAttribution.settle

    def interrupted(at: int) -> Callable[[PathAttribution], None]:
        lines = 0
        before = sys.gettrace()

        def trace(frame, event, _):
            nonlocal lines
            if frame.f_code is not settle.__code__:
                return None
            lines += event == "line" and len(frame.f_locals["self"].rounds) > 0
            if lines == at:
                sys.settrace(before)
                raise KeyboardInterrupt
            return trace

        def traced(attribution: PathAttribution) -> None:
            sys.settrace(trace)
            try:
                settle(attribution)
            finally:
                sys.settrace(before)  # That of a measurement of coverage goes on.

        return traced

    for at in range(1, 12, 2):
        config = run_config(tmp_path / str(at), resume="auto", **settings)
        with monkeypatch.context() as patch:
            patch.setattr(PathAttribution, "settle", interrupted(at))
            with pytest.raises(KeyboardInterrupt):
                run_federation(LocalGrid(client_app, 2), config)
        again = run(config, LocalGrid(client_app, 2))
        for table in ("attribution.csv", "attribution_rounds.csv"):
            assert (again / table).read_bytes() == (whole / table).read_bytes(), f"line {at}"


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


NODE = 2**64 - 1  # Flower's ids are unsigned 64-bit numbers
SETTINGS = {"seed": 3, "gamma": 0.3, "strategy": "fedif"}


def checkpoint(server_round: int = 10) -> Checkpoint:
    return Checkpoint(
        server_round=server_round,
        settings=SETTINGS,
        arrays={"weight": torch.arange(6.0).view(2, 3), "counter": torch.tensor(7)},
        strategy={"ledger": {"scores": {NODE: 0.1, 5: 1 / 3}}},
        records={"seconds": 1 / 7},
        lines={"clients": [{"round": server_round, "client_id": NODE, "score": None}]},
    )


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"strategy": {"seen": [np.mean([0.5, 1.0])]}}, "strategy['seen'][0], a numpy.float64"),
        ({"records": {"mine": {"v": np.ones(1)}}}, "records['mine']['v'], a numpy.ndarray"),
        ({"settings": {"Own.factor": np.float64(2)}}, "settings['Own.factor'], a numpy.float64"),
    ],
)
def test_what_could_not_be_read_back_is_named_before_it_is_written(tmp_path, changes, named):
    kept_checkpoints = CheckpointFolder(tmp_path, SETTINGS)
    kept_checkpoints.save(checkpoint(10))
    with pytest.raises(CheckpointError, match=f"of round 20 could not.*: {re.escape(named)}; all"):
        kept_checkpoints.save(replace(checkpoint(20), **changes))
    assert kept_checkpoints.find("auto").server_round == 10


def names(kept_checkpoints: CheckpointFolder) -> list[str]:
    return sorted(path.name for path in kept_checkpoints.folder.iterdir())


def test_the_last_two_are_kept_and_leftovers_of_a_killed_process_removed(tmp_path):
    kept_checkpoints = CheckpointFolder(tmp_path / "checkpoints", SETTINGS)
    for server_round in (10, 20, 1_000_000):
        kept_checkpoints.save(checkpoint(server_round))
    assert names(kept_checkpoints) == ["records.jsonl", "round-000020.pt", "round-1000000.pt"]
    (kept_checkpoints.folder / ".round-000020.pt.0123abcd").write_bytes(b"half")
    kept_checkpoints.save(checkpoint(1_000_000))
    kept_checkpoints.save(checkpoint(20))
    assert names(kept_checkpoints) == ["records.jsonl", "round-000020.pt", "round-1000000.pt"]
    kept_checkpoints.go_on(read_checkpoint(kept_checkpoints.folder / "round-000020.pt"))
    assert names(kept_checkpoints) == ["records.jsonl", "round-000020.pt"]
    # Killed before the third last was removed, or as another one was written: both go.
    for server_round in (18, 19):
        path = kept_checkpoints.folder / f"round-{server_round:06d}.pt"
        path.write_bytes(b"")
    (kept_checkpoints.folder / ".round-000021.pt.0123abcd").write_bytes(b"half")
    kept_checkpoints.go_on(read_checkpoint(kept_checkpoints.folder / "round-000020.pt"))
    assert names(kept_checkpoints) == ["records.jsonl", "round-000019.pt", "round-000020.pt"]
    (kept_checkpoints.folder / ".round-000021.pt.0123abcd").write_bytes(b"half")
    kept_checkpoints.begin()
    assert names(kept_checkpoints) == []


@given(st.data())
def test_no_changed_and_no_missing_byte_goes_unnoticed(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("damage") / "round-000010.pt"
    whole = CheckpointFolder(path.parent, SETTINGS).save(checkpoint()).read_bytes()
    read = read_checkpoint(path)
    written = checkpoint()
    assert replace(read, arrays={}, source=None) == replace(written, arrays={})
    assert all(torch.equal(read.arrays[k], v) for k, v in written.arrays.items())
    position = data.draw(st.integers(0, len(whole) - 1))
    flipped = whole[position] ^ data.draw(st.integers(1, 255))
    changed = whole[:position] + bytes([flipped]) + whole[position + 1 :]
    path.write_bytes(data.draw(st.sampled_from([whole[:position], changed])))
    with pytest.raises(CheckpointError, match=r"round-000010\.pt"):
        read_checkpoint(path)


def test_a_file_made_to_run_code_does_not(tmp_path):
    class Payload:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "executed",))

    body = BytesIO()
    torch.save({"server_round": Payload()}, body)
    digest = hashlib.sha256(body.getvalue()).hexdigest().encode()
    path = tmp_path / "round-000001.pt"
    path.write_bytes(b"fedif-flower checkpoint 4 sha256 " + digest + b"\n" + body.getvalue())
    with pytest.raises(CheckpointError, match="or of another version"):
        read_checkpoint(path)
    assert not (tmp_path / "executed").exists()


def test_auto_falls_back_to_the_older_one_with_a_warning(tmp_path, caplog):
    kept_checkpoints = CheckpointFolder(tmp_path, SETTINGS)
    kept_checkpoints.save(checkpoint(9))
    last = kept_checkpoints.save(checkpoint(10))
    last.write_bytes(last.read_bytes()[:-1])
    assert kept_checkpoints.find("auto").server_round == 9
    assert "round-000010.pt is damaged" in caplog.text
    with pytest.raises(CheckpointError, match="SHA-256"):
        kept_checkpoints.find(str(last))
    (kept_checkpoints.folder / "round-000009.pt").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"every checkpoint .* is damaged; remove the folder"):
        kept_checkpoints.find("auto")


@pytest.mark.parametrize("unread", ["round-000010.pt", "records.jsonl"])
def test_one_that_cannot_be_read_now_is_neither_passed_over_nor_called_damaged(
    tmp_path, monkeypatch, unread
):
    kept_checkpoints = CheckpointFolder(tmp_path, SETTINGS)
    kept_checkpoints.save(checkpoint(9))
    kept_checkpoints.save(checkpoint(10))
    path_open = Path.open

    def refused(path: Path, *args, **kwargs):
        if path.name == unread:
            raise OSError(errno.EACCES, "not yours")
        return path_open(path, *args, **kwargs)

    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(CheckpointError, match=r"round-000010\.pt cannot be read: .*not yours"):
        kept_checkpoints.find("auto")


def test_another_configuration_is_refused_naming_the_keys(tmp_path):
    path = CheckpointFolder(tmp_path, SETTINGS).save(checkpoint())
    other = CheckpointFolder(tmp_path, SETTINGS | {"gamma": 0.4, "new-key": True})
    changed = "gamma = 0.3 there, 0.4 here; new-key = its default there, True here$"
    for resume in ("auto", str(path)):
        with pytest.raises(CheckpointError, match=f"is of another configuration: {changed}"):
            other.find(resume)


cells = (
    st.none() | st.booleans() | st.integers(0, 2**64 - 1) | st.floats(allow_nan=False) | st.text()
)
lines = st.lists(st.dictionaries(st.text(), cells, max_size=3), max_size=3)


@given(st.lists(lines, max_size=4))
def test_lines_that_are_read_are_what_was_written(tmp_path_factory, batches):
    path = tmp_path_factory.mktemp("journal") / "records.jsonl"
    ends = [(JournalEnd(), [])]
    for batch in batches:
        end, written = ends[-1]
        append_lines(path, {"clients": [{"lost": "of a checkpoint that was not completed"}]}, end)
        ends.append((append_lines(path, {"clients": batch}, end), written + batch))
    for end, written in ends:
        assert read_lines(path, end).get("clients", []) == written
    whole = path.read_bytes()[: end.size] if batches else b""
    for damaged in (whole[:-1], whole[:9] + b"?" + whole[10:]) if whole else ():
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="SHA-256 differs"):
            read_lines(path, end)


@pytest.fixture(scope="module")
def killed_in_round_three(tmp_path_factory) -> Path:
    config = run_config(tmp_path_factory.mktemp("run"), num_server_rounds=3, checkpoint_every=1)
    return run(config, kill_at=3)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda c: {"server_round": 99}, "it is later than the last round, num-server-rounds = 3"),
        (lambda c: {"strategy": {}}, "does not fit this run: KeyError"),
        (lambda c: {"arrays": c.arrays | {"new": torch.zeros(1)}}, "a model without 'new'"),
        (lambda c: {"lines": c.lines | {"rounds": c.lines["rounds"][:2]}}, "of the rounds 0 to 2"),
    ],
)
def test_one_that_is_whole_but_not_of_this_run_replaces_nothing(
    killed_in_round_three, tmp_path, change, reason
):
    run_dir = killed_in_round_three
    whole = read_checkpoint(run_dir / "checkpoints" / "round-000002.pt")
    crafted = replace(whole, source=None, **change(whole))
    path = CheckpointFolder(tmp_path, whole.settings).save(crafted)
    own = {"num_server_rounds": 3, "checkpoint_every": 1, "resume": str(path), "overwrite": True}
    results = ("config.json", "provenance.json", "rounds.csv", "clients.csv")
    before = [(run_dir / name).read_bytes() for name in results]
    with pytest.raises(CheckpointError, match=reason):
        run(run_config(run_dir.parent, **own))
    assert [(run_dir / name).read_bytes() for name in results] == before
