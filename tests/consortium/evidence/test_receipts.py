from __future__ import annotations

import hashlib

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import RecordDict

from fedif_consortium.evidence.receipts import (
    BEGINNING,
    RoundChain,
    ToldRound,
    leaf_hash,
    next_root,
    read_receipts,
    round_leaves,
)
from fedif_flower.errors import EvidenceError

KEY = Ed25519PrivateKey.generate()


def sha(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


def chain_of(*rounds: list[str]) -> RoundChain:
    chain = RoundChain()
    for leaves in rounds:
        chain.add(ToldRound.by(KEY, run="ab" * 16, **chain.next(leaves)))
    return chain


def told(chain: RoundChain, client_id: int, seen: bytes) -> list[ToldRound]:
    return read_receipts(RecordDict(chain.told(client_id, seen)))


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
    chain = chain_of(["1,1,,,,,away", "1,2,,,,,away"], ["2,1,,,,,away"])
    digest = sha(b"\1", sha(b"\0", b"1,1,,,,,away"), sha(b"\0", b"1,2,,,,,away"))
    first = sha(b"\2", sha(), digest)
    second = sha(b"\2", first, sha(b"\1", sha(b"\0", b"2,1,,,,,away")))
    assert [(one.size, one.root) for one in chain.rounds] == [(2, first), (3, second)]


def test_a_client_is_told_its_own_lines_and_the_hashes_of_the_others():
    lines = ["1,1,aa,1.0,,,accepted", "1,2,bb,0.0,,,accepted"]
    chain = chain_of(lines, ["2,1,cc,1.0,,,accepted"])
    first, later = (one.root for one in chain.rounds)
    (own, _) = told(chain, 1, b"")
    own.check()
    assert (own.before, own.numbered()) == (BEGINNING, [(0, lines[0])])
    assert own.hashes == tuple(leaf_hash(line) for line in lines)
    assert [each.numbered() for each in told(chain, 2, b"")] == [[(1, lines[1])], []]
    (last,) = told(chain, 2, first)
    assert (last.before, last.hashes, next_root(first, last.digest)) == (first, (), later)
    assert told(chain, 2, later) == []
    for changes in (
        {"run": "cd" * 16},
        {"size": 4},
        {"key": b"k" * 32},
        {"own": {0: "1,1,aa,0.9,,,accepted"}},
        {"own": {5: lines[0]}},
        {"hashes": own.hashes[::-1]},
        {"start": 1},
        {"before": first},
        {"digest": bytes(32)},
    ):
        with pytest.raises(EvidenceError):
            own.model_copy(update=changes).check()
