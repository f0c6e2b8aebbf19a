from __future__ import annotations

import hashlib
import json
from io import BytesIO
from pathlib import Path

import pytest
import torch

from fedif_flower.errors import CheckpointError
from fedif_flower.run.checkpoint import read_checkpoint
from fedif_flower.run.config import RunConfig
from fedif_flower.run.journal import JournalEnd
from tests.run.resuming import run, run_config


@pytest.fixture(scope="module")
def killed_in_round_three(tmp_path_factory) -> Path:
    config = run_config(tmp_path_factory.mktemp("run"), num_server_rounds=3, checkpoint_every=1)
    return run(config, kill_at=3)


def crafted(run_dir: Path, change) -> RunConfig:
    """Return a run that goes on from a checkpoint of round 2 of 3 that somebody changed."""
    content = dict(vars(read_checkpoint(run_dir / "checkpoints" / "round-000002.pt")))
    del content["source"]
    change(content)
    if isinstance(content["lines"], dict) and "size" not in content["lines"]:
        written = json.dumps(content["lines"]).encode()
        (run_dir / "records.jsonl").write_bytes(written)
        content["lines"] = JournalEnd().after(written)._asdict()
    buffer = BytesIO()
    torch.save(content, buffer)
    digest = hashlib.sha256(buffer.getvalue()).hexdigest().encode()
    path = run_dir / "crafted.pt"
    path.write_bytes(b"fedif-flower checkpoint 4 sha256 " + digest + b"\n" + buffer.getvalue())
    own = {"num_server_rounds": 3, "checkpoint_every": 1, "resume": str(path)}
    return run_config(run_dir.parent, **own)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda c: c.update(server_round=99), "does not fit this run: it is to have 3 rounds"),
        (lambda c: c.update(lines={"size": 5, "sha256": "0"}), "SHA-256 differs"),
        (lambda c: c.update(lines=[]), "or of another version"),
        (lambda c: c.pop("strategy"), "or of another version: .*strategy"),
        (lambda c: c["arrays"].update(new=torch.zeros(1)), "'new' is .* of its model, no part"),
        (
            lambda c: c.update(arrays={k: v.double() for k, v in c["arrays"].items()}),
            "is float64 .* of its model, float32",
        ),
        (lambda c: c.update(strategy={}), "does not fit this run: KeyError"),
        (lambda c: c["lines"].update(rounds=[5]), "does not fit this run: TypeError"),
        (lambda c: c["lines"]["rounds"].pop(), "records are not those of the rounds 0 to 2"),
    ],
)
def test_a_crafted_checkpoint_is_refused_with_a_sentence(killed_in_round_three, change, reason):
    config = crafted(killed_in_round_three, change)
    results = ("config.json", "provenance.json", "rounds.csv", "clients.csv")
    before = [(killed_in_round_three / name).read_bytes() for name in results]
    with pytest.raises(CheckpointError, match=reason):
        run(config)
    assert [(killed_in_round_three / name).read_bytes() for name in results] == before
