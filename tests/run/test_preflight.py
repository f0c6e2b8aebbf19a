from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest
from flwr.app import Context, MessageType, RecordDict
from flwr.common.config import flatten_dict

from client_app import app as client_app
from fedif_flower.errors import ConfigError
from fedif_flower.run.config import RunConfig
from fedif_flower.run.preflight import read_config
from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.settings import Scalar, parse_overrides
from fedif_flower.strategies import nodes
from server_app import app as server_app
from tests.strategies.waiting import Clock, LateGrid

# What `flwr run .` hands to the ServerApp.
FLWR_RUN: dict[str, Scalar] = flatten_dict(
    tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["tool"]["flwr"][
        "app"
    ]["config"]
)


@pytest.fixture(autouse=True)
def clock(monkeypatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(nodes, "time", found)
    return found


def small(output_dir: Path, **changed: Scalar) -> dict[str, Scalar]:
    own = {"num-server-rounds": 2, "local-epochs": 1, "output-dir": str(output_dir)}
    return {**FLWR_RUN, **own, "device": "cpu", **changed}


def through_the_door(grid: LocalGrid, run_config: dict[str, Scalar]) -> None:
    server_app(grid, Context(1, 1, {}, RecordDict(), run_config))


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
