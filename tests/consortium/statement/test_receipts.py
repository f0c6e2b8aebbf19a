"""Receipts and signatures: a server that rewrites history, or what members sent, is found."""

from __future__ import annotations

import json
import logging
import shutil
import zipfile
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from flwr.app import Array, Error, Message

from client_app import app as client_app
from fedif_consortium.evidence.attempts import read_attempts
from fedif_consortium.evidence.check_signatures import SignedMember
from fedif_consortium.evidence.keys import read_members, read_private_key
from fedif_consortium.evidence.part import ReceiptBook, read_chain, run_id
from fedif_consortium.evidence.receipts import RoundChain, ToldRound
from fedif_consortium.evidence.signed import TERMS, SignedUpdate
from fedif_consortium.federation.records import public_line
from fedif_consortium.statement import bundle
from fedif_consortium.statement.bundle import make_statement
from fedif_consortium.statement.verify import verify
from fedif_flower.errors import CheckpointError, ConfigError, StatementError
from fedif_flower.run.folder import RunFolder
from fedif_flower.server.loop import ScreenedStrategy
from tests.consortium.commands.typed import call
from tests.consortium.statement import signed_runs as of
from tests.consortium.statement.receipted_runs import held, nodes, run, run_and_deliver
from tests.consortium.statement.signed_runs import (
    NAMES,
    ROUNDS,
    altered,
    bind_anew,
    rewrite,
    swapped,
    without,
    without_columns,
)
from tests.run.resuming import Killed, killed_at
from tests.server.hostile import reply_of


@pytest.fixture(scope="module")
def keys(honest):
    return honest / "keys"


@pytest.fixture
def copied(honest, tmp_path) -> RunFolder:
    return RunFolder(of.copied(honest / "runs" / "run", tmp_path / "run"))


@pytest.fixture
def bobs(honest, tmp_path):
    return shutil.copytree(honest / "bob", tmp_path / "bob")


def change(path, **values) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_what_members_kept_is_what_the_records_say(honest, caplog):
    verified = verify(honest / "runs" / "run", receipts=held(honest))
    # The last round came with the statement.
    told = [(r.name, len(r.rounds), len(r.lines)) for r in verified.receipts]
    assert told == [(n, ROUNDS, ROUNDS) for n in NAMES]
    assert verified.redone == ()
    assert verified.manifest.head.split()[0] == str(ROUNDS * len(NAMES))
    assert "receipts of run" not in caplog.text
    (page,) = (honest / "pages" / "ada").glob("*/statement.html")
    assert verified.manifest.head in page.read_text()


def rebuilt(run: RunFolder, key) -> None:
    """Let the server make chain and heads anew from its records, and sign them and a statement."""
    bind_anew(run, key)
    make_statement(run.path, key)


def swap_contributions(run: RunFolder) -> str:
    """Give ada what cyd contributed to round 2, and the other way."""

    def swapped(rows):
        own = {row["client_id"]: row for row in rows if row["round"] == "2"}
        ada, cyd = dict(own["1000"]), dict(own["1002"])
        for name in ada:
            if name.startswith(("contribution", "credited")):
                own["1000"][name], own["1002"][name] = cyd[name], ada[name]
        return rows

    rewrite(run.attribution, swapped)
    return r"round 2: history was rewritten: (ada|cyd) has a receipt for '2,100"


def change_update(run: RunFolder) -> str:
    """Say that bob, whose signature is lost, sent something else in round 1."""
    rewrite(run.signatures, without(client_id="1001"))
    rewrite(run.receipts, altered({"round": "1", "client_id": "1001"}, update="00" * 32))
    return r"round 1: history was rewritten: bob has a receipt for '1,1001"


EARNED = ("attribution", "attributed_rounds")


def drop_round(run: RunFolder, *tables: str) -> str:
    """Leave out the last round."""
    for name in tables or (*EARNED, "clients", "rounds", "signatures", "receipts"):
        rewrite(getattr(run, name), without(round="3"))
    return r"round 3: history was rewritten: ada has a receipt .* the records have 'nothing'"


@pytest.mark.parametrize("attack", [swap_contributions, change_update, drop_round])
def test_a_rewritten_history_is_found_to_the_round(honest, copied, key, attack):
    words = attack(copied)
    rebuilt(copied, key)
    with pytest.raises(StatementError, match=words):
        verify(copied.path, receipts=held(honest))
    if attack is not change_update:  # Nobody has signed since.
        verify(copied.path)
        return
    # Whoever signs round 3 has been told of round 1, and signs what it was told.
    with pytest.raises(StatementError, match="before round 3, history was rewritten: client"):
        verify(copied.path)


