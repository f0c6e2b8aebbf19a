"""What a member sent is in the records, or they say why not in a word that can be true."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedif_consortium.evidence.attempts import Attempt, Attempts
from fedif_consortium.evidence.check_receipts import (
    _check_lines,
    _check_not_left_out,
    _lost_updates,
    _may_be_late,
)
from fedif_consortium.evidence.held_receipts import HeldReceipts
from fedif_consortium.evidence.receipts import RoundChain, ToldRound
from fedif_flower.errors import StatementError

RUN = 32 * "a"
BOB = 2
ATTEMPTS = Attempts(name="october", attempts=(Attempt(run=RUN, config=64 * "b"),))


def chain_of(*rounds: list[str]) -> RoundChain:
    """Return a chain of rounds with these lines, each without its round's number."""
    key = Ed25519PrivateKey.generate()
    chain = RoundChain()
    for number, lines in enumerate(rounds, start=1):
        about = {"run": RUN, "number": number, "rows": 32 * b"r"}
        about |= {"origin": 32 * b"o", "state": 32 * b"s"}
        about |= ATTEMPTS.agreed(1).terms()
        leaves = [f"{number},{line}" for line in lines]
        chain.add(ToldRound.by(key, **chain.next(leaves, **about)))
    return chain


ACCEPTED = f"{BOB},{64 * 'c'},0.5,0.1,0.1,accepted"
ADAS = f"1,{64 * 'd'},0.5,0.1,0.1,accepted"
# What bob sent in round 2 came to nothing; in round 3 he is there again.
REVOKED = chain_of([ACCEPTED, ADAS], [f"{BOB},,0.0,,,revoked", ADAS], [ACCEPTED, ADAS])
LATE = chain_of([ACCEPTED, ADAS], [f"{BOB},,0.0,,,late", ADAS], [ACCEPTED, ADAS])
AWAY = chain_of([ACCEPTED, ADAS], [f"{BOB},,0.0,,,away", ADAS], [ACCEPTED, ADAS])
FAILED = chain_of([ACCEPTED, ADAS], [f"{BOB},,0.0,,,failed", ADAS], [ACCEPTED, ADAS])
NO_LINE = chain_of([ACCEPTED, ADAS], [ADAS], [ACCEPTED, ADAS])


def bobs(*rounds: int) -> HeldReceipts:
    sent = {(1, number): {64 * "c"} for number in rounds}
    return HeldReceipts("bob", rounds=[], sent=sent, node_id=BOB)


@pytest.mark.parametrize(
    ("chain", "may_be_late", "status"),
    [(REVOKED, True, "revoked"), (LATE, False, "late"), (NO_LINE, True, "nothing")],
)
def test_an_update_that_is_left_out_under_a_pretext_is_named(chain, may_be_late, status):
    words = f"round 2: bob sent an update, and the records say '{status}'"
    with pytest.raises(StatementError, match=words):
        _check_not_left_out(bobs(1, 2, 3), chain, may_be_late=may_be_late)
    # Who sent nothing in that round has nothing to show.
    _check_not_left_out(bobs(1, 3), chain, may_be_late=may_be_late)


def test_a_late_reply_and_a_member_that_was_removed_are_told_as_they_were():
    _check_not_left_out(bobs(1, 2, 3), LATE, may_be_late=True)
    removed = chain_of([ACCEPTED, ADAS], [f"{BOB},,0.0,,,revoked", ADAS], [ADAS])
    _check_not_left_out(bobs(1, 2), removed, may_be_late=False)
    # Of a round that the records do not have yet, the end of the chain is compared.
    _check_not_left_out(bobs(1, 4), removed, may_be_late=False)


def test_an_update_that_came_too_late_is_said_and_refutes_nothing():
    """A round's time may be over when it comes, or it may be lost on its way: nobody lied."""
    _check_lines(bobs(1, 2, 3), AWAY, {})
    _check_not_left_out(bobs(1, 2, 3), AWAY, may_be_late=False)
    assert list(_lost_updates(bobs(1, 2, 3), AWAY)) == [("bob", 2)]
    assert list(_lost_updates(bobs(1, 3), AWAY)) == []  # It sent nothing in round 2.
    assert list(_lost_updates(bobs(1, 2, 3), FAILED)) == []


def test_who_sent_an_update_raised_no_error():
    words = "round 2: bob sent an update, and the records say 'failed'"
    with pytest.raises(StatementError, match=words):
        _check_lines(bobs(1, 2, 3), FAILED, {})
    _check_lines(bobs(1, 3), FAILED, {})


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"pace.quorum": 0.0, "pace.late-rounds": 0, "pace.rounds": "synchronous"}, False),
        ({"pace.quorum": 0.6, "pace.late-rounds": 0}, True),
        ({"pace.quorum": 0.0, "pace.late-rounds": 2}, True),
        ({"pace.quorum": 0.0, "pace.rounds": "buffered"}, True),
        ({}, True),  # An app of its own: its settings are not known.
    ],
)
def test_replies_are_late_where_rounds_close_before_all_have_come(settings, expected):
    assert _may_be_late(settings) is expected
