from __future__ import annotations

import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.superlink.federation import NoOpFederationManager

from fedif_consortium.evidence.keys import key_id, read_members, read_public_key
from fedif_consortium.federation import members
from fedif_consortium.federation.erasure import erase
from fedif_consortium.federation.files import read_document, to_toml
from fedif_consortium.federation.flower import FlowerCommandError
from fedif_consortium.federation.members import (
    RefusedAnswersError,
    add,
    add_all,
    apply_removals,
    invite,
    rekey,
    remove,
)
from fedif_consortium.federation.node import NodeFolder
from fedif_consortium.federation.node_keys import replace_key
from fedif_consortium.federation.records import Answer, FederationFolder, Invitation, make_answer
from fedif_consortium.federation.removals import read_removals
from fedif_consortium.federation.server import initialize, state_of
from fedif_consortium.superlink.guarded_superlink import keys_not_let_in
from fedif_consortium.superlink.signed_requests import removed_keys
from fedif_flower.errors import ConfigError, FedIFError, StorageError
from fedif_flower.run.folder import RunFolder
from tests.consortium.federation.folders import (
    SETTINGS,
    Registry,
    answer_of,
    content,
    join_as,
    make_federation,
    serving,
)


def test_numbers_are_given_once(folder, registry):
    for name in "abca":
        invite(folder, name)
    remove(folder, "c", registry)
    invite(folder, "d")
    numbers = [(member.name, member.number) for member in folder.members().values()]
    assert numbers == [("a", 0), ("b", 1), ("c", 2), ("d", 3)]


@pytest.mark.parametrize("name", ["", "../a", "-a", "a b", "a" * 41])
def test_a_name_that_could_be_no_file_is_refused(folder, name):
    with pytest.raises(ConfigError, match=r"name = .*allowed: 1 to 40 of A-Z"):
        invite(folder, name)


@pytest.mark.parametrize("name", ["Hospital-A", "h0spital-a", "hospitaI-a"])
@pytest.mark.parametrize("is_removed", [False, True])
def test_a_name_that_reads_as_another_members_is_refused(folder, registry, name, is_removed):
    """A statement of both would be refused once the run is over."""
    invite(folder, "hospital-a")
    if is_removed:
        remove(folder, "hospital-a", registry)
    with pytest.raises(ConfigError, match=f"'{name}' and 'hospital-a' read alike"):
        invite(folder, name)
    assert list(folder.members()) == ["hospital-a"]
    assert invite(folder, "hospital-b").is_file()


def test_an_answer_lets_its_member_in_once(folder, answer, registry):
    member = add(folder, answer, registry)
    assert member == folder.members()["hospital-a"]
    assert (member.state, member.node_id, member.number) == ("registered", "1000", 0)
    assert list(read_members(folder.path / "members")) == ["hospital-a"]
    before = content(folder.path)
    add(folder, answer, registry)
    assert content(folder.path) == before


def test_an_answer_that_is_refused_keeps_no_other_member_out(folder, answer, registry, tmp_path):
    """As after a rekey, where the old answer still lies among the others."""
    invite(folder, "hospital-b")
    other = answer_of(folder, "hospital-b", tmp_path / "b")
    changed = tmp_path / "changed.toml"
    changed.write_text(answer.read_text().replace("hospital-a", "hospital-b"))
    missing = tmp_path / "missing.toml"
    with pytest.raises(RefusedAnswersError) as refused:
        add_all(folder, [changed, missing, answer, other], registry)
    assert refused.value.exit_code == 3
    reason = str(refused.value)
    assert reason.startswith("2 of 4 answers are refused: hospital-b did not sign its answer")
    assert str(missing) in reason
    states = [member.state for member in folder.members().values()]
    assert states == ["registered"] * 2
    add_all(folder, [answer, other], registry)
    with pytest.raises(RefusedAnswersError, match=r"^hospital-b did not sign its answer"):
        add_all(folder, [changed], registry)