def test_heads_that_are_signed_anew_with_another_key_are_found(honest, copied):
    rebuilt(copied, Ed25519PrivateKey.generate())
    with pytest.raises(StatementError, match="ada holds a head that is signed with another key"):
        verify(copied.path, receipts=held(honest))


def test_a_statement_is_signed_with_the_key_of_the_last_head(honest, copied):
    """Else somebody with the records could make another statement of them."""
    stranger = Ed25519PrivateKey.generate()
    make_statement(copied.path, stranger)
    with pytest.raises(StatementError, match=r"last head in round_heads\.csv with another one"):
        verify(copied.path)
    # A head is the same whoever signs it, so members compare the keys of each.
    last = read_chain(copied, run_id(copied)).rounds[-1]
    again = ToldRound.by(stranger, **last.model_dump(exclude={"key", "signature"}))
    cells = {"key": again.key.hex(), "signature": again.signature.hex()}
    rewrite(copied.round_heads, altered({"round": str(last.number)}, **cells))
    make_statement(copied.path, stranger, again=True)
    verify(copied.path)
    with pytest.raises(StatementError, match="ada holds a head that is signed with another key"):
        verify(copied.path, receipts=held(honest))


def test_records_are_of_the_run_that_is_declared(copied, key):
    """Members would find no receipts of the run's id, and no signature of theirs."""
    provenance = copied.provenance.read()
    copied.provenance.write({**provenance, "run_id": 32 * "0"})
    copied.signatures.path.unlink()
    rebuilt(copied, key)
    declared = provenance["run_id"][:8]
    words = f"run id '00000000', and the attempt that is declared has '{declared}'"
    with pytest.raises(StatementError, match=words):
        verify(copied.path)


def test_rounds_are_of_the_run_that_their_attempt_is_declared_as(copied, key):
    """An attempt that began anew, under another id, is said to have been a part of this run."""
    provenance = copied.provenance.read()
    of_run = provenance["attempts"]["attempts"][0]
    attempts = {**provenance["attempts"], "attempts": [{**of_run, "run": 32 * "0"}, of_run]}
    copied.provenance.write({**provenance, "attempts": attempts})
    copied.signatures.path.unlink()
    rebuilt(copied, key)
    with pytest.raises(StatementError, match="attempt 1 is declared as one of run 00000000"):
        verify(copied.path)


def test_a_head_alone_tells_from_which_round_on(copied, bobs, key):
    swap_contributions(copied)
    rebuilt(copied, key)
    for path in bobs.glob("*/round-*.json"):
        change(path, own={})
    with pytest.raises(StatementError, match="from round 2 on, history was rewritten: bob holds"):
        verify(copied.path, receipts=[bobs])


@pytest.mark.parametrize(
    ("attack", "words"),
    [
        (lambda run: rewrite(run.round_heads, lambda rows: rows[:-1]), "round 3: .* does not say"),
        (
            lambda run: rewrite(run.receipts, altered({"round": "1"}, weight="0.9")),
            "round 1 of receipts.csv: the head of 3 leaves does not follow",
        ),
        (swap_contributions, "round 2: receipts.csv does not say what the records say"),
        (
            lambda run: rewrite(run.attribution, altered({"round": "1"}, round="1.0")),
            r"attribution\.csv, line 2: .*invalid literal",
        ),
        (lambda run: drop_round(run, *EARNED, "rounds"), "round 3: receipts.csv does not say what"),
    ],
)
def test_a_chain_that_is_not_that_of_the_records_is_found_without_receipts(
    copied, key, attack, words
):
    attack(copied)
    make_statement(copied.path, key)
    with pytest.raises(StatementError, match=words):
        verify(copied.path)


def test_a_copy_of_a_member_s_receipts_speaks_for_no_other_member(honest, tmp_path):
    """Else bob hands in what ada holds, and nobody is told that his own were not compared."""
    shutil.copytree(honest / "ada", tmp_path / "bob")

    def last_line(*folders) -> str:
        options = [word for folder in folders for word in ("--receipts", folder)]
        return call("verify", honest / "runs" / "run", *options).splitlines()[-1]

    words = "that the other members were told these records (their --receipts)"
    assert words in last_line(*held(honest, "ada", "cyd"), tmp_path / "bob")
    assert words not in last_line(*held(honest))


