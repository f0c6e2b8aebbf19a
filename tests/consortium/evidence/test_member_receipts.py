"""The chain of rounds, and what a member does with what it is told: nothing stops its work."""

from __future__ import annotations

import json
import logging
from hashlib import sha256

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import ConfigRecord, Context, RecordDict

from fedif_consortium.evidence import member_receipts as module
from fedif_consortium.evidence import receipts
from fedif_consortium.evidence.attempts import NOT_COUNTED, Attempts
from fedif_consortium.evidence.held_receipts import read_held
from fedif_consortium.evidence.member_receipts import ReceiptKeeper, require_room, take_receipts
from fedif_consortium.evidence.receipts import (
    BEGINNING,
    RECEIPTS_RECORD,
    RoundChain,
    ToldRound,
    leaf_hash,
    next_root,
    read_receipts,
    round_leaves,
)
from fedif_flower.errors import EvidenceError, StorageError
from fedif_flower.messages.instructions import RECEIPTS_KEY, ROUND_KEY, RUN_ID_KEY

RUN, NODE = "ab" * 16, 1000
KEY = Ed25519PrivateKey.generate()
FIRST = [f"1,1000,{'aa' * 32},0.5,-0.25,-0.25,accepted", f"1,1001,{'bb' * 32},0.5,0.5,0.5,accepted"]
SECOND = ["2,1000,,0.0,,,away", f"2,1001,{'bb' * 32},1.0,0.5,0.5,accepted"]


def node(tmp_path=None) -> Context:
    own = {} if tmp_path is None else {"receipts-dir": str(tmp_path)}
    return Context(1, NODE, {"partition-id": 0, "num-partitions": 2, **own}, RecordDict(), {})


CONFIG = "00" * 32
ATTEMPTS = Attempts(name="october", attempts=[{"run": RUN, "config": CONFIG}] * 3)


def about(number: int, attempt: int = 1, run: str = RUN) -> dict:
    """What a head says beside its leaves."""
    terms = ATTEMPTS.agreed(attempt).terms()
    of_tables = {"rows": b"r" * 32, "origin": b"o" * 32, "state": b"s" * 32}
    return {"run": run, **terms, "number": number, **of_tables}


def chain_of(*rounds, key=KEY, run=RUN) -> RoundChain:
    """Return a chain; a round that is done again is so in another attempt."""
    chain, attempt, last = RoundChain(), 1, 0
    for leaves in rounds:
        number = int(leaves[0].partition(",")[0])
        attempt += number <= last
        last = number
        said = about(number, attempt, run)
        chain.add(ToldRound.by(key, **chain.next(leaves, **said)))
    return chain


def told(*rounds, seen=0, key=KEY, run=RUN, client_id=NODE, **changes) -> RecordDict:
    """Return what a server tells of a chain with these rounds, of the last one with changes."""
    chain = chain_of(*rounds, key=key, run=run)
    last_seen = {size: root for root, size in chain.sizes.items()}[seen]
    record = chain.receipts_for(client_id, last_seen)[RECEIPTS_RECORD]
    cells = json.loads(record["rounds"])
    cells[-1] |= changes
    return sent({**record, "rounds": json.dumps(cells)}, run)


def sent(record, run: str = RUN) -> RecordDict:
    """Return a message of a run that brings receipts."""
    config = ConfigRecord({RUN_ID_KEY: run})
    return RecordDict({RECEIPTS_RECORD: ConfigRecord(record), "config": config})


def test_a_rounds_leaves_by_hand():
    lines = [
        ("1", "aa", "0.5", "accepted"),
        ("2", "", "0.0", "away"),
        ("1", "", "0.0", "refused"),  # A second reply of the same node.
    ]
    assert round_leaves(7, lines, {"1": ("-0.25", "-0.3"), "3": ("0.1", "0.05")}) == [
        "7,1,aa,0.5,-0.25,-0.3,accepted",
        "7,2,,0.0,,,away",
        "7,1,,0.0,,,refused",
        "7,3,,,0.1,0.05,carried",
    ]