def test_a_superlink_that_is_away_refuses_no_answer(folder, answer, registry, monkeypatch):
    def away(*_):
        raise FlowerCommandError("no connection")

    monkeypatch.setattr(registry, "register", away)
    with pytest.raises(FlowerCommandError, match="no connection"):
        add_all(folder, [answer], registry)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"member": "hospital-b"}, "hospital-b did not sign its answer"),
        ({"certificate-fingerprint": "0000"}, "hospital-a did not sign its answer"),
        ({"signature": "?"}, "hospital-a: signature is no base64"),
        ({"key": "ssh-rsa AAAA"}, "key is no public key"),
        # Somebody on the way gave the member a certificate of his own, and let it join.
        (None, "hospital-a was given another certificate"),
        ({}, "'hospital-a', number 0, was not invited"),
    ],
)
def test_an_answer_that_was_changed_or_is_a_stranger_s_is_refused(
    folder, tmp_path, registry, monkeypatch, answer, changes, match
):
    if changes is None:
        monkeypatch.setenv("FLWR_HOME", str(tmp_path / "theirs"))
        answer = answer_of(make_federation(tmp_path / "other"), "hospital-a", tmp_path / "b")
    elif changes:
        values = {**read_document(answer, Answer).to_mapping(), **changes}
        answer.write_text(to_toml("", values))
    else:
        folder.member_file("hospital-a").unlink()
    before = content(folder.path)
    with pytest.raises(ConfigError, match=match):
        add(folder, answer, registry)
    assert content(folder.path) == before
    assert registry.keys == {}


def test_a_key_is_never_replaced_and_never_two_members(folder, tmp_path, registry):
    add(folder, answer_of(folder, "hospital-a", tmp_path / "a"), registry)
    (tmp_path / "a" / "node.key").rename(tmp_path / "lost")
    for path in (tmp_path / "a").iterdir():
        path.unlink()
    with pytest.raises(ConfigError, match=r"hospital-a has another key, .* federation rekey hosp"):
        add(folder, answer_of(folder, "hospital-a", tmp_path / "a"), registry)
    (tmp_path / "b").mkdir()
    (tmp_path / "lost").rename(tmp_path / "b" / "node.key")
    with pytest.raises(ConfigError, match="hospital-b has the key of hospital-a"):
        add(folder, answer_of(folder, "hospital-b", tmp_path / "b"), registry)
    assert len(registry.keys) == 1


def test_a_member_is_let_in_under_another_authority_by_a_new_answer(folder, tmp_path, registry):
    """The old one is refused, and the message says how to get the new one."""
    path = answer_of(folder, "hospital-a", tmp_path / "a")
    before = folder.authority.read_text()
    folder.authority.unlink()
    folder.certificate.unlink()
    folder.authority_key.unlink()
    initialize(folder, SETTINGS)
    with pytest.raises(ConfigError, match=r"older than the certificate\. `fedif federation invite"):
        add(folder, path, registry)
    NodeFolder(tmp_path / "a").authority.write_text(before + folder.authority.read_text())
    assert answer_of(folder, "hospital-a", tmp_path / "a") == path
    assert add(folder, path, registry).state == "registered"


@pytest.mark.parametrize("lost", ["authority", "authority's content", "lock"])
def test_what_is_wrong_with_a_folder_is_said_before_a_number_is_given(folder, lost):
    path = getattr(folder, lost.partition("'")[0])
    path.unlink(missing_ok=True)
    if lost == "lock":
        path.mkdir()
    elif lost != "authority":
        path.touch()
    with pytest.raises(FedIFError, match=path.name):
        invite(folder, "a")
    assert folder.members() == {}


def test_a_member_that_was_removed_stays_so(folder, answer, registry):
    with pytest.raises(ConfigError, match="there is no member 'x'; members: hospital-a"):
        remove(folder, "x", registry)
    add(folder, answer, registry)
    for _ in range(2):
        remove(folder, "hospital-a", registry)
    assert registry.ended == {"1000"}
    assert folder.members()["hospital-a"].state == "removed"
    assert not folder.invitation("hospital-a").exists()
    with pytest.raises(ConfigError, match=r"hospital-a was removed on .*: choose another name"):
        invite(folder, "hospital-a")
    with pytest.raises(ConfigError, match="was removed"):
        add(folder, answer, registry)


