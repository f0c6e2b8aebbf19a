"""The server's own seed, which members cannot know, in runs whose clients are no simulation."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from client_app import app as client_app
from fedif_flower.run.config import RunConfig
from fedif_flower.run.federation import run_federation
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.server_seed import HiddenSeed, seed_of_secret
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.server.run import Callback
from fedif_flower.server.setup import Setup
from tests.run.resuming import CLIENTS, Killed, killed_at, run_config

SEED = 3


class Deployed(LocalGrid):
    """As real nodes are: no simulation."""

    reliable = False


class Seeds(Callback):
    """Remembers by what a run's strategy and its rounds draw."""

    def __init__(self) -> None:
        self.of_strategy: list[int] = []
        self.of_rounds: list[int] = []

    def on_start(self, strategy) -> None:
        self.of_strategy.append(strategy.seed)

    def on_step(self, step) -> None:
        self.of_rounds.append(step.updates.seed)


def config(output_dir: Path, **overrides) -> RunConfig:
    own = {"seed": SEED, "attack": "none", "strategy": "fedavg", "start_without": "unfit"}
    return run_config(output_dir, **{**own, **overrides})


def secret_in(folder: RunFolder) -> str:
    return folder.server_seed.read()["secret"]


def test_a_deployed_run_draws_by_a_seed_that_members_are_not_told(tmp_path, caplog):
    caplog.set_level("INFO")
    sent = []

    def noting(message, context):
        sent.append(repr(message.content))
        return client_app(message, context)

    seeds = Seeds()
    settings = config(tmp_path, num_server_rounds=2)
    folder = RunFolder(run_federation(Deployed(noting, CLIENTS), settings, callbacks=[seeds]))
    secret = secret_in(folder)
    [seed] = seeds.of_strategy
    assert seed == seed_of_secret(secret)
    assert seeds.of_rounds == [seed, seed]
    commitment = folder.provenance.read()["server_seed_commitment"]
    assert commitment == hashlib.sha256(secret.encode()).hexdigest()
    for text in (*sent, caplog.text, folder.config.path.read_text()):
        assert f"{int(seed)}" not in text
        assert secret not in text
    elsewhere = config(tmp_path / "elsewhere", num_server_rounds=1)
    other = RunFolder(run_federation(Deployed(client_app, CLIENTS), elsewhere))
    assert secret_in(other) != secret


def test_a_simulation_draws_by_the_runs_seed(tmp_path):
    seeds = Seeds()
    settings = config(tmp_path, num_server_rounds=2)
    grid = LocalGrid(client_app, CLIENTS)
    folder = RunFolder(run_federation(grid, settings, callbacks=[seeds]))
    assert (*seeds.of_strategy, *seeds.of_rounds) == (SEED, SEED, SEED)
    assert "server_seed_commitment" not in folder.provenance.read()
    assert not folder.server_seed.path.exists()


def test_a_deployed_run_goes_on_with_its_seed(tmp_path):
    seeds = Seeds()
    settings = config(tmp_path, checkpoint_every=1)
    grid = Deployed(client_app, CLIENTS)
    with pytest.raises(Killed):
        run_federation(grid, settings, killed_at(3), callbacks=[seeds])
    settings = settings.replace(resume="auto")
    folder = RunFolder(run_federation(grid, settings, callbacks=[seeds]))
    seed = seed_of_secret(secret_in(folder))
    assert seeds.of_strategy == [seed, seed]
    assert set(seeds.of_rounds) == {seed}


def test_a_checkpoint_without_a_seed_of_the_servers_goes_on_with_the_runs(tmp_path):
    """Its rounds drew by the run's seed, and one seed is to give the weights of all rounds."""
    seeds = Seeds()
    settings = config(tmp_path, checkpoint_every=1)
    with pytest.raises(Killed):
        run_federation(LocalGrid(client_app, CLIENTS), settings, killed_at(3), callbacks=[seeds])
    grid = Deployed(client_app, CLIENTS)
    run_federation(grid, settings.replace(resume="auto"), callbacks=[seeds])
    assert seeds.of_strategy == [SEED, SEED]


def test_the_seed_is_a_number_that_is_not_shown():
    seed = seed_of_secret("ff" * 32)
    assert 0 <= seed < 2**63
    assert seed != seed_of_secret("fe" * 32)
    for text in (repr(seed), str(seed), f"{seed}", repr(Setup(seed=seed))):
        assert str(int(seed)) not in text
    assert HiddenSeed(5) + 0 == 5