def test_a_chain_by_hand():
    """Every hash is written out: run, attempt, round, rows and leaves are in it."""
    attempt = json.dumps(["october", 1, RUN, CONFIG]).encode()
    attempt = sha256(b"\3" + sha256().digest() + attempt).digest()

    def root(before: bytes, number: int, *leaves: str) -> bytes:
        hashes = (sha256(f"\0{leaf}".encode()).digest() for leaf in leaves)
        own = sha256(b"\4" + b"".join(hashes)).digest()
        of_tables = b"r" * 32 + b"o" * 32 + b"s" * 32
        said = attempt + bytes([0] * 7 + [number]) + of_tables + own
        return sha256(b"\2" + before + sha256(b"\1" + said).digest()).digest()

    chain = chain_of(["1,1,,,,,away", "1,2,,,,,away"], ["2,1,,,,,away"])
    first = root(sha256().digest(), 1, "1,1,,,,,away", "1,2,,,,,away")
    second = root(first, 2, "2,1,,,,,away")
    assert [(one.size, one.root) for one in chain.rounds] == [(2, first), (3, second)]


def test_a_round_in_which_nobody_was_asked_has_a_leaf_of_nobody():
    assert round_leaves(7, [], {}) == ["7,,,,,,nobody"]
    chain = chain_of(["1,,,,,,nobody"])
    (told,) = rounds_told(chain, 1, b"")
    told.check()
    assert told.numbered() == []


def rounds_told(chain: RoundChain, client_id: int, seen: bytes) -> list[ToldRound]:
    return read_receipts(RecordDict(chain.receipts_for(client_id, seen)))


def test_a_client_that_signs_nothing_is_told_no_more_than_it_reads(monkeypatch):
    """It is told all rounds with each message; those of many members would outgrow one."""
    chain = chain_of(*([f"{t},{i},,0.5,,,away" for i in (1, 2)] for t in range(1, 21)))
    everything = rounds_told(chain, 1, b"")
    assert [told.number for told in everything] == list(range(1, 21))
    text = chain.receipts_for(1, b"")[RECEIPTS_RECORD]["rounds"]
    assert text == json.dumps(json.loads(text))
    monkeypatch.setattr(receipts, "_MOST_TEXT", len(text) // 4)
    latest = rounds_told(chain, 1, b"")
    assert 3 <= len(latest) <= 5
    assert latest == everything[-len(latest) :]
    monkeypatch.setattr(receipts, "_MOST_TEXT", 100)
    assert chain.receipts_for(1, b"") == {}


def test_a_client_is_told_its_own_lines_and_the_hashes_of_the_others():
    lines = ["1,1,aa,1.0,,,accepted", "1,2,bb,0.0,,,accepted"]
    chain = chain_of(lines, ["2,1,cc,1.0,,,accepted"])
    first, later = (one.root for one in chain.rounds)
    own, _ = rounds_told(chain, 1, b"")
    own.check()
    assert (own.before, own.numbered()) == (BEGINNING, [(0, lines[0])])
    assert own.hashes == tuple(leaf_hash(line) for line in lines)
    assert [each.numbered() for each in rounds_told(chain, 2, b"")] == [[(1, lines[1])], []]
    (last,) = rounds_told(chain, 2, first)
    assert (last.before, last.hashes, next_root(first, last.digest)) == (first, (), later)
    last.check()  # Without a leaf of its own it knows what the head names all the same.
    with pytest.raises(EvidenceError):
        last.model_copy(update={"rows": bytes(32)}).check()
    assert rounds_told(chain, 2, later) == []
    for changes in (
        {"run": "cd" * 16},
        {"size": 4},
        {"key": b"k" * 32},
        {"own": {0: "1,1,aa,0.9,,,accepted"}},
        {"own": {5: lines[0]}},
        {"hashes": own.hashes[::-1]},
        {"start": 1},
        {"before": first},
        {"leaves": bytes(32)},
        {"rows": bytes(32)},
        {"origin": bytes(32)},
        {"state": bytes(32)},
        {"number": 2},
        {"name": "november"},
        {"attempt": 2},
        {"config": b"c" * 32},
        {"earlier": bytes(32)},
    ):
        with pytest.raises(EvidenceError):
            own.model_copy(update=changes).check()


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.WARNING, "fedif_flower")
    return caplog


