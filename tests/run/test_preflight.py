from __future__ import annotations

import logging
import re
import shlex
import tomllib
from pathlib import Path

import pytest
from flwr.app import Context, MessageType, RecordDict

from client_app import app as client_app
from fedif_flower.errors import ConfigError, TrainingFailedError
from fedif_flower.run import federation
from fedif_flower.run.config import RunConfig
from fedif_flower.run.federation import run_federation
from fedif_flower.run.preflight import read_config, warn_of_one
from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.settings import Scalar, parse_overrides
from fedif_flower.strategies import nodes
from fedif_flower.sweeps.spec import flatten
from server_app import app as server_app
from tests.run.resuming import CLIENTS, Killed, run_config
from tests.strategies.waiting import Clock, LateGrid

# What `flwr run .` hands to the ServerApp.
FLWR_RUN: dict[str, Scalar] = flatten(
    tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["tool"]["flwr"][
        "app"
    ]["config"]
)
SIMULATED = '--federation-config "num-supernodes=100"'


@pytest.fixture(autouse=True)
def clock(monkeypatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(nodes, "time", found)
    return found


@pytest.fixture(autouse=True)
def told(caplog):
    caplog.set_level(logging.INFO, "fedif_flower.run.preflight")
    return caplog


def small(output_dir: Path, **changed: Scalar) -> dict[str, Scalar]:
    own = {"num-server-rounds": 2, "local-epochs": 1, "output-dir": str(output_dir)}
    return {**FLWR_RUN, **own, "device": "cpu", **changed}


def through_the_door(grid: LocalGrid, run_config: dict[str, Scalar]) -> None:
    server_app(grid, Context(1, 1, {}, RecordDict(), run_config))


@pytest.mark.parametrize(("clients", "share", "times"), [(4, 0.25, 1), (4, 0.5, 0), (1, 1.0, 0)])
def test_one_of_several_clients_in_a_round_is_told_of(tmp_path, told, clients, share, times):
    warn_of_one(run_config(tmp_path, num_clients=clients, fraction_train=share))
    assert told.text.count("a higher fraction-train (0.25 here)") == times


def test_flwr_run_runs_with_whatever_nodes_there_are(tmp_path, told, shown_logs, capsys):
    through_the_door(LateGrid(client_app, 3), small(tmp_path))
    (run_dir,) = tmp_path.iterdir()
    assert len(read_rows(run_dir / "rounds.csv")) == 3
    assert RunConfig.from_json((run_dir / "config.json").read_text()).num_clients == 3
    printed = capsys.readouterr().err
    line = "num-clients = 3: the nodes that are simulated, 1 of them in a round; for more: "
    assert printed.count(line + SIMULATED) == 1
    assert f"fedif INFO: Report: {run_dir / 'report.md'}\n" in printed
    assert (run_dir / "report.md").is_absolute()
    assert (run_dir / "report.md").exists()


def test_a_counted_run_is_the_run_of_that_number(tmp_path):
    counted = read_config(LateGrid(client_app, 5), small(tmp_path))
    given = RunConfig.from_run_config(small(tmp_path, **{"num-clients": 5}))
    assert counted == given
    assert counted.run_name == given.run_name


def test_the_option_for_more_is_for_more_than_there_are(told):
    read_config(LateGrid(client_app, 100), {})
    assert told.messages[-1].endswith('--federation-config "num-supernodes=1000"')


def test_a_number_is_taken_as_it_is_and_nobody_asked():
    grid = LateGrid(client_app, 5)
    assert read_config(grid, {"num-clients": 7}).num_clients == 7
    assert (grid.looks, grid.questions) == (-1, 0)


@pytest.mark.parametrize(("wanted", "there"), [(100, 2), (2, 3)])
def test_another_number_than_is_simulated_ends_the_run_before_it_begins(tmp_path, wanted, there):
    grid = LateGrid(client_app, there)
    with pytest.raises(ConfigError) as error:
        through_the_door(grid, small(tmp_path / "runs", **{"num-clients": wanted}))
    assert str(error.value) == (
        f"num-clients = {wanted}, but {there} nodes are simulated: set num-clients = {there}, or "
        f'simulate {wanted} nodes by --federation-config "num-supernodes={wanted}"'
    )
    assert not (tmp_path / "runs").exists()


def test_real_nodes_that_are_online_are_the_clients(told):
    assert read_config(LocalGrid(client_app, 4), {}).num_clients == 4
    (line,) = told.messages
    ready = "num-clients = 4: the nodes that are online now, 1 of them in a round"
    assert line == f"{ready}; for more: start SuperNodes before the run"


class Coming(LocalGrid):
    """One more real node every second."""

    clock: Clock

    def get_node_ids(self):
        return super().get_node_ids()[: int(self.clock.now)]


@pytest.mark.parametrize(
    ("settings", "fewest"),
    [
        ({}, 2),
        ({"min-valid-replies": 3}, 30),
        ({"min-valid-replies": 3, "fraction-train": 1.0}, 3),
        ({"min-valid-replies": 3, "fraction-train": 0.29}, 11),
    ],
)
def test_real_nodes_are_waited_for_until_a_round_can_have_enough(settings, fewest, clock):
    grid = Coming(client_app, 50)
    grid.clock = clock
    config = read_config(grid, settings)
    assert config.num_clients == fewest
    if fewest > 2:  # With one less there is no such run.
        with pytest.raises(ConfigError, match="min-valid-replies = 3"):
            RunConfig.from_run_config({**settings, "num-clients": fewest - 1})


def test_too_few_real_nodes_are_an_error_that_names_the_key():
    ways = "start more SuperNodes, or set a lower num-clients"
    with pytest.raises(TrainingFailedError, match=f"1 of 2 nodes are online after 600 s: {ways}"):
        read_config(LocalGrid(client_app, 1), {})


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"fedif.gamma": 2.0}, "fedif.gamma = 2.0"),
        ({"num-clients": "many"}, "num-clients = 'many'; allowed: an integer >= 1 or 'auto'"),
        ({"num-clients": 0}, "num-clients = 0; allowed: an integer >= 1 or 'auto'"),
        ({"resume": "auto"}, "num-clients = 'auto' with resume = 'auto'; allowed: the number"),
    ],
)
def test_what_is_wrong_is_said_before_anyone_is_waited_for(settings, error, clock):
    with pytest.raises(ConfigError, match=re.escape(error)):
        read_config(LocalGrid(client_app, 0), settings)
    assert clock.now == 0


