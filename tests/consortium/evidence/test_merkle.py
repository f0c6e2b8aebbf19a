from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedif_consortium.evidence.merkle import EMPTY, MerkleTree, begins_with, is_in

# The test vectors of the reference implementation of RFC 6962 (Certificate Transparency).
LEAVES = [
    bytes.fromhex(text)
    for text in (
        "",
        "00",
        "10",
        "2021",
        "3031",
        "40414243",
        "5051525354555657",
        "606162636465666768696a6b6c6d6e6f",
    )
]
ROOTS = [
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]


def leaf(data: bytes) -> bytes:
    return hashlib.sha256(b"\x00" + data).digest()


def node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


@pytest.mark.parametrize("size", range(9))
def test_roots_are_those_of_certificate_transparency(size):
    assert MerkleTree(LEAVES[:size]).root().hex() == ROOTS[size]
    assert MerkleTree(LEAVES).root(size).hex() == ROOTS[size]


def test_the_example_of_the_rfc():
    # RFC 6962, 2.1.3: seven leaves d0 to d6.
    data = [bytes([i]) for i in range(7)]
    a, b, c, d, e, f, j = map(leaf, data)
    g, h, i = node(a, b), node(c, d), node(e, f)
    k, l = node(g, h), node(i, j)  # noqa: E741 (the RFC's names)
    tree = MerkleTree(data)
    assert tree.root() == node(k, l)
    assert tree.audit_path(0) == [b, h, l]
    assert tree.audit_path(3) == [c, g, l]
    assert tree.audit_path(4) == [f, j, k]
    assert tree.audit_path(6) == [i, k]
    assert tree.consistency(3) == [c, d, g, l]
    assert tree.consistency(4) == [l]
    assert tree.consistency(6) == [i, j, k]


def test_what_is_not_there_has_no_proof():
    tree = MerkleTree(LEAVES)
    for call in (lambda: tree.audit_path(8), lambda: tree.consistency(9), lambda: tree.root(9)):
        with pytest.raises(IndexError):
            call()
    assert not is_in(b"", -1, 8, [], tree.root())
    assert not begins_with(9, EMPTY, 8, tree.root(), [])


trees = st.lists(st.binary(max_size=3), min_size=1, max_size=40)


@given(trees, st.data())
def test_a_path_shows_its_leaf_and_no_other(leaves, data):
    tree = MerkleTree(leaves)
    size = data.draw(st.integers(1, len(leaves)))
    index = data.draw(st.integers(0, size - 1))
    path, root = tree.audit_path(index, size), tree.root(size)
    assert is_in(leaves[index], index, size, path, root)
    assert not is_in(leaves[index] + b"x", index, size, path, root)
    assert not is_in(leaves[index], index, size, [*path, EMPTY], root)
    assert not is_in(leaves[index], size, size, path, root)
    if path:
        assert not is_in(leaves[index], index, size, path[:-1], root)
        wrong = data.draw(st.integers(0, len(path) - 1))
        assert not is_in(
            leaves[index], index, size, [*path[:wrong], EMPTY, *path[wrong + 1 :]], root
        )


@given(trees, st.data())
def test_a_proof_shows_the_same_beginning_and_no_other(leaves, data):
    size = data.draw(st.integers(0, len(leaves)))
    old = data.draw(st.integers(0, size))
    tree = MerkleTree(leaves)
    proof, root = tree.consistency(old, size), tree.root(size)
    assert begins_with(old, tree.root(old), size, root, proof)
    assert not begins_with(old, tree.root(old), size, root, [*proof, EMPTY])
    if not old:
        return
    changed = data.draw(st.integers(0, old - 1))
    other = MerkleTree([*leaves[:changed], leaves[changed] + b"x", *leaves[changed + 1 :]])
    # Another history: its own proof fits its own head, and not the one shown before.
    assert begins_with(old, other.root(old), size, other.root(size), other.consistency(old, size))
    assert not begins_with(
        old, tree.root(old), size, other.root(size), other.consistency(old, size)
    )
    assert not begins_with(old, tree.root(old), size, other.root(size), proof)