def test_a_true_history_is_taken_without_a_word_and_kept(tmp_path, log):
    context = node(tmp_path)
    ReceiptKeeper(context, RUN).note_sent(1, b"\xaa" * 32, None)
    for content in (told(FIRST), told(FIRST), told(FIRST, SECOND, seen=2)):
        take_receipts(content, context, is_round=True)
    assert log.text == ""
    assert ReceiptKeeper(context, RUN).last_root == chain_of(FIRST, SECOND).root
    assert sorted(path.name.split("-")[0] for path in (tmp_path / RUN).iterdir()) == [
        *("memory", "round", "round", "sent")
    ]
    take_receipts(RecordDict(), context, is_round=True)  # A server that tells nothing.
    assert log.text == ""


@pytest.mark.parametrize("keeps", [True, False])
def test_receipts_of_another_run_than_the_message_s_are_not_kept(tmp_path, log, keeps):
    """Else a server fills the folder with runs that it invents: the next real one finds no room."""
    context = node(tmp_path / "receipts" if keeps else None)
    for number in range(3):
        invented = told(FIRST, run=f"{number:032x}")
        invented["config"] = told(FIRST)["config"]
        take_receipts(invented, context, is_round=True)
        assert f"receipts of run 00000000 in a message of run {RUN[:8]}: not kept" in log.text
        log.clear()
        take_receipts(sent(invented[RECEIPTS_RECORD], run="\x1b"), context, is_round=True)
        assert "in a message of run ?: not kept" in log.text
        del invented["config"]
        take_receipts(invented, context, is_round=True)
        assert "in a message of run : not kept" in log.text
    assert list(tmp_path.glob("receipts/*")) == []
    assert not context.state
    take_receipts(told(FIRST), context, is_round=True)
    assert ReceiptKeeper(context, RUN).last_root == chain_of(FIRST).root


CHANGED = [FIRST[0].replace("0.5", "0.1"), FIRST[1]]


def spliced() -> RecordDict:
    """Return the first round of one chain, and the second of another."""
    parts = [told(FIRST), told(CHANGED, SECOND, seen=2)]
    cells = [json.loads(part[RECEIPTS_RECORD]["rounds"])[0] for part in parts]
    return sent({"run": RUN, "rounds": json.dumps(cells)})


def padded() -> RecordDict:
    """Return a history that is larger than any can be."""
    record = told(FIRST)[RECEIPTS_RECORD]
    return sent({**record, "rounds": record["rounds"] + " " * 2**24})


@pytest.mark.parametrize(
    ("later", "reason"),
    [
        (told(CHANGED, SECOND, seen=2), "now does not contain the 2 lines"),
        (
            told(FIRST, SECOND, seen=2),
            "round 2: this node sent an update; the records say 'away': was it late, or lost on",
        ),
        (told(FIRST, SECOND, FIRST, seen=4), "receipts skip rounds after the 2 lines"),
        (spliced(), "the rounds that were told do not follow from each other"),
        (told(FIRST[:1]), "the records have 1 lines; there were 2 before"),
        (told(FIRST, SECOND, seen=2, key=Ed25519PrivateKey.generate()), "another key than before"),
        (told(FIRST, SECOND, seen=2, client_id=1001), "the line is another member's"),
        (
            told([FIRST[0].replace("aa", "cc"), FIRST[1]]),
            "round 1: the records have another update than this node sent",
        ),
    ],
)
def test_what_does_not_hold_is_a_warning(later, reason, log, tmp_path):
    context = node(tmp_path)
    for number in (1, 2):
        ReceiptKeeper(context, RUN).note_sent(number, b"\xaa" * 32, None)
    take_receipts(told(FIRST), context, is_round=True)
    assert log.text == ""
    take_receipts(later, context, is_round=True)
    assert reason in log.text
    # What was false is evidence: it is kept beside what was there before.
    assert len(list((tmp_path / RUN).glob("round-*"))) == 2


