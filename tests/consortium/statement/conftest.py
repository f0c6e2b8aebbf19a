from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedif_consortium.statement.bundle import make_statement
from fedif_flower.run.folder import RunFolder
from tests.consortium.statement.receipted_runs import nodes, run_and_deliver
from tests.consortium.statement.runs import make_run
from tests.consortium.statement.signed_runs import copied as copied_run


@pytest.fixture(scope="session")
def key() -> Ed25519PrivateKey:
    """A key that signs statements."""
    return Ed25519PrivateKey.generate()


@pytest.fixture(scope="session")
def stated(tmp_path_factory, key) -> Path:
    """A run of three members with a statement; who changes a file puts it back."""
    rounds = [{0: 0.5, 1: 0.25, 2: -0.125}, {0: 0.25, 2: 0.125}, {1: 0.5, 2: 0.0}] * 2
    run_dir = make_run(tmp_path_factory.mktemp("runs") / "run", rounds, names={1: "hospital-2"})
    make_statement(run_dir, key, budget_cents=1000_00, contact="Ada Holm \N{EN DASH} room 7")
    return run_dir


@pytest.fixture
def copy(stated, tmp_path) -> Path:
    """A copy of that run."""
    return shutil.copytree(stated, tmp_path / "run")


@pytest.fixture(scope="session")
def honest(tmp_path_factory, key) -> Path:
    """A run, and what its members kept, in one folder."""
    folder = tmp_path_factory.mktemp("honest")
    run_and_deliver(nodes(folder), folder, key)
    return folder


@pytest.fixture(scope="session")
def paid(tmp_path_factory, key) -> Path:
    """Six rounds, attributed by class; what members kept of it lies beside."""
    folder = tmp_path_factory.mktemp("paid")
    run_and_deliver(nodes(folder), folder, key, num_server_rounds=6, **{"credit.per-class": True})
    return folder


@pytest.fixture
def copied(paid, tmp_path, monkeypatch) -> RunFolder:
    """A copy of its records; secrets are not the user's own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return RunFolder(copied_run(paid / "runs" / "run", tmp_path / "run"))