@pytest.mark.parametrize(
    ("table", "column", "words"),
    [
        ("receipts", "weight", r"receipts\.csv has other columns than round, client_id, update"),
        ("round_heads", "origin", r"round_heads\.csv: 'origin' is missing$"),
        ("round_heads", "state", r"round_heads\.csv: 'state' is missing$"),
    ],
)
def test_columns_that_a_chain_lacks_are_named(copied, key, table, column, words):
    rewrite(getattr(copied, table), without_columns(column))
    with pytest.raises(ConfigError, match=words):
        make_statement(copied.path, key)


def test_receipts_that_were_cut_off_make_no_statement(copied, key):
    copied.receipts.begin()
    with pytest.raises(ConfigError, match=r"receipts\.csv has no line of round 1"):
        make_statement(copied.path, key)


def test_two_members_who_were_told_different_histories_find_out(tmp_path, key, monkeypatch):
    """The server gives cyd receipts of a chain in which it has the whole weight."""
    told = ReceiptBook.enclose

    def enclose(book, node):
        if node.node_id != 1002 or len(book._chain.rounds) != 1:
            return told(book, node)
        (first,), fork = book._chain.rounds, RoundChain()
        leaves = [leaf.replace(",accepted", ",accepted ") for leaf in first.own.values()]
        of_tables = ("rows", "origin", "state")
        about = {name: getattr(first, name) for name in (*TERMS, "number", *of_tables)}
        fork.add(ToldRound.by(key, **fork.next(leaves, **about)))
        book._chain.sizes |= fork.sizes
        return fork.receipts_for(1002, b"")

    monkeypatch.setattr(ReceiptBook, "enclose", enclose)
    run_dir = run(nodes(tmp_path), tmp_path, key)
    make_statement(run_dir, key)
    for names, words in (
        # Its next signature says so, without a receipt of anybody.
        (("ada", "bob"), "before round 3, history was rewritten: client 1002"),
        (("bob", "cyd"), "told bob and cyd different histories: .* 3 lines"),
        (("cyd",), "round 1: history was rewritten: cyd has a receipt"),
    ):
        with pytest.raises(StatementError, match=words):
            verify(run_dir, receipts=held(tmp_path, *names))


@pytest.mark.parametrize(
    ("is_lost", "warned", "words"),
    [
        (False, "the records have another update than this node sent", "says that it sent another"),
        (
            True,
            "this node sent an update; the records say 'failed'",
            "sent an update, and the",
        ),
    ],
)
def test_a_member_is_warned_of_another_update_than_it_sent(
    tmp_path, key, caplog, is_lost, warned, words
):
    """Something between member and server changes or loses what ada, who signs nothing, sends."""

    def changing(message, context):
        reply = client_app(message, context)
        if context.node_id != 1000 or "arrays" not in reply.content:
            return reply
        if not is_lost:
            reply.content["arrays"] = message.content["arrays"]
        elif message.content["config"]["server-round"] == 1:
            return Message(Error(2, "lost"), reply_to=message)
        return reply

    caplog.set_level(logging.WARNING, "fedif_flower")
    run_dir = run(nodes(tmp_path, client=changing, signing=()), tmp_path, key)
    assert f"round 1: {warned}" in caplog.text
    make_statement(run_dir, key)
    with pytest.raises(StatementError, match=f"round 1: ada {words}"):
        verify(run_dir, receipts=held(tmp_path, "ada"))


def test_a_member_cannot_deny_what_it_signed(honest, bobs):
    (path,) = bobs.glob("*/sent-000002-*.json")
    content = json.loads(path.read_text())
    unsigned = {name: content[name] for name in ("run", "attempt", "node_id", "round")}
    for said, words in (
        (content, r"sent-000002.* was changed"),
        (unsigned, "round 2: bob says .* another .* which it signed"),
    ):
        path.write_text(json.dumps({**said, "sent": "00" * 32}))
        with pytest.raises(StatementError, match=words):
            verify(honest / "runs" / "run", receipts=[bobs])


@pytest.mark.parametrize(
    "changed",
    [{"root": "00" * 32}, {"own": {"1": "2,1001,,1.0,,,accepted"}}, {"start": None}],
)
def test_a_changed_file_of_a_member_is_named(honest, bobs, changed):
    path = sorted(bobs.glob("*/round-*.json"))[0]
    change(path, **changed)
    with pytest.raises(StatementError, match=f"{path.name} was changed"):
        verify(honest / "runs" / "run", receipts=[bobs])