def test_a_node_that_is_restarted_remembers_what_it_was_told(log, tmp_path):
    before = node(tmp_path)
    ReceiptKeeper(before, RUN).note_sent(1, b"\xaa" * 32, None)
    take_receipts(told(FIRST), before, is_round=True)

    restarted = node(tmp_path)
    assert ReceiptKeeper(restarted, RUN).last_root == chain_of(FIRST).root
    take_receipts(told(CHANGED, SECOND, seen=2), restarted, is_round=True)
    assert "now does not contain the 2 lines" in log.text

    log.clear()
    (tmp_path / RUN / "memory").write_text("{")
    assert ReceiptKeeper(node(tmp_path), RUN).last_root == b""
    assert "memory cannot be read; what the server tells next is compared with" in log.text


@pytest.mark.parametrize(
    ("later", "reason", "heads"),
    [
        (told(FIRST, SECOND, seen=2, signature="00"), "the signature does not fit", [2]),
        (told(FIRST, SECOND, seen=2, before="00" * 32), "does not follow from them", [2]),
        (told(FIRST, SECOND, seen=2, client_id=1001), "the line is another member's", [2, 4]),
        (told(FIRST, ["2,0,,0.0,,,away"], seen=2, client_id=0), "another member's", [2, 3]),
    ],
)
def test_what_a_server_tells_does_not_spoil_what_is_kept(later, reason, heads, log, tmp_path):
    """What nobody signed, or another's line, would have the whole folder refused.

    The second round brings one line more, or two: heads of 3 or 4 lines, signed as they are.
    """
    context = node(tmp_path)
    ReceiptKeeper(context, RUN).note_sent(1, b"\xaa" * 32, None)
    take_receipts(told(FIRST), context, is_round=True)
    take_receipts(later, context, is_round=True)
    assert reason in log.text
    held = read_held(tmp_path, RUN)
    assert (held.client_id, held.lines) == (NODE, [(0, FIRST[0])])
    assert [told_round.size for told_round in held.rounds] == heads


@pytest.mark.parametrize(
    ("number", "attempt", "reason"),
    [
        (1, 2, ""),
        (3, 2, ""),
        (1, 1, "round 1 stands behind round 2 of the same attempt, 1"),
        (4, 1, "round 4 stands behind round 2 of the same attempt, 1"),
        (4, 2, "attempt 2 goes on with round 4, after 2"),
    ],
)
def test_a_round_is_done_again_in_another_attempt_alone(log, number, attempt, reason):
    context = node()
    take_receipts(told(FIRST, SECOND), context, is_round=True)
    chain = chain_of(FIRST, SECOND)
    seen = chain.root
    leaf = f"{number},1000,,0.0,,,away"
    chain.add(ToldRound.by(KEY, **chain.next([leaf], **about(number, attempt))))
    take_receipts(sent(chain.receipts_for(NODE, seen)[RECEIPTS_RECORD]), context, is_round=True)
    assert (f"history was rewritten: {reason}" in log.text) if reason else log.text == ""


def test_a_round_that_is_done_again_has_its_own_line(log):
    context = node()
    take_receipts(told(FIRST), context, is_round=True)
    ReceiptKeeper(context, RUN).note_sent(1, b"\xcc" * 32, None)  # The run was resumed.
    take_receipts(told(FIRST, SECOND, seen=2), context, is_round=True)
    assert log.text == ""
    again = [FIRST[0].replace("aa", "cc"), FIRST[1]]
    take_receipts(told(FIRST, SECOND, again, seen=4), context, is_round=True)
    assert log.text == ""
    take_receipts(told(FIRST, SECOND, again, FIRST, seen=6), context, is_round=True)
    assert "round 1: the records have another update than this node sent" in log.text


@pytest.mark.parametrize(("sent_in", "warned"), [(0, True), (1, False), (2, True)])
def test_what_was_sent_in_an_attempt_that_crashed_is_not_missed_in_the_next_one(
    sent_in, warned, log, tmp_path
):
    """The server dies after the update came, so the records have no round 2 of attempt 1.

    In attempt 2 the member's host dies in this round: it is away, as its line says.
    """
    chain = chain_of(FIRST)
    context = node(tmp_path)
    take_receipts(told(FIRST), context, is_round=True)
    agreed = ATTEMPTS.agreed(sent_in) if sent_in else NOT_COUNTED
    ReceiptKeeper(context, RUN).note_sent(2, b"\xaa" * 32, None, agreed)
    seen = chain.root
    chain.add(ToldRound.by(KEY, **chain.next(SECOND, **about(2, attempt=2))))
    message = sent(chain.receipts_for(NODE, seen)[RECEIPTS_RECORD])
    take_receipts(message, node(tmp_path), is_round=True)
    assert ("this node sent an update; the records say 'away'" in log.text) == warned
    assert warned or log.text == ""


