"""Code of a user's own is part of what a result is a result of."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from torch.nn import functional

from fedif_consortium.parts import server_parts
from fedif_flower import FedAvg, RunWriter, model_arrays
from fedif_flower.client.app import task_app
from fedif_flower.errors import CheckpointError, ConfigError
from fedif_flower.run.config import RunConfig
from fedif_flower.run.federation import run_federation
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.outside_code import hashes_here, modules_behind, modules_of
from fedif_flower.run.provenance import code_hash
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.runtime.local_run import run_locally
from fedif_flower.server.run import Callback
from tests.run.points import regression
from tests.strategies.lines import Movers, Threshold

ATTACK = """
from fedif_flower.attacks import Behaviour
from own_attacks import helpers

class Scaled(Behaviour):
    def __init__(self, factor: float = 2.0):
        self.factor = factor

    def poison_update(self, own):
        return helpers.scaled(own.received, own.trained, self.factor)
"""
HELPERS = """
import json

def scaled(received, trained, factor):
    from own_constants import SIGN
    return received + SIGN * factor * (trained - received)
"""
NAME = "own_attacks.scaling:Scaled"


class Files:
    """A user's own files; those that were imported are forgotten, as in a new process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "own_attacks").mkdir()
        self.write("own_attacks/__init__.py", "")
        self.write("own_attacks/scaling.py", ATTACK)
        self.write("own_attacks/helpers.py", HELPERS)
        self.write("own_constants.py", "SIGN = 1")
        self.write("own_unrelated.py", "SIGN = 1")

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)
        self.forget()

    def forget(self) -> None:
        for module in [name for name in sys.modules if name.startswith("own_")]:
            del sys.modules[module]
        importlib.invalidate_caches()


@pytest.fixture
def files(tmp_path, monkeypatch):
    folder = tmp_path / "own"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # Two edits in one second are two.
    own_files = Files(folder)
    yield own_files
    own_files.forget()


def config(output_dir: Path, **more) -> RunConfig:
    settings = {"num-clients": 3, "fraction-train": 1.0, "num-server-rounds": 2, "local-epochs": 1}
    settings |= {"attack": NAME, "device": "cpu", "checkpoint-every": 1, "run-name": "run"}
    return RunConfig.from_run_config({**settings, "output-dir": str(output_dir), **more})


def test_a_run_hashes_what_its_names_stand_for_and_what_that_imports_of_the_users_own(files):
    hashes = modules_of(config(files.folder))
    names = ["own_attacks", "own_attacks.helpers", "own_attacks.scaling", "own_constants"]
    assert list(hashes) == names
    assert hashes == hashes_here(names)
    files.write("own_unrelated.py", "SIGN = -1")
    assert modules_of(config(files.folder)) == hashes
    for name in ("own_constants.py", "own_attacks/helpers.py"):
        files.write(name, f"{(files.folder / name).read_text()}\nEDITED = 1\n")
        now = modules_of(config(files.folder))
        edited = name.removesuffix(".py").replace("/", ".")
        assert [module for module in hashes if now[module] != hashes[module]] == [edited]
        hashes = now


def test_built_in_names_have_no_other_code(tmp_path):
    assert modules_of(config(tmp_path, attack="sign-flip")) == {}
    assert code_hash({}) == code_hash()
    assert code_hash({"own": "a"}) != code_hash({"own": "b"})


def test_a_name_in_a_setting_and_an_apps_own_task_are_followed_too():
    rule = {"strategy": "fedif_studies.lab.bounded:rule"}
    assert "fedif_studies.autobant" not in modules_of(RunConfig.from_run_config(rule))
    rule["rule.weights"] = "fedif_studies.autobant:AutoBant"
    hashes = modules_of(RunConfig.from_run_config(rule))
    assert {"fedif_studies", "fedif_studies.autobant", "fedif_studies.lab.bounded"} <= hashes.keys()
    of_task = modules_of(RunConfig(), regression())
    assert "tests.run.points" in of_task
    assert not [name for name in of_task if name.startswith("torch")]  # Its loss is PyTorch's.


def test_what_is_no_code_but_has_a_colon_is_not_taken_for_a_module(tmp_path):
    contact = {"attribution": "simpson", "statement.budget": "9", "statement.contact": "json:Ada"}
    settings = {**contact, "run-name": "tests.tolerance:two"}
    assert modules_of(RunConfig.from_run_config(settings, server_parts())) == {}


def test_an_app_of_ones_own_has_the_code_of_its_objects(files, tmp_path):
    attack = importlib.import_module("own_attacks.scaling").Scaled()
    names = ["own_attacks", "own_attacks.helpers", "own_attacks.scaling", "own_constants"]
    assert list(modules_behind([attack, functional.mse_loss, 3, None])) == names
    writer = RunWriter(tmp_path / "run")
    strategy = FedAvg(callbacks=[writer, Remembering()], fraction_evaluate=0.0)
    strategy.start(LocalGrid(Movers([[1.0], [1.0]]), 2), model_arrays(Threshold()), num_rounds=1)
    modules = RunFolder(tmp_path / "run").provenance.read()["modules"]
    assert modules[__name__] == hashes_here([__name__])[__name__] != ""


class Remembering(Callback):
    """A callback of a user's own."""


def test_records_have_the_code_and_the_defaults_and_no_run_goes_on_with_other_code(files, tmp_path):
    run_dir = run_federation(LocalGrid(task_app(), 3), config(tmp_path))
    folder = RunFolder(run_dir)
    assert folder.config.read()["Scaled.factor"] == 2.0
    assert folder.summary.read()["config"]["Scaled.factor"] == 2.0
    provenance = folder.provenance.read()
    assert provenance["modules"] == modules_of(config(tmp_path))
    assert provenance["code_sha256"] == code_hash(provenance["modules"]) != code_hash()
    more = {"num-server-rounds": 2, "resume": "auto"}
    run_federation(LocalGrid(task_app(), 3), config(tmp_path, **more))  # The same code goes on.
    before = hashes_here(["own_constants"])["own_constants"][:12]
    files.write("own_constants.py", "SIGN = -1")
    after = hashes_here(["own_constants"])["own_constants"][:12]
    words = f"code of own_constants = '{before}' there, '{after}' here"
    with pytest.raises(CheckpointError, match=words):
        run_federation(LocalGrid(task_app(), 3), config(tmp_path, **more))


def median(trim: float = 0.1):
    """Return a rule; that it gives no weights is known once it is called."""
    from fedif_flower.aggregators import Median

    return Median()


@pytest.mark.parametrize(
    ("settings", "more", "error"),
    [
        (
            {"strategy": f"{__name__}:median", "attribution": "simpson"},
            {},
            f"attribution = 'simpson'; allowed: 'off' with strategy '{__name__}:median', which",
        ),
        (
            {"strategy": "fedif_flower:FedProx"},
            {"train": lambda model, data, training: 0.0},
            "strategy = 'fedif_flower:FedProx' adds a term to the local loss, but task 'line'",
        ),
    ],
)
def test_what_does_not_go_together_goes_by_the_object_and_is_said_before_anyone_is_asked(
    tmp_path, settings, more, error
):
    with pytest.raises(ConfigError, match=error):
        run_locally(regression(**more), tmp_path, num_clients=2, device="cpu", **settings)
    assert not list(tmp_path.rglob("rounds.csv"))
