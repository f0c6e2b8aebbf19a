"""The data that pay: drawn by a salt that nobody knows, committed to before the run."""

from __future__ import annotations

import stat

import pytest

from fedif_flower.errors import CheckpointError
from fedif_flower.run.config import RunConfig
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.secret_validation import COMMITMENT, NONCE, commitment_of, salt_of
from tests.run.resuming import run, run_config


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def test_a_nonce_has_one_salt_which_its_commitment_does_not_tell(tmp_path):
    secret = tmp_path / "secret"
    salt = salt_of("a", secret)
    assert salt == salt_of("a", secret) != commitment_of(salt)
    assert salt not in (salt_of("b", secret), salt_of("a"))
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600


def test_a_run_that_goes_on_keeps_its_salt_and_one_that_begins_has_a_new_one(tmp_path):
    def config(secret: bool = True, resume: str = "auto") -> RunConfig:
        own = {"attribution": "trapezoid", "checkpoint_every": 1, "num_server_rounds": 3}
        return run_config(tmp_path, **own, resume=resume, **{"credit.secret-validation": secret})

    def published() -> tuple[str, str]:
        origin = RunFolder(config().run_dir).provenance.read()
        return origin[NONCE], origin[COMMITMENT]

    run(config(), kill_at=2)
    first = published()
    with pytest.raises(CheckpointError, match=r"keep credit.secret-validation as it was"):
        run(config(secret=False))
    run(config())
    assert published() == first
    run(config(resume="").replace(overwrite=True))
    assert published() != first