def test_a_backup_brings_no_removed_member_back(folder, tmp_path, registry, capsys):
    """The folder is put back as it was before, its database with the registration too."""
    for name in ("ada", "dan"):
        add(folder, answer_of(folder, name, tmp_path / name), registry)
    backup = shutil.copytree(folder.path, tmp_path / "backup")
    remove(folder, "dan", registry)
    shutil.rmtree(folder.path)
    shutil.copytree(backup, folder.path)
    registry.ended.clear()
    assert folder.members()["dan"].state == "registered"

    apply_removals(folder)
    assert "dan was removed on " in capsys.readouterr().out
    assert {m.name: m.state for m in folder.members().values()} == {
        "ada": "registered",
        "dan": "removed",
    }
    key = read_members(folder.path / "members")["dan"]
    assert removed_keys(folder.removals) == {key_id(key)}
    with serving(folder) as settings:
        folder.configuration.write_text(settings)
        [warning] = state_of(folder, registry)["warnings"]
        assert "dan was removed on " in warning
        assert "`fedif federation remove-member dan` ends it" in warning
        remove(folder, "dan", registry)
        assert registry.ended == {"1001"}
        assert state_of(folder, registry)["ok"]


def test_a_list_of_removals_that_is_lost_is_made_again(folder, answer, registry):
    add(folder, answer, registry)
    remove(folder, "hospital-a", registry)
    before = folder.removals.read_text()
    folder.removals.unlink()
    apply_removals(folder)
    assert folder.removals.read_text() == before
    folder.removals.write_text("name\nx\n")
    with pytest.raises(ConfigError, match="is no list of removed members: name, key, removed"):
        apply_removals(folder)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("hospital-2,ab12,2026-11-30,removed\n", "is no list of removed members"),
        ("hospital-2,ab12,2026-11-30,removed", "is no list of removed members"),
        ("name,key,removed,why\na,ab,2026-11-30,Removed\n", r"line 2: why = 'Removed'; allowed: "),
    ],
)
def test_a_damaged_list_of_removals_does_not_pass_as_one_without_members(folder, text, reason):
    folder.removals.write_text(text)
    with pytest.raises(ConfigError, match=reason):
        read_removals(folder.removals)


@pytest.mark.parametrize(
    "text", ["", "name,ke", "name,key,removed,why", "name,key,removed,why\r\n"]
)
def test_a_list_of_removals_whose_first_line_was_torn_off_is_empty(folder, text):
    folder.removals.write_text(text)
    assert read_removals(folder.removals) == []


@pytest.mark.parametrize("cut", range(1, len("removed\n") + 1))
def test_a_list_that_was_torn_off_in_its_last_cell_is_read_and_written_anew(
    folder, answer, registry, cut
):
    """A power cut stops no SuperLink, and lets nobody in."""
    add(folder, answer, registry)
    remove(folder, "hospital-a", registry)
    before = folder.removals.read_text()
    barred = removed_keys(folder.removals)
    folder.removals.write_text(before[:-cut])
    assert removed_keys(folder.removals) == barred
    apply_removals(folder)
    assert folder.removals.read_text().rstrip() == before.rstrip()


def test_a_list_that_a_spreadsheet_wrote_with_quotes_is_read(folder):
    folder.removals.write_text(
        '"name","key","removed","why"\r\n"a","ab","2026-11-30","removed"\r\n'
    )
    assert [removal.name for removal in read_removals(folder.removals)] == ["a"]


