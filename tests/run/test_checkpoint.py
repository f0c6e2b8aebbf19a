from __future__ import annotations

import hashlib
import logging
from io import BytesIO
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedif_flower.errors import CheckpointError
from fedif_flower.run.checkpoint import Checkpoint, CheckpointFolder, read_checkpoint

NODE = 2**64 - 1  # Flower's ids are unsigned 64-bit numbers
SETTINGS = {"seed": 3, "gamma": 0.3, "strategy": "fedif"}


def checkpoint(server_round: int = 10) -> Checkpoint:
    return Checkpoint(
        server_round=server_round,
        settings=SETTINGS,
        arrays={"weight": torch.arange(6.0).view(2, 3), "counter": torch.tensor(7)},
        strategy={"ledger": {"scores": {NODE: 0.1, 5: 1 / 3}}},
        records={"seconds": 1 / 7},
        lines={"clients": [{"round": server_round, "client_id": NODE, "score": None}]},
    )


def folder(tmp_path: Path) -> CheckpointFolder:
    return CheckpointFolder(tmp_path / "checkpoints", SETTINGS)


def names(kept: CheckpointFolder) -> list[str]:
    return sorted(path.name for path in kept.folder.iterdir())


def test_what_is_read_is_what_was_written_bit_for_bit(tmp_path):
    read = read_checkpoint(folder(tmp_path).save(checkpoint()))
    written = vars(checkpoint())
    for key, value in vars(read).items():
        if key not in ("arrays", "source"):
            assert value == written[key]
    assert list(read.arrays) == ["weight", "counter"]
    for name, tensor in read.arrays.items():
        assert torch.equal(tensor, written["arrays"][name])
        assert tensor.dtype == written["arrays"][name].dtype


def test_the_last_two_are_kept_and_leftovers_of_a_killed_process_removed(tmp_path):
    kept = folder(tmp_path)
    for server_round in (10, 20, 1_000_000):
        kept.save(checkpoint(server_round))
    assert names(kept) == ["records.jsonl", "round-000020.pt", "round-1000000.pt"]
    (kept.folder / ".round-000020.pt.0123abcd").write_bytes(b"half")
    kept.save(checkpoint(1_000_000))
    kept.save(checkpoint(20))
    assert names(kept) == ["records.jsonl", "round-000020.pt", "round-1000000.pt"]
    kept.go_on(read_checkpoint(kept.folder / "round-000020.pt"))
    assert names(kept) == ["records.jsonl", "round-000020.pt"]
    kept.begin()
    assert names(kept) == []


@given(st.data())
def test_no_changed_and_no_missing_byte_goes_unnoticed(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("damage") / "round-000010.pt"
    whole = CheckpointFolder(path.parent, SETTINGS).save(checkpoint()).read_bytes()
    position = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        damaged = whole[:position]
    else:
        flipped = whole[position] ^ data.draw(st.integers(1, 255))
        damaged = whole[:position] + bytes([flipped]) + whole[position + 1 :]
    path.write_bytes(damaged)
    with pytest.raises(CheckpointError, match=r"round-000010\.pt"):
        read_checkpoint(path)


def test_a_file_made_to_run_code_does_not(tmp_path):
    class Payload:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "executed",))

    body = BytesIO()
    torch.save({"server_round": Payload()}, body)
    digest = hashlib.sha256(body.getvalue()).hexdigest().encode()
    path = tmp_path / "round-000001.pt"
    path.write_bytes(b"fedif-flower checkpoint 4 sha256 " + digest + b"\n" + body.getvalue())
    with pytest.raises(CheckpointError, match="or of another version"):
        read_checkpoint(path)
    assert not (tmp_path / "executed").exists()


def test_auto_falls_back_to_the_older_one_with_a_warning(tmp_path, caplog):
    kept = folder(tmp_path)
    kept.save(checkpoint(9))
    last = kept.save(checkpoint(10))
    last.write_bytes(last.read_bytes()[:-1])
    with caplog.at_level(logging.WARNING, "fedif_flower"):
        assert kept.find("auto").server_round == 9
    assert "round-000010.pt is damaged" in caplog.text
    with pytest.raises(CheckpointError, match="SHA-256"):
        kept.find(str(last))
    (kept.folder / "round-000009.pt").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"every checkpoint .* is damaged; remove the folder"):
        kept.find("auto")


def test_another_configuration_is_refused_naming_the_keys(tmp_path):
    path = folder(tmp_path).save(checkpoint())
    other = CheckpointFolder(path.parent, SETTINGS | {"gamma": 0.4, "new-key": True})
    changed = "gamma = 0.3 there, 0.4 here; new-key = its default there, True here$"
    for resume in ("auto", str(path)):
        with pytest.raises(CheckpointError, match=f"is of another configuration: {changed}"):
            other.find(resume)
