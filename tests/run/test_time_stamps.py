"""Heads are stamped by somebody with a clock; a stamping server stops no run."""

from __future__ import annotations

import shutil

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedif_flower.errors import ConfigError, StatementError
from fedif_flower.evidence.receipts import ReceiptTree, SignedHead
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.time_stamps import TimeStamps, clear_time_stamps, stamp_name
from fedif_flower.statement.time_stamps import check_time_stamps
from tests.run.stamping import make_authority, serving, stamp
from tests.statement.signed_runs import config

pytest.importorskip("rfc3161_client")
pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
KEY = Ed25519PrivateKey.generate()


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tsa") / "tsa"
    return make_authority(folder)


def tree(rounds: int = 2) -> ReceiptTree:
    made = ReceiptTree()
    for number in range(1, rounds + 1):
        made.add([f"{number},1000,,1.0,0.5,0.5,accepted"])
        head = SignedHead.by(KEY, "ab" * 16, number, made.tree.root())
        made.heads.append((number, head))
    return made


def stamped(folder: RunFolder, of: ReceiptTree, url: str, seconds: float = 30.0) -> None:
    stamps = TimeStamps(folder, url, seconds)
    for _, head in of.heads:
        stamps.on_head(head)
        stamps.wait()
    stamps.close()


def test_every_head_has_a_stamp_that_openssls_root_vouches_for(tmp_path, authority):
    folder, heads = RunFolder(tmp_path), tree()
    with serving(lambda query: stamp(authority.parent, query)) as url:
        stamped(folder, heads, url)
    found = check_time_stamps(folder, heads, authority)
    assert [one.server_round for one in found] == [1, 2]
    assert found[0].time <= found[1].time
    assert len(folder.results()) == 2
    # A stamp of another head, and one by another authority.
    names = [folder.time_stamps / stamp_name(head) for _, head in heads.heads]
    shutil.copy(names[0], names[1])
    with pytest.raises(StatementError, match="round 2: its time stamp is false"):
        check_time_stamps(folder, heads, authority)
    other = make_authority(tmp_path / "other")
    with pytest.raises(StatementError, match="round 1: its time stamp is false"):
        check_time_stamps(folder, heads, other)
    names[0].write_bytes(b"no stamp")
    with pytest.raises(StatementError, match=r"round 1: .* no time stamp"):
        check_time_stamps(folder, heads, authority)
    with pytest.raises(ConfigError, match="holds no certificate"):
        check_time_stamps(folder, heads, names[0])
    clear_time_stamps(folder)
    assert folder.results() == []


def test_a_wrong_address_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="time-stamp-url = 'ftp://x'"):
        config(tmp_path, receipts=True, time_stamp_url="ftp://x")
    with pytest.raises(ConfigError, match="empty without receipts"):
        config(tmp_path, time_stamp_url="https://x")