def test_a_run_that_goes_on_keeps_what_members_were_told(tmp_path, key, caplog, monkeypatch):
    caplog.set_level(logging.WARNING, "fedif_flower")
    settings = {"num_server_rounds": 5, "checkpoint_every": 2}
    of_grid = nodes(tmp_path)
    with pytest.raises(Killed):
        run(of_grid, tmp_path, key, killed_at(4), **settings)
    with pytest.raises(CheckpointError, match=r"evidence\.receipts = False; allowed: as it began"):
        run(of_grid, tmp_path, key, resume="auto", **settings, **{"evidence.receipts": False})
    with monkeypatch.context() as patch:
        # As the files of the last attempt are replaced.
        patch.setattr(ReceiptBook, "on_start", Mock(side_effect=Killed))
        with pytest.raises(Killed):
            run(of_grid, tmp_path, key, resume="auto", **settings)
    run_dir = run_and_deliver(of_grid, tmp_path, key, resume="auto", **settings)
    verified = verify(run_dir, members=read_members(tmp_path / "keys"), receipts=held(tmp_path))
    assert verified.redone == (3, 4)
    assert [len(r.lines) for r in verified.receipts] == [7, 7, 7]
    assert "receipts of run" not in caplog.text
    rounds = [int(row["round"]) for row in RunFolder(run_dir).round_heads.read()]
    assert rounds == [1, 2, 3, 4, 3, 4, 5]


def test_every_update_is_checked_by_keys_from_elsewhere(copied, keys, key):
    page = (make_statement(copied.path, key) / "statement.html").read_text()
    assert page.count("all signed") == 3
    expected = tuple(SignedMember(name, ROUNDS, ROUNDS) for name in NAMES)
    assert verify(copied.path, members=read_members(keys)).members == expected
    assert verify(copied.path).members == expected
    with pytest.raises(StatementError, match=r"round 1: the update of bob .* no member's"):
        verify(copied.path, members=read_members(keys / "ada.pub"))


def repeat_round_1(rows):
    """Let ada's update of round 1 stand for that of round 2."""
    first = next(row for row in rows if (row["round"], row["node_id"]) == ("1", "1000"))
    return [*without(round="2", node_id="1000")(rows), {**first, "round": "2"}]


def signed_anew(run: RunFolder, keys, signer: str, received: bytes = b""):
    """Let somebody sign bob's update of round 2, perhaps with another model that it got."""
    where = {"round": "2", "client_id": "1001"}
    (row,) = (row for row in run.signatures.read() if where.items() <= row.items())
    terms = read_attempts(run.provenance.read()).agreed(1).terms()
    was = SignedUpdate.read(str(run.provenance.read()["run_id"]), {**row, **terms})
    said = was.model_dump(exclude={"key", "signature"}) | {"received": received or was.received}
    told = SignedUpdate.by(read_private_key((keys / signer).read_bytes(), signer), **said)
    changed = {name: getattr(told, name).hex() for name in ("received", "key", "signature")}
    return altered(where, **changed)


ADA_2, BOB_3 = {"round": "2", "node_id": "1000"}, {"round": "3", "client_id": "1001"}
AWAY = {"status": "away", "weight": "0.0", "num_examples": "", "rejection": "no reply"}
OTHER = "is not the one that was signed"
ATTACKS = [
    ("signatures", altered(ADA_2, sent="00" * 32), f"round 2: the update of ada {OTHER}"),
    ("signatures", altered({"round": "3"}, asked_in="9"), f"round 3: the update of .* {OTHER}"),
    ("signatures", repeat_round_1, "round 2: the update of ada .* that it signed for round 1"),
    ("signatures", without(**ADA_2), "round 2: the update of ada is not signed, though this mem"),
    ("signatures", without(node_id="1001"), "round 1: the update of bob is not signed, though"),
    ("signatures", swapped("client_id", "1000", "1001"), "of bob is the one that ada signed"),
    ("signatures", lambda rows: [*rows, rows[0]], "signatures.csv, line 11: .*it is there twice"),
    ("signatures", ("bob", b"x" * 32), "round 2: members were sent different models"),
    ("signatures", ("ada",), "round 2: the update of bob is signed with another key than before"),
    ("clients", altered(BOB_3, **AWAY), "of bob was signed, and clients.csv has no such reply"),
    (
        "clients",
        altered({"client_id": "1002"}, num_examples="5"),
        "examples, and clients.csv has",
    ),
    ("names", swapped("name", "ada", "bob"), "round 1: the update of bob .* with the key of ada"),
    (None, {1000: "bob", 1001: "ada"}, "round 1: the update of bob .* with the key of ada"),
]


