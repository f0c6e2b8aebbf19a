from __future__ import annotations

import shutil

import pytest

from fedif_flower.errors import ConfigError
from fedif_flower.run.folder import RunFolder, files_of_rounds
from fedif_flower.run.kept_updates import KeptUpdates
from tests.consortium.statement.test_replay import config, run


def test_a_disk_that_cannot_hold_them_is_an_error_before_training(tmp_path, monkeypatch):
    free = shutil._ntuple_diskusage(2**30, 0, 2 * 2**20)
    monkeypatch.setattr("shutil.disk_usage", lambda _: free)
    with pytest.raises(ConfigError, match=r"2.0 MiB free, .* and what is kept of rounds need \d+"):
        run(config(tmp_path, num_server_rounds=1000))
    assert not (tmp_path / "run" / "updates").exists()


def test_what_an_earlier_attempt_left_of_later_rounds_is_removed(tmp_path):
    run_dir = run(config(tmp_path, num_server_rounds=3))
    other = run_dir / "updates" / "notes.txt"
    other.write_text("mine")
    KeptUpdates(RunFolder(run_dir), after=1).on_start(None)
    assert list(files_of_rounds(run_dir / "updates")) == [1]
    assert other.exists()