def test_a_second_file_of_a_member_or_of_its_number_is_refused(folder):
    for name in ("ada", "bob"):
        invite(folder, name)
    copy = shutil.copy(folder.member_file("ada"), folder.path / "members" / "ada (copy).toml")
    with pytest.raises(
        ConfigError, match=r"ada \(copy\)\.toml: name = 'ada'; allowed: 'ada \(copy\)'"
    ):
        folder.members()
    Path(copy).unlink()
    text = folder.member_file("bob").read_text()
    folder.member_file("bob").write_text(text.replace("number = 1", "number = 0"))
    with pytest.raises(ConfigError, match=r"bob\.toml and .*ada\.toml have the same number, 0"):
        folder.members()


def link_state(folder: FederationFolder):
    """Return Flower's link state on the federation's database."""
    state = SqlLinkState(
        str(folder.database), NoOpFederationManager(), ObjectStoreFactory().store()
    )
    state.initialize()
    return state


class Registered(Registry):
    """Nodes that are let in, in Flower's own database."""

    def __init__(self, folder: FederationFolder) -> None:
        super().__init__()
        self.state = link_state(folder)

    def register(self, public_key, name):
        key = flower_key(public_key.read_text())
        try:
            return str(self.state.create_node("operator", "operator", key, 30.0, name=name))
        except ValueError as error:
            raise FlowerCommandError(str(error)) from error

    def unregister(self, node_id):
        self.state.delete_node("operator", int(node_id))

    def nodes(self):
        return {str(node.node_id): {"status": node.status} for node in self.state.get_node_info()}


def flower_key(line: str) -> bytes:
    return public_key_to_bytes(read_public_key(line.encode(), "key"))


def register_stranger(registered: Registered) -> None:
    """Let a node in by Flower's own command: it is no member's."""
    key = public_key_to_bytes(ec.generate_private_key(ec.SECP384R1()).public_key())
    registered.state.create_node("operator", "operator", key, 30.0)


def interrupted_registration(folder: FederationFolder, host: Path) -> tuple[Registered, Path, str]:
    """Register Ada and a stranger; lose Ada's node id, as where this host stopped before it wrote.

    Return the registry, Ada's answer and her node id. The stranger has no member's record.
    """
    registered = Registered(folder)
    register_stranger(registered)
    path = answer_of(folder, "ada", host)
    node_id = add(folder, path, registered).node_id
    record = folder.member_file("ada")
    record.write_text(record.read_text().replace(f'node-id = "{node_id}"', 'node-id = ""'))
    assert folder.members()["ada"].node_id == ""
    return registered, path, node_id


def test_a_registration_that_was_interrupted_is_found_again_by_its_key(folder, tmp_path):
    registered, path, node_id = interrupted_registration(folder, tmp_path / "a")
    assert add(folder, path, registered).node_id == node_id


def test_a_registration_that_was_interrupted_is_ended_and_no_other(folder, tmp_path):
    registered, _, node_id = interrupted_registration(folder, tmp_path / "a")
    [strangers] = registered.nodes().keys() - {node_id}
    remove(folder, "ada", registered)
    statuses = {i: node["status"] for i, node in registered.nodes().items()}
    assert statuses[node_id] == "unregistered"
    assert statuses[strangers] != "unregistered"


def test_members_are_registered_anew_once_the_database_is_lost(folder, tmp_path, capsys):
    path = answer_of(folder, "ada", tmp_path / "a")
    before = add(folder, path, Registered(folder))
    folder.database.unlink()
    registered = Registered(folder)
    capsys.readouterr()
    after = add(folder, path, registered)
    assert f"the SuperLink has lost ada, which was node {before.node_id}" in capsys.readouterr().out
    assert after == folder.members()["ada"]
    assert (after.number, after.key) == (before.number, before.key)
    assert list(registered.nodes()) == [after.node_id]
    assert after.node_id != before.node_id
    assert add(folder, path, registered) == after


