from __future__ import annotations

import hashlib

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedif_consortium.evidence.receipts import (
    BEGINNING,
    MemberLine,
    RoundChain,
    SignedHead,
    leaf_hash,
    next_root,
    round_leaves,
)
from fedif_flower.errors import EvidenceError

KEY = Ed25519PrivateKey.generate()


def test_a_rounds_leaves_by_hand():
    lines = [
        MemberLine("1", "aa", "0.5", "accepted"),
        MemberLine("2", "", "0.0", "away"),
        MemberLine("1", "", "0.0", "refused"),  # A second reply of the same node.
    ]
    assert round_leaves(7, lines, {"1": ("-0.25", "-0.3"), "3": ("0.1", "0.05")}) == [
        "7,1,aa,0.5,-0.25,-0.3,accepted",
        "7,2,,0.0,,,away",
        "7,1,,0.0,,,refused",
        "7,3,,,0.1,0.05,carried",
    ]


def test_a_chain_by_hand():
    chain = RoundChain()
    sha = lambda *parts: hashlib.sha256(b"".join(parts)).digest()  # noqa: E731
    first = sha(b"\1", sha(b"\0", b"1,1,,,,,away"), sha(b"\0", b"1,2,,,,,away"))
    assert chain.add(["1,1,,,,,away", "1,2,,,,,away"]) == sha(b"\2", sha(), first)
    assert chain.add([]) == chain.root == sha(b"\2", sha(), first)  # A round without anybody.
    second = sha(b"\1", sha(b"\0", b"2,1,,,,,away"))
    assert chain.add(["2,1,,,,,away"]) == sha(b"\2", sha(b"\2", sha(), first), second)


def test_a_client_is_told_its_own_lines_and_the_hashes_of_the_others():
    chain = RoundChain()
    lines = ["1,1,aa,1.0,,,accepted", "1,2,bb,0.0,,,accepted"]
    root = chain.add(lines)
    assert chain.told(1, b"") == []  # No head was signed yet.
    chain.heads.append((1, SignedHead.by(KEY, "ab" * 16, 2, root)))
    (told,) = chain.told(1, b"")
    told.check()
    assert (told.before, told.numbered()) == (BEGINNING, [(0, lines[0])])
    assert told.hashes == tuple(leaf_hash(line) for line in lines)
    later = chain.add(["2,1,cc,1.0,,,accepted"])
    chain.heads.append((2, SignedHead.by(KEY, "ab" * 16, 3, later)))
    assert [each.numbered() for each in chain.told(2, b"")] == [[(1, lines[1])], []]
    (last,) = chain.told(2, root)
    assert (last.before, last.hashes, next_root(root, last.digest)) == (root, (), later)
    assert chain.told(2, later) == []
    for changes in (
        {"run": "cd" * 16},
        {"size": 4},
        {"key": b"k" * 32},
        {"own": {0: "1,1,aa,0.9,,,accepted"}},
        {"own": {5: lines[0]}},
        {"hashes": told.hashes[::-1]},
        {"start": 1},
        {"before": root},
        {"digest": bytes(32)},
    ):
        with pytest.raises(EvidenceError):
            told.model_copy(update=changes).check()
