from __future__ import annotations

import hashlib
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedif_flower.errors import CheckpointError
from fedif_flower.run.checkpoint import (
    Checkpoint,
    CheckpointFolder,
    JournalEnd,
    append_lines,
    read_checkpoint,
    read_lines,
)
from tests.run.resuming import run, run_config

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


def names(kept: CheckpointFolder) -> list[str]:
    return sorted(path.name for path in kept.folder.iterdir())


def test_the_last_two_are_kept_and_leftovers_of_a_killed_process_removed(tmp_path):
    kept = CheckpointFolder(tmp_path / "checkpoints", SETTINGS)
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
    read, written = read_checkpoint(path), checkpoint()
    assert replace(read, arrays={}, source=None) == replace(written, arrays={})
    assert all(torch.equal(read.arrays[k], v) for k, v in written.arrays.items())
    position = data.draw(st.integers(0, len(whole) - 1))
    flipped = whole[position] ^ data.draw(st.integers(1, 255))
    changed = whole[:position] + bytes([flipped]) + whole[position + 1 :]
    path.write_bytes(data.draw(st.sampled_from([whole[:position], changed])))
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
    kept = CheckpointFolder(tmp_path, SETTINGS)
    kept.save(checkpoint(9))
    last = kept.save(checkpoint(10))
    last.write_bytes(last.read_bytes()[:-1])
    assert kept.find("auto").server_round == 9
    assert "round-000010.pt is damaged" in caplog.text
    with pytest.raises(CheckpointError, match="SHA-256"):
        kept.find(str(last))
    (kept.folder / "round-000009.pt").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"every checkpoint .* is damaged; remove the folder"):
        kept.find("auto")


def test_another_configuration_is_refused_naming_the_keys(tmp_path):
    path = CheckpointFolder(tmp_path, SETTINGS).save(checkpoint())
    other = CheckpointFolder(tmp_path, SETTINGS | {"gamma": 0.4, "new-key": True})
    changed = "gamma = 0.3 there, 0.4 here; new-key = its default there, True here$"
    for resume in ("auto", str(path)):
        with pytest.raises(CheckpointError, match=f"is of another configuration: {changed}"):
            other.find(resume)


cells = (
    st.none() | st.booleans() | st.integers(0, 2**64 - 1) | st.floats(allow_nan=False) | st.text()
)
lines = st.lists(st.dictionaries(st.text(), cells, max_size=3), max_size=3)


@given(st.lists(lines, max_size=4))
def test_lines_that_are_read_are_what_was_written(tmp_path_factory, batches):
    path = tmp_path_factory.mktemp("journal") / "records.jsonl"
    ends = [(JournalEnd(), [])]
    for batch in batches:
        end, written = ends[-1]
        append_lines(path, {"clients": [{"lost": "of a checkpoint that was not completed"}]}, end)
        ends.append((append_lines(path, {"clients": batch}, end), written + batch))
    for end, written in ends:
        assert read_lines(path, end).get("clients", []) == written
    whole = path.read_bytes()[: end.size] if batches else b""
    for damaged in (whole[:-1], whole[:9] + b"?" + whole[10:]) if whole else ():
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="SHA-256 differs"):
            read_lines(path, end)


@pytest.fixture(scope="module")
def killed_in_round_three(tmp_path_factory) -> Path:
    config = run_config(tmp_path_factory.mktemp("run"), num_server_rounds=3, checkpoint_every=1)
    return run(config, kill_at=3)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda c: {"server_round": 99}, "does not fit this run: it is to have 3 rounds"),
        (lambda c: {"strategy": {}}, "does not fit this run: KeyError"),
        (lambda c: {"arrays": c.arrays | {"new": torch.zeros(1)}}, "a model without 'new'"),
        (lambda c: {"lines": c.lines | {"rounds": c.lines["rounds"][:2]}}, "of the rounds 0 to 2"),
    ],
)
def test_one_that_is_whole_but_not_of_this_run_replaces_nothing(
    killed_in_round_three, tmp_path, change, reason
):
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