@pytest.mark.parametrize(("table", "change", "words"), ATTACKS)
def test_a_changed_update_is_named_though_the_operator_signs_again(
    copied, keys, key, table, change, words
):
    if isinstance(change, tuple):
        change = signed_anew(copied, keys, *change)
    if table:
        rewrite(getattr(copied, table), change)
    make_statement(copied.path, key, names=None if table else change)
    with pytest.raises(StatementError, match=words):
        verify(copied.path, members=read_members(keys))


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        ("b\u043eb", r"letters|'\\u043e' Cyrillic"),
        ("\uff22\uff4f\uff42", "'Bob' and 'bob' read alike|read alike"),
        ("BOB", "'BOB' and 'bob' read alike|read alike"),
        ("Bobby", "round 1: the update of Bobby is signed with the key of ada"),
    ],
)
def test_who_is_paid_is_called_as_the_file_of_its_key(copied, keys, key, monkeypatch, shown, words):
    """Ada's pay on a line that reads as bob's, or as somebody's who has no key."""
    monkeypatch.setattr(bundle, "require_apart", lambda *_: None)  # The operator's code is its own.
    rewrite(copied.names, altered({"name": "ada"}, name=shown))
    make_statement(copied.path, key)
    with pytest.raises(StatementError, match=words):
        verify(copied.path, members=read_members(keys))
    monkeypatch.undo()
    if shown != "Bobby":
        with pytest.raises(ConfigError, match=words):
            make_statement(copied.path, key, again=True)


def test_a_member_that_got_another_key_between_two_attempts_is_one_signer(
    copied, keys, key, tmp_path
):
    """Bob signed round 2 with a new key: both are known as his, and the old one as an earlier."""
    folder = shutil.copytree(keys, tmp_path / "keys")
    (folder / "bob.pub").rename(folder / "bob~1.pub")
    new = Ed25519PrivateKey.generate()
    (folder / "bob.pub").write_text(public_line(new, "bob"))
    private = new.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    (folder / "new").write_bytes(private)
    rewrite(copied.signatures, signed_anew(copied, folder, "new"))
    rebuilt(copied, key)
    members = verify(copied.path, members=read_members(folder)).members
    signed = [(member.name, member.signed) for member in members]
    assert signed == [(name, ROUNDS) for name in NAMES]
    (folder / "bob~1.pub").unlink()
    with pytest.raises(StatementError, match="of bob is signed with a key that is no member's"):
        verify(copied.path, members=read_members(folder))


def test_a_key_in_capitals_is_the_members_all_the_same(copied, keys, key, tmp_path):
    other = shutil.copytree(keys, tmp_path / "keys")
    (other / "bob.pub").rename(other / "Bob.pub")
    make_statement(copied.path, key)
    assert [one.name for one in verify(copied.path, members=read_members(other)).members] == [
        "ada",
        "Bob",
        "cyd",
    ]


def test_masked_updates_are_signed_too(keys, key, tmp_path):
    run_dir = of.run(of.nodes(keys), tmp_path, **{"masking.mode": "trial"})
    make_statement(run_dir, key)
    assert [m.signed for m in verify(run_dir, members=read_members(keys)).members] == [ROUNDS] * 3


@pytest.fixture(scope="module")
def kept_run(tmp_path_factory, keys):
    """Two rounds, their replies kept; bob's update is far too long, and was shortened."""
    nodes = of.nodes(keys, configs={1: {"attack": "honest-scaling"}})
    folder = tmp_path_factory.mktemp("kept")
    return of.run(nodes, folder, num_server_rounds=2, **{"updates.keep": True})


def change_sent(path):
    with np.load(path) as content:
        arrays = dict(content)
    name = next(name for name in arrays if name.startswith("1000/"))
    np.savez(path, **{**arrays, name: arrays[name] + 1})


def add_reply(path):
    with np.load(path) as content:
        np.savez(path, **content, **{"7/w": np.zeros(3)})


def change_round(path):
    content = torch.load(path, weights_only=True)
    content["updates"][0] *= -1.0
    torch.save(content, path)