def test_a_registration_that_flower_s_own_command_ended_is_not_begun_again(folder, tmp_path):
    """Flower's database takes no key twice, so that neither the same nor a new key helps."""
    registered = Registered(folder)
    path = answer_of(folder, "ada", tmp_path / "a")
    node_id = add(folder, path, registered).node_id
    registered.unregister(node_id)
    words = f"ended the registration of ada, node {node_id}.* remove-member ada.* another name"
    with pytest.raises(ConfigError, match=words):
        add(folder, path, registered)
    before = content(folder.path)
    with pytest.raises(ConfigError, match=f"the registration of node {node_id} has ended"):
        rekey(folder, "ada", answer_with_a_new_key(folder, "ada", tmp_path / "again"))
    assert content(folder.path) == before
    remove(folder, "ada", registered)
    assert add(folder, answer_of(folder, "ada2", tmp_path / "b"), registered).node_id != node_id


def test_a_key_stays_by_which_a_run_before_the_database_was_lost_is_checked(folder, tmp_path):
    path = answer_of(folder, "ada", tmp_path / "a")
    before = add(folder, path, Registered(folder))
    run = RunFolder(folder.path / "runs" / "october")
    run.path.mkdir(parents=True)
    run.names.begin()
    run.names.append([{"client_id": before.node_id, "name": "ada"}])
    run.undelivered.write({before.node_id: "members/001.html", "7": "members/002.html"})
    folder.database.unlink()
    registered = Registered(folder)
    add(folder, path, registered)
    remove(folder, "ada", registered)
    erase(folder, "ada")
    assert folder.public_key("ada").exists()
    assert run.undelivered.read() == {"7": "members/002.html"}


def test_a_node_of_another_key_is_never_taken_for_a_members(folder, tmp_path, monkeypatch):
    """Whatever Flower refuses, and however often: the one node that is nobody's stays nobody's."""
    registered = Registered(folder)
    register_stranger(registered)
    path = answer_of(folder, "ada", tmp_path / "a")

    def refuse(*_: object) -> str:
        raise FlowerCommandError("refused")

    monkeypatch.setattr(registered, "register", refuse)
    for _ in range(2):
        with pytest.raises(FlowerCommandError, match="refused"):
            add(folder, path, registered)
    assert folder.members()["ada"].node_id == ""


def test_a_registration_that_was_ended_is_not_found_again(folder, tmp_path):
    registered, path, node_id = interrupted_registration(folder, tmp_path / "a")
    registered.unregister(node_id)
    with pytest.raises(FlowerCommandError, match="already in use"):
        add(folder, path, registered)


def ed25519_answer(folder: FederationFolder, name: str, path: Path) -> Path:
    """A member answered its invitation with a key that SuperNodes cannot have."""
    invitation = read_document(folder.invitation(name), Invitation)
    answer = make_answer(invitation, Ed25519PrivateKey.generate())
    path.write_text(to_toml("", answer.to_mapping()))
    return path


def test_an_ed25519_key_is_no_node_s(folder, tmp_path, registry):
    """Flower registers keys of NIST's curves alone: nothing is written of another one."""
    add(folder, answer_of(folder, "ada", tmp_path / "a"), registry)
    invite(folder, "bob")
    before = content(folder.path)
    for ask in (
        lambda: add(folder, ed25519_answer(folder, "bob", tmp_path / "bob.toml"), registry),
        lambda: rekey(folder, "ada", ed25519_answer(folder, "ada", tmp_path / "ada.toml")),
    ):
        with pytest.raises(ConfigError, match=r"key is an Ed25519 key; a SuperNode's is of P-256"):
            ask()
    assert content(folder.path) == before


def answer_with_a_new_key(folder: FederationFolder, name: str, host: Path) -> Path:
    """A member lost its key: it joins once more by its invitation, in an empty folder."""
    join_as(host, read_document(folder.invitation(name), Invitation))
    return NodeFolder(host).answer(name)


