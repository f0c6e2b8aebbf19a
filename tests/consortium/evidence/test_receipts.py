from __future__ import annotations

from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedif_consortium.evidence.receipts import (
    MemberLine,
    ReceiptTree,
    SignedHead,
    read_leaf,
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


@pytest.mark.parametrize("leaf", ["", "1,2,3", "x,1,,,,,away", "1,1,,,,,away,more"])
def test_what_is_no_leaf_is_refused(leaf):
    with pytest.raises(EvidenceError, match="no line of a receipt"):
        read_leaf(leaf)


def test_a_head_is_signed_as_a_whole():
    head = SignedHead.by(KEY, "ab" * 16, 3, b"r" * 32)
    head.check()
    for changes in ({"run": "cd" * 16}, {"size": 4}, {"root": b"s" * 32}, {"key": b"k" * 32}):
        with pytest.raises(EvidenceError, match="not signed by its key"):
            replace(head, **changes).check()


def test_a_client_gets_its_own_lines_that_the_head_covers():
    tree = ReceiptTree()
    tree.add(["1,1,aa,1.0,,,accepted", "1,2,bb,0.0,,,accepted"])
    assert tree.last_of("1", 5) == []  # No head was told yet.
    head = SignedHead.by(KEY, "ab" * 16, 2, tree.tree.root())
    tree.heads.append((1, head))
    tree.add(["2,1,cc,1.0,,,accepted"])
    (receipt,) = tree.last_of("1", 5)
    assert (receipt.leaf, receipt.index, receipt.holds(head)) == ("1,1,aa,1.0,,,accepted", 0, True)
    assert not replace(receipt, leaf="1,1,aa,0.9,,,accepted").holds(head)
    assert tree.last_of("9", 5) == []