def test_replies_that_unpack_to_more_than_their_file_are_not_read(kept_run, key, tmp_path):
    run = RunFolder(of.copied(kept_run, tmp_path / "run"))
    with zipfile.ZipFile(run.updates / "sent-000001.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("1000/w.npy", bytes(2**22))
    make_statement(run.path, key)
    with pytest.raises(StatementError, match=r"sent-000001\.npz holds no replies: .* unpack to 41"):
        verify(run.path)


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("sent-000001.npz", lambda path: None, ""),
        ("sent-000001.npz", change_sent, f"the kept update of client 1000 {OTHER}"),
        ("sent-000001.npz", add_reply, "client 7's reply was not used"),
        ("sent-000001.npz", lambda path: path.unlink(), f"the kept update of client 1000 {OTHER}"),
        ("round-000001.pt", change_round, "of client 1000, which was used, is not what it sent"),
    ],
)
def test_a_kept_update_that_is_not_the_signed_one_is_named(
    kept_run, keys, key, tmp_path, file, change, words
):
    run = RunFolder(of.copied(kept_run, tmp_path / "run"))
    change(run.updates / file)
    make_statement(run.path, key)
    if words:
        with pytest.raises(StatementError, match=f"round 1: .*{words}"):
            verify(run.path)
    else:
        checked = verify(run.path, members=read_members(keys))
        assert [m.signed for m in checked.members] == [2] * 3
        assert {"updates/round-000001.pt", f"updates/{file}"} <= set(checked.manifest.files)


@pytest.mark.parametrize("settings", [{}, {"max_update_length": 0.05}])
def test_a_signed_update_is_used_as_it_was_sent_but_for_what_the_run_shortens(
    keys, key, tmp_path, monkeypatch, settings
):
    """An operator takes a twentieth of bob's for it: all figures of the run follow from that."""
    aggregate = ScreenedStrategy.aggregate

    def aggregate_less_of_bobs(strategy, updates):
        row = updates.client_ids.index(1001)
        updates.client_updates[row] *= 0.05
        updates.squared_norms[row] *= 0.05**2
        return aggregate(strategy, updates)

    settings = {"num_server_rounds": 1, "updates.keep": True, **settings}
    honest = of.run(of.nodes(keys), tmp_path / "honest", **settings)
    make_statement(honest, key)
    assert [member.signed for member in verify(honest).members] == [1] * 3
    monkeypatch.setattr(ScreenedStrategy, "aggregate", aggregate_less_of_bobs)
    run_dir = of.run(of.nodes(keys), tmp_path / "other", **settings)
    make_statement(run_dir, key)
    with pytest.raises(StatementError, match="of client 1001, which was used, is not what it sent"):
        verify(run_dir)


def wider(message, context):
    """Let bob send float64: each number is off by 0.7 of the least step that float32 can take."""
    if message.metadata.message_type != "train" or context.node_config["partition-id"] != 1:
        return client_app(message, context)
    arrays = {}
    for name, array in message.content.array_records["arrays"].items():
        received = array.numpy()
        arrays[name] = Array(received + 0.7 * np.spacing(received).astype(np.float64))
    return reply_of(message, arrays, {"num-examples": 10})


@pytest.fixture(scope="module")
def wider_run(tmp_path_factory, keys):
    """Two rounds, their replies kept; what the server uses of bob's is rounded to 1 such step."""
    folder = tmp_path_factory.mktemp("wider")
    return of.run(
        of.nodes(keys, client=wider), folder, num_server_rounds=2, **{"updates.keep": True}
    )


def test_a_reply_of_wider_numbers_than_the_model_s_is_taken_as_the_server_took_it(wider_run, key):
    statuses = {row["status"] for row in RunFolder(wider_run).clients.read()}
    assert statuses == {"accepted"}
    make_statement(wider_run, key)
    assert [member.signed for member in verify(wider_run).members] == [2] * 3


@pytest.mark.parametrize("type_name", ["<f2", "|b1", "<i8"])
def test_a_server_that_says_other_types_of_the_model_is_found(wider_run, key, tmp_path, type_name):
    run = RunFolder(of.copied(wider_run, tmp_path / "run"))
    with np.load(run.updates / "sent-000001.npz") as content:
        arrays = dict(content)
    assert arrays["types"].tolist() == ["<f4"] * len(arrays["trained"])
    arrays["types"] = np.array([type_name] * len(arrays["trained"]))
    np.savez(run.updates / "sent-000001.npz", **arrays)
    make_statement(run.path, key)
    with pytest.raises(StatementError, match=r"sent-000001\.npz does not fit the model"):
        verify(run.path)
