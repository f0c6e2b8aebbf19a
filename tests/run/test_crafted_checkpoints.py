"""A checkpoint that is whole, but not of this run, is refused before anything is replaced."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedif_flower.errors import CheckpointError
from fedif_flower.run.checkpoint import CheckpointFolder, read_checkpoint
from tests.run.resuming import run, run_config


@pytest.fixture(scope="module")
def killed_in_round_three(tmp_path_factory) -> Path:
    config = run_config(tmp_path_factory.mktemp("run"), num_server_rounds=3, checkpoint_every=1)
    return run(config, kill_at=3)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda c: {"server_round": 99}, "does not fit this run: it is to have 3 rounds"),
        (lambda c: {"strategy": {}}, "does not fit this run: KeyError"),
        (
            lambda c: {"arrays": c.arrays | {"new": torch.zeros(1)}},
            "'new' is .* model, no part",
        ),
        (
            lambda c: {"arrays": {k: v.double() for k, v in c.arrays.items()}},
            "is float64 .* of its model, float32",
        ),
        (lambda c: {"lines": c.lines | {"rounds": [5]}}, "does not fit this run: TypeError"),
        (lambda c: {"lines": c.lines | {"rounds": c.lines["rounds"][:2]}}, "of the rounds 0 to 2"),
    ],
)
def test_it_is_refused_with_a_sentence(killed_in_round_three, tmp_path, change, reason):
    run_dir = killed_in_round_three
    whole = read_checkpoint(run_dir / "checkpoints" / "round-000002.pt")
    crafted = replace(whole, source=None, **change(whole))
    path = CheckpointFolder(tmp_path, whole.settings).save(crafted)
    own = {"num_server_rounds": 3, "checkpoint_every": 1, "resume": str(path)}
    results = ("config.json", "provenance.json", "rounds.csv", "clients.csv")
    before = [(run_dir / name).read_bytes() for name in results]
    with pytest.raises(CheckpointError, match=reason):
        run(run_config(run_dir.parent, **own))
    assert [(run_dir / name).read_bytes() for name in results] == before