def test_a_member_that_lost_its_key_stays_the_node_that_it_was(folder, tmp_path):
    registered = Registered(folder)
    before = add(folder, answer_of(folder, "ada", tmp_path / "a"), registered)
    bob = add(folder, answer_of(folder, "bob", tmp_path / "b"), registered)
    after = rekey(folder, "ada", answer_with_a_new_key(folder, "ada", tmp_path / "again"))
    assert (after.node_id, after.number) == (before.node_id, before.number)
    assert after.key != before.key
    assert after.earlier_keys == [before.key]
    state = link_state(folder)
    for member in (after, bob):
        assert state.get_node_id_by_public_key(flower_key(member.key)) == int(member.node_id)
    assert state.get_node_id_by_public_key(flower_key(before.key)) is None
    # What it signed before can be checked, and a backup does not bring the old key back.
    keys = read_members(folder.path / "members")
    assert set(keys) == {"ada", "ada~1", "bob"}
    assert removed_keys(folder.removals) == {key_id(keys["ada~1"])}
    apply_removals(folder)
    assert folder.members()["ada"].state == "registered"

    with pytest.raises(ConfigError, match="has the key that ada has already"):
        rekey(folder, "ada", NodeFolder(tmp_path / "again").answer("ada"))
    with pytest.raises(ConfigError, match="is the answer of ada, not of bob"):
        rekey(folder, "bob", NodeFolder(tmp_path / "again").answer("ada"))
    with pytest.raises(ConfigError, match="ada has an earlier key of ada: make a new one"):
        rekey(folder, "ada", NodeFolder(tmp_path / "a").answer("ada"))


def test_a_key_is_replaced_where_the_database_has_the_old_one_alone(folder, tmp_path):
    invite(folder, "ada")
    given = answer_of(folder, "ada", tmp_path / "a")
    with pytest.raises(ConfigError, match="ada has no key yet: `fedif federation add-member"):
        rekey(folder, "ada", given)
    member = add(folder, given, Registry())  # Another SuperLink's.
    new = answer_with_a_new_key(folder, "ada", tmp_path / "again")
    with pytest.raises(ConfigError, match="the SuperLink has registered nobody yet"):
        rekey(folder, "ada", new)
    link_state(folder)
    with pytest.raises(ConfigError, match=f"no node {member.node_id} with the key that is known"):
        rekey(folder, "ada", new)
    assert folder.members()["ada"] == member


def test_a_backup_of_before_a_rekeying_is_named(folder, tmp_path, capsys):
    add(folder, answer_of(folder, "ada", tmp_path / "a"), Registered(folder))
    backup = shutil.copytree(folder.path, tmp_path / "backup")
    rekey(folder, "ada", answer_with_a_new_key(folder, "ada", tmp_path / "again"))
    shutil.rmtree(folder.path)
    shutil.copytree(backup, folder.path)
    capsys.readouterr()
    apply_removals(folder)
    assert "which is not here: `fedif federation rekey ada ANSWER` once more" in (
        capsys.readouterr().out
    )
    assert folder.members()["ada"].state == "registered"


def test_a_database_of_before_a_rekeying_gets_the_new_key_again(folder, tmp_path):
    """The record has the new key, and is not in the backup: the member could not come back."""
    registered = Registered(folder)
    before = add(folder, answer_of(folder, "ada", tmp_path / "a"), registered)
    first_key = read_public_key(before.key.encode(), "key")
    second_answer = answer_with_a_new_key(folder, "ada", tmp_path / "second")
    after = rekey(folder, "ada", second_answer)
    second_key = read_public_key(after.key.encode(), "key")
    replace_key(folder.database, before.node_id, [second_key], first_key)  # As a backup has it.
    with pytest.raises(ConfigError, match=r"another key of ada.*`fedif federation rekey ada /"):
        add(folder, second_answer, registered)
    assert rekey(folder, "ada", second_answer) == after
    state = link_state(folder)
    assert state.get_node_id_by_public_key(flower_key(after.key)) == int(after.node_id)
    assert add(folder, second_answer, registered) == after
    with pytest.raises(ConfigError, match="has the key that ada has already"):
        rekey(folder, "ada", second_answer)
    # Also where the database has the first of three keys.
    replace_key(folder.database, before.node_id, [second_key], first_key)
    third = rekey(folder, "ada", answer_with_a_new_key(folder, "ada", tmp_path / "third"))
    assert len(third.earlier_keys) == 2
    state = link_state(folder)
    assert state.get_node_id_by_public_key(flower_key(third.key)) == int(after.node_id)