@pytest.mark.parametrize(
    "content",
    [
        told(FIRST, own={"x": FIRST[0]}),
        told(FIRST, own={0: FIRST[0].replace("accepted", "\x1b[2J")}),
        told(FIRST, hashes="zz"),
        told(FIRST, size=2**60),
        told(FIRST, run="../../etc"),
        padded(),
        sent({"run": RUN, "rounds": "[]"}),
        sent({"run": RUN, "rounds": "[" * 100_000}),
        sent({"run": RUN, "rounds": json.dumps([{}] * 1001)}),
        sent({"run": 5, "rounds": "[]"}),
    ],
)
def test_nonsense_is_a_warning_and_writes_nothing_elsewhere(content, log, tmp_path):
    take_receipts(content, node(tmp_path / "own"))
    assert log.text
    assert {path.name for path in tmp_path.iterdir()} <= {"own"}
    assert len(list(tmp_path.rglob("round-*"))) == 0


def test_a_full_folder_takes_no_more(tmp_path, log, monkeypatch):
    monkeypatch.setattr(module, "MOST_RUNS", 1)
    monkeypatch.setattr(module, "MOST_FILES", 1)
    context = node(tmp_path)
    take_receipts(told(FIRST), context, is_round=True)
    assert len(list((tmp_path / RUN).glob("*.json"))) == 1
    take_receipts(told(FIRST, SECOND, seen=2), context, is_round=True)
    assert len(list((tmp_path / RUN).glob("*.json"))) == 1
    assert "holds 1 files: move it away" in log.text
    take_receipts(told(FIRST, run="cd" * 16), context, is_round=True)
    assert "holds 1 runs: move some away" in log.text


def test_a_member_whose_folder_cannot_be_written_is_told_so_at_the_end_of_the_run(tmp_path, log):
    """The last receipts come beside a question. It had a part in the run, and kept nothing."""
    (tmp_path / "receipts").write_text("no folder")
    context = node(tmp_path / "receipts")
    ReceiptKeeper(context, RUN).note_sent(1, b"\xaa" * 32, None)
    log.clear()
    take_receipts(told(FIRST), context)
    assert "a receipt was not kept: cannot write" in log.text
    assert "had no part" not in log.text


def test_runs_that_a_server_invents_take_no_room_and_a_full_folder_gives_no_update(
    tmp_path, log, monkeypatch
):
    """A hundred invented runs would leave the real one without evidence at the member."""
    monkeypatch.setattr(module, "MOST_RUNS", 2)
    context = node(tmp_path)
    for number in range(5):  # Told beside a question, not a round.
        take_receipts(told(FIRST, run=f"{number:02}" * 16), context)
    assert not list(tmp_path.iterdir())
    assert "in which it had no part: not kept" in log.text
    settings = ConfigRecord({RECEIPTS_KEY: True, RUN_ID_KEY: RUN, ROUND_KEY: 1})
    asked = RecordDict({"config": settings})
    require_room(asked, context)
    for number in range(2):
        take_receipts(told(FIRST, run=f"{number:02}" * 16), context, is_round=True)
    with pytest.raises(StorageError, match="holds 2 runs: move some away"):
        require_room(asked, context)
    take_receipts(told(FIRST, SECOND, seen=2, run="00" * 16), context)  # Of a known run: kept.
    assert len(list((tmp_path / ("00" * 16)).glob("*.json"))) == 2


def test_the_nodes_state_stays_small(log):
    context = node()
    keeper = ReceiptKeeper(context, RUN)
    for number in (*range(10**6, 10**6 + 200), 1):  # The server says which round it is.
        keeper.note_sent(number, bytes(32), None)
    (record,) = context.state.values()
    memory = json.loads(record["memory"])
    for kept in (memory["sent"], memory["attempts"]):
        assert (len(kept), "1" in kept) == (64, True)
