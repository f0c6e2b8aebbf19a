"""What is erased of a removed member, and what stays."""

from __future__ import annotations

import pytest

from fedif_consortium.federation.erasure import erase, tell_what_stays
from fedif_consortium.federation.members import add, invite, remove
from fedif_flower.errors import ConfigError
from fedif_flower.run.folder import RunFolder


def test_a_key_stays_by_which_an_attempt_put_aside_is_checked(folder, answer, registry, capsys):
    member = add(folder, answer, registry)
    run = RunFolder(folder.path / "runs" / "october")
    run.path.mkdir(parents=True)
    run.clients.begin()
    run.clients.append([{"round": 1, "client_id": member.node_id, "status": "accepted"}])
    attempt = run.keep_attempt()
    run.clients.begin()  # The next attempt begins without the member.
    remove(folder, "hospital-a", registry)
    erase(folder, "hospital-a")
    assert folder.public_key("hospital-a").exists()
    tell_what_stays(folder, "hospital-a")
    assert f"stays: records and kept updates in {attempt}" in capsys.readouterr().out


@pytest.mark.parametrize("table", ["names", "attendance"])
def test_a_key_stays_of_a_member_that_was_online_and_never_asked(folder, answer, registry, table):
    member = add(folder, answer, registry)
    run = RunFolder(folder.path / "runs" / "october")
    run.path.mkdir(parents=True)
    run.clients.begin()
    getattr(run, table).begin()
    getattr(run, table).append([{"client_id": member.node_id}])
    remove(folder, "hospital-a", registry)
    erase(folder, "hospital-a")
    assert folder.public_key("hospital-a").exists()


@pytest.mark.parametrize("took_part", [False, True])
def test_what_need_not_stay_of_a_member_is_erased(folder, answer, registry, capsys, took_part):
    member = add(folder, answer, registry)
    with pytest.raises(ConfigError, match="hospital-a is a member: remove it first"):
        erase(folder, "hospital-a")
    run = RunFolder(folder.path / "runs" / "october")
    if took_part:
        run.path.mkdir(parents=True)
        run.clients.begin()
        run.clients.append([{"round": 1, "client_id": member.node_id, "status": "accepted"}])
        run.undelivered.write({member.node_id: "members/001.html", "7": "members/002.html"})
    remove(folder, "hospital-a", registry)
    capsys.readouterr()
    erase(folder, "hospital-a")
    tell_what_stays(folder, "hospital-a")
    said = capsys.readouterr().out
    assert f"stays: {folder.member_file('hospital-a')}" in said
    assert folder.public_key("hospital-a").exists() == took_part
    assert bool(folder.members()["hospital-a"].key) == took_part
    assert (f"stays: records and kept updates in {run.path}" in said) == took_part
    # A run may have another output-dir, of which the command does not know.
    looked = f"looked for its records in {folder.path / 'runs'} alone: there are none"
    assert (looked in said) != took_part
    if took_part:
        assert run.undelivered.read() == {"7": "members/002.html"}
    with pytest.raises(ConfigError, match="choose another name"):
        invite(folder, "hospital-a")