def test_the_key_that_is_registered_is_the_record_s(folder, tmp_path, monkeypatch):
    """A rekeying was interrupted before it wrote the key's file, and then the database was lost."""
    before = add(folder, answer_of(folder, "ada", tmp_path / "a"), Registered(folder))
    again = answer_with_a_new_key(folder, "ada", tmp_path / "again")

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(members, "_note_keys", crash)
        with pytest.raises(KeyboardInterrupt):
            rekey(folder, "ada", again)
    folder.public_key("ada").write_text(f"{before.key}\n")
    folder.public_key("ada", 1).unlink()
    folder.database.unlink()
    after = add(folder, again, Registered(folder))
    state = link_state(folder)
    assert state.get_node_id_by_public_key(flower_key(after.key)) == int(after.node_id)
    assert state.get_node_id_by_public_key(flower_key(before.key)) is None
    assert set(read_members(folder.path / "members")) == {"ada", "ada~1"}


def test_a_key_s_file_without_its_record_registers_nobody(folder, tmp_path, registry):
    """The record was lost: the member's new key is not that in the file."""
    before = add(folder, answer_of(folder, "ada", tmp_path / "a"), Registry())
    folder.member_file("ada").unlink()
    invite(folder, "ada")
    again = answer_with_a_new_key(folder, "ada", tmp_path / "again")
    with pytest.raises(ConfigError, match=r"ada\.pub has another key, .* record of ada: move it"):
        add(folder, again, registry)
    assert registry.keys == {}
    assert folder.public_key("ada").read_text() == f"{before.key}\n"


def test_a_name_on_the_list_is_given_to_nobody_else(folder, tmp_path, registry):
    """The backup is older than the member: the next start would remove the new one of its name."""
    add(folder, answer_of(folder, "ada", tmp_path / "a"), registry)
    remove(folder, "ada", registry)
    shutil.rmtree(folder.path / "members")
    with pytest.raises(
        ConfigError, match=r"ada was removed on .*, by .*removed\.csv: choose anoth"
    ):
        invite(folder, "ada")
    assert folder.members() == {}


@pytest.mark.parametrize("written", ["", "save", "write_new", "write", "_note_keys"])
def test_a_rekeying_that_was_interrupted_is_done_to_its_end(folder, tmp_path, monkeypatch, written):
    """Wherever the process ended, the same command goes on; the old key opens nothing."""
    registered = Registered(folder)
    before = add(folder, answer_of(folder, "ada", tmp_path / "a"), registered)
    again = answer_with_a_new_key(folder, "ada", tmp_path / "again")

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        places = {"save": FederationFolder, "_note_keys": members}
        if written:
            patch.setattr(places.get(written, members.files), written, crash)
            with pytest.raises(KeyboardInterrupt):
                rekey(folder, "ada", again)
    after = rekey(folder, "ada", again)
    assert after.earlier_keys == [before.key]
    keys = read_members(folder.path / "members")
    assert {name: key_id(key) for name, key in keys.items()} == {
        "ada": key_id(read_public_key(after.key.encode(), "key")),
        "ada~1": key_id(read_public_key(before.key.encode(), "key")),
    }
    assert removed_keys(folder.removals) == {key_id(keys["ada~1"])}
    state = link_state(folder)
    assert state.get_node_id_by_public_key(flower_key(after.key)) == int(before.node_id)