def test_a_simulation_goes_on_though_its_nodes_are_counted(tmp_path):
    run_config = small(tmp_path, resume="auto", **{"num-server-rounds": 3, "checkpoint-every": 1})

    def kill(row) -> None:
        if row.round == 2:
            raise Killed

    grid = LateGrid(client_app, 2)
    config = read_config(grid, run_config)
    with pytest.raises(Killed):
        run_federation(grid, config, kill)
    through_the_door(LateGrid(client_app, 2), run_config)
    rows = read_rows(config.run_dir / "rounds.csv")
    assert [row["round"] for row in rows] == ["0", "1", "2", "3"]


def test_a_run_waits_for_its_nodes_and_one_that_goes_on_does_not(tmp_path, monkeypatch):
    with pytest.raises(TrainingFailedError, match=r"5 of 6 nodes .* set a lower num-clients"):
        run_federation(LocalGrid(client_app, CLIENTS - 1), run_config(tmp_path))
    waits = []
    monkeypatch.setattr(federation, "wait_for_clients", lambda *_: waits.append(1))
    config = run_config(tmp_path, resume="auto", num_server_rounds=2)
    run_federation(LocalGrid(client_app, CLIENTS), config)
    run_federation(LocalGrid(client_app, CLIENTS), config)
    assert len(waits) == 1


def test_the_library_s_own_simulations_have_the_paper_s_hundred():
    assert RunConfig.from_run_config({}).num_clients == 100
    assert RunConfig.from_run_config({"num-clients": "auto"}) == RunConfig.from_run_config(FLWR_RUN)


def test_flwr_run_says_with_which_command_a_stopped_run_goes_on(tmp_path, caplog):
    class Stopped(LateGrid):
        def push_messages(self, messages):
            messages = list(messages)
            trained = [m for m in messages if m.metadata.message_type == MessageType.TRAIN]
            self.rounds = getattr(self, "rounds", 0) + bool(trained)
            if self.rounds == 3:
                raise KeyboardInterrupt
            return super().push_messages(messages)

    settings = small(tmp_path, **{"num-server-rounds": 5, "attack": "label-noise"})
    with pytest.raises(KeyboardInterrupt):
        through_the_door(Stopped(client_app, 3), settings)
    (run_dir,) = tmp_path.iterdir()
    (told,) = (m for m in caplog.messages if m.startswith("stopped after"))
    said, _, command = told.partition(" with: ")
    assert said == "stopped after round 2 of 5; go on at round 3"
    words = shlex.split(command)
    assert words[:5] == ["flwr", "run", ".", "--federation-config", "num-supernodes=3"]
    again = parse_overrides(words[words.index("--run-config") + 1])
    assert again.items() >= {"resume": "auto", "run-name": run_dir.name, "num-clients": 3}.items()
    through_the_door(LateGrid(client_app, 3), FLWR_RUN | again)
    assert [row["round"] for row in read_rows(run_dir / "rounds.csv")] == list("012345")
