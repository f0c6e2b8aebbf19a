"""Flower's simulation runtime: federations in Ray's actors, ``flwr run``, and Ctrl-C.

What else starts Ray is marked ``all``: a start costs more than hundreds of rounds.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from flwr.app import Context, Message, MessageType
from flwr.clientapp import ClientApp

from client_app import app as client_app
from fedif_consortium.parts import run_parts
from fedif_flower.run.config import RunConfig
from fedif_flower.run.federation import run_federation
from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.runtime.ray_grid import ray_grid
from tests.integration.deployed import REPOSITORY
from tests.integration.shell import Shell, clone, open_shell

pytestmark = pytest.mark.ray
CLIENTS, ROUNDS = 6, 3
FALLS = 3  # The partition whose process ends in the second round.
# One with a client that dies; clients that remember, collude, or hide their updates in a sum.
RUNS = {
    "memory": {"attack": "free-rider-step"},
    "colluders": {"attack": "min-max", "malicious-fraction": 0.5},
    "masked": {"masking.mode": "trial", "strategy": "fedavg"},
}


def read_config(folder: Path, name: str, settings: dict) -> RunConfig:
    own = {"output-dir": str(folder), "run-name": name, "device": "cpu"}
    return RunConfig.from_run_config(RunConfig.defaults() | settings | own, run_parts())


def outcome(run_dir: Path) -> tuple[dict[str, torch.Tensor], list[tuple[str, ...]]]:
    """Return a run's model, and its clients' rows without what the clock said."""
    columns = ("round", "partition_id", "malicious", "score", "weight_score", "weight")
    rows = read_rows(run_dir / "clients.csv")
    model = torch.load(run_dir / "model.pt", weights_only=True)
    return model, [tuple(row[column] for column in columns) for row in rows]


def fragile_app(fallen: Path, fall: Callable[[], None]) -> ClientApp:
    """Return the project's app, with a client that falls once; in here: Ray gets it by value."""

    class Fragile(ClientApp):
        def __call__(self, message: Message, context: Context) -> Message:
            if message.metadata.message_type == MessageType.TRAIN:
                (config,) = message.content.config_records.values()
                here = context.node_config["partition-id"] == FALLS and config["server-round"] == 2
                if here and not fallen.exists():
                    fallen.touch()
                    fall()
            return client_app(message, context)

    return Fragile()


def fall() -> None:
    raise RuntimeError("fell")


@pytest.fixture(scope="module")
def on_ray(tmp_path_factory) -> Path:
    """Run the three federations in actors of one Ray, and here; return their folder."""
    folder = tmp_path_factory.mktemp("ray")
    common = {"num-clients": CLIENTS, "fraction-train": 1.0, "num-server-rounds": ROUNDS}

    def configs(where: str) -> Iterator[RunConfig]:
        for name, settings in RUNS.items():
            yield read_config(folder / where, name, common | settings)

    with ray_grid(fragile_app(folder / "killed", lambda: os._exit(1)), CLIENTS) as grid:
        for config in configs("ray"):
            run_federation(grid, config, parts=run_parts())
    app = fragile_app(folder / "fallen", fall)
    for config in configs("here"):
        run_federation(LocalGrid(app, CLIENTS), config, parts=run_parts())
    return folder


@pytest.mark.parametrize("name", RUNS)
def test_actors_give_what_this_process_gives(on_ray, name):
    model, rows = outcome(on_ray / "ray" / name)
    expected_model, expected = outcome(on_ray / "here" / name)
    assert rows == expected
    # The masked sum's rounding is of the masks, which are drawn anew.
    near = {"rtol": 0, "atol": 1e-5 if name == "masked" else 0}
    torch.testing.assert_close(model, expected_model, **near)


def test_a_client_that_kills_its_process_costs_its_own_reply_alone(on_ray):
    rows = read_rows(on_ray / "ray" / "memory" / "clients.csv")
    assert len(rows) == CLIENTS * ROUNDS
    lost = [row for row in rows if row["status"] != "accepted"]
    assert [(row["round"], row["partition_id"]) for row in lost] == [("2", str(FALLS))]
    assert "actor died" in lost[0]["rejection"]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A user's shell in this environment; what it started must end."""
    with open_shell(tmp_path / "home") as opened:
        yield opened


def test_flwr_run_in_a_clone_simulates_flowers_two_nodes(shell, tmp_path):
    tree = clone(tmp_path / "fedif-flower")
    printed = shell.flwr_run(tree, "--run-config", f"num-server-rounds={ROUNDS}")
    line = "num-clients = 2, the number of simulated nodes; each round asks 1 of them; for more "
    more = '--federation-config "num-supernodes=100"'
    assert printed.count(f"fedif INFO: {line}clients: {more}\n") == 1
    for server_round in range(ROUNDS + 1):
        assert f"fedif INFO: round {server_round}: test accuracy" in printed
    (run_dir,) = (tree / "runs").iterdir()
    assert len(read_rows(run_dir / "rounds.csv")) == ROUNDS + 1
    assert json.loads((run_dir / "summary.json").read_text())["rounds"] == ROUNDS
    assert f"fedif INFO: Report: {run_dir / 'report.md'}\n" in printed


def test_ctrl_c_ends_all_of_make_runs_processes_and_says_how_the_run_goes_on(shell, tmp_path):
    settings = {
        "num-clients": 2,
        "fraction-train": 0.5,  # One client in a round takes one actor.
        "local-epochs": 1,
        "num-server-rounds": 40,
        "checkpoint-every": 1,
        "device": "cpu",
    }
    pairs = " ".join(f"{key}={json.dumps(value)}" for key, value in settings.items())
    own = ("-c", pairs, "--output-dir", str(tmp_path / "runs"))
    command = (sys.executable, "simulation.py", "run", *own)
    process = shell.start(tmp_path / "printed", *command, cwd=REPOSITORY)

    def printed() -> str:
        return (tmp_path / "printed").read_text()

    def rounds() -> int:
        return max((len(read_rows(path)) for path in tmp_path.glob("runs/*/rounds.csv")), default=0)

    deadline = time.monotonic() + 240
    while rounds() < 4:
        assert process.poll() is None, printed()
        assert time.monotonic() < deadline, printed()
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert process.wait() == 128 + signal.SIGINT, printed()
    deadline = time.monotonic() + 30
    while left := shell.alive():  # Ray's own processes end just after it.
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
    (stopped, next_round) = re.findall(
        r'stopped after round (\d+) of 40; it goes on at round (\d+) .* resume="auto"', printed()
    )[0]
    assert 1 <= int(stopped) < 40
    assert int(next_round) >= int(stopped)
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert not (run_dir / "summary.json").exists()
    # As in `make run`, nobody has named the run or its model.
    assert {row["status"] for row in read_rows(run_dir / "clients.csv")} == {"accepted"}