@contextmanager
def unwritable_list(monkeypatch):
    """Let the list of removed members take nothing."""

    def read_only(*_: object) -> None:
        raise StorageError("read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr(members, "note_removal", read_only)
        yield


def test_a_list_that_cannot_be_written_gets_an_earlier_key_later(folder, tmp_path, monkeypatch):
    add(folder, answer_of(folder, "ada", tmp_path / "a"), Registered(folder))
    again = answer_with_a_new_key(folder, "ada", tmp_path / "again")
    with unwritable_list(monkeypatch), pytest.raises(StorageError):
        rekey(folder, "ada", again)
    apply_removals(folder)
    old = read_members(folder.path / "members")["ada~1"]
    assert removed_keys(folder.removals) == {key_id(old)}


def test_a_removal_that_could_not_be_listed_is_listed_by_the_same_call_once_more(
    folder, answer, registry, monkeypatch
):
    add(folder, answer, registry)
    with unwritable_list(monkeypatch), pytest.raises(StorageError):
        remove(folder, "hospital-a", registry)
    assert registry.ended == {"1000"}
    key = read_members(folder.path / "members")["hospital-a"]
    remove(folder, "hospital-a", registry)
    erase(folder, "hospital-a")
    assert removed_keys(folder.removals) == {key_id(key)}


def test_keys_that_cannot_be_listed_are_let_in_no_more_all_the_same(folder, tmp_path, monkeypatch):
    """A lost list that cannot be made again: what the folder knows of it is the SuperLink's."""
    registered = Registered(folder)
    for name in ("ada", "bob", "eve"):
        add(folder, answer_of(folder, name, tmp_path / name), registered)
    rekey(folder, "ada", answer_with_a_new_key(folder, "ada", tmp_path / "again"))
    remove(folder, "bob", registered)
    assert apply_removals(folder) == []
    folder.removals.unlink()
    with unwritable_list(monkeypatch):
        unlisted = apply_removals(folder)
    keys = read_members(folder.path / "members")
    assert unlisted == sorted([key_id(keys["ada~1"]), key_id(keys["bob"])])
    monkeypatch.setenv("FEDIF_REMOVED_MEMBERS", str(folder.removals))
    monkeypatch.setenv("FEDIF_REMOVED_KEYS", " ".join(unlisted))
    assert keys_not_let_in() == set(unlisted)
    # With a list, both count.
    remove(folder, "eve", registered)
    assert keys_not_let_in() == {*unlisted, key_id(keys["eve"])}


def test_a_list_that_cannot_be_read_is_refused_before_a_key_is_replaced(folder, tmp_path):
    before = add(folder, answer_of(folder, "ada", tmp_path / "a"), Registered(folder))
    folder.removals.unlink()
    folder.removals.mkdir()
    again = answer_with_a_new_key(folder, "ada", tmp_path / "again")
    for ask in (lambda: rekey(folder, "ada", again), lambda: apply_removals(folder)):
        with pytest.raises(ConfigError, match="the list of removed members, cannot be read"):
            ask()
    assert folder.members()["ada"] == before


@pytest.mark.parametrize("put_back", ["first", "second"])
def test_a_backup_with_another_key_brings_no_removed_member_back(folder, tmp_path, put_back):
    """Who was removed with one of its keys is removed, whichever of them a backup has."""
    registered = Registered(folder)
    add(folder, answer_of(folder, "ada", tmp_path / "a"), registered)
    shutil.copytree(folder.path, tmp_path / "first")
    rekey(folder, "ada", answer_with_a_new_key(folder, "ada", tmp_path / "again"))
    shutil.copytree(folder.path, tmp_path / "second")
    other = {"first": "second", "second": "first"}[put_back]

    def restore(which: str) -> None:
        shutil.rmtree(folder.path)
        shutil.copytree(tmp_path / which, folder.path)

    restore(other)
    remove(folder, "ada", Registry())
    restore(put_back)
    assert folder.members()["ada"].state == "registered"
    apply_removals(folder)
    assert folder.members()["ada"].state == "removed"


def test_a_key_that_is_let_in_no_more_registers_nobody(folder, tmp_path, registry):
    add(folder, answer_of(folder, "ada", tmp_path / "a"), registry)
    remove(folder, "ada", registry)
    erase(folder, "ada")
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "node.key").rename(tmp_path / "b" / "node.key")
    with pytest.raises(ConfigError, match="bob has a key of ada that was removed on"):
        add(folder, answer_of(folder, "bob", tmp_path / "b"), registry)
