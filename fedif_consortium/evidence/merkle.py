r"""Merkle trees as in RFC 6962: who knows a head sees whether what was there before was changed.

.. math:: h(\text{leaf}) = H(0 \,\|\, \text{leaf}), \qquad
          h(D_n) = H(1 \,\|\, h(D_{0:k}) \,\|\, h(D_{k:n}))

with SHA-256 and k the largest power of two below n. An audit path shows that a leaf is in a tree, a
consistency proof that a tree begins with the leaves of an earlier one; both have some
:math:`\log_2 n` hashes.

References
----------
RFC 6962, section 2.1; checks as in RFC 9162, sections 2.1.3.2 and 2.1.4.2.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

HASH_BYTES = 32
EMPTY = hashlib.sha256().digest()  # The head of a tree without leaves.


def leaf_hash(leaf: bytes) -> bytes:
    """Return the hash of a leaf."""
    return hashlib.sha256(b"\x00" + leaf).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return the hash of the node above two."""
    return hashlib.sha256(b"\x01" + left + right).digest()


class MerkleTree:
    """Leaves in the order in which they came.

    Parameters
    ----------
    leaves : iterable of bytes
        Those to begin with.
    """

    def __init__(self, leaves: Iterable[bytes] = ()) -> None:
        # Of each height the full subtrees: level h has the hashes of 2**h leaves each.
        self._levels: list[list[bytes]] = [[]]
        for leaf in leaves:
            self.append(leaf)

    def __len__(self) -> int:
        """Return how many leaves there are."""
        return len(self._levels[0])

    def append(self, leaf: bytes) -> None:
        """Add a leaf."""
        self._levels[0].append(leaf_hash(leaf))
        height = 0
        while len(self._levels[height]) % 2 == 0:
            if height + 1 == len(self._levels):
                self._levels.append([])
            self._levels[height + 1].append(node_hash(*self._levels[height][-2:]))
            height += 1

    def root(self, size: int | None = None) -> bytes:
        """Return the head of the first ``size`` leaves; ``None``: of all."""
        size = self._size(size)
        return self._hash(0, size) if size else EMPTY

    def audit_path(self, index: int, size: int | None = None) -> list[bytes]:
        """Return what shows that leaf ``index``, from 0, is in the tree of ``size`` leaves.

        Raises
        ------
        IndexError
            If that tree has no such leaf.
        """
        size = self._size(size)
        if not 0 <= index < size:
            raise IndexError(f"leaf {index} of {size}")
        return self._path(index, 0, size)

    def consistency(self, old: int, size: int | None = None) -> list[bytes]:
        """Return what shows that the tree of ``size`` leaves begins with that of ``old``.

        Raises
        ------
        IndexError
            If the old tree is the larger one.
        """
        size = self._size(size)
        if not 0 <= old <= size:
            raise IndexError(f"{old} leaves of {size}")
        return self._subproof(old, 0, size, is_old_root=True) if 0 < old < size else []

    def _size(self, size: int | None) -> int:
        if size is None:
            return len(self)
        if not 0 <= size <= len(self):
            raise IndexError(f"{size} leaves of {len(self)}")
        return size

    def _hash(self, start: int, end: int) -> bytes:
        """Return the hash of the leaves in a range, which begins where a subtree does."""
        count = end - start
        if count & (count - 1) == 0:
            return self._levels[count.bit_length() - 1][start // count]
        middle = start + _split(count)
        return node_hash(self._hash(start, middle), self._hash(middle, end))

    def _path(self, index: int, start: int, end: int) -> list[bytes]:
        if end - start == 1:
            return []
        middle = start + _split(end - start)
        if index < middle:
            return [*self._path(index, start, middle), self._hash(middle, end)]
        return [*self._path(index, middle, end), self._hash(start, middle)]

    def _subproof(self, old: int, start: int, end: int, *, is_old_root: bool) -> list[bytes]:
        """Return RFC 6962's SUBPROOF of a range whose first part ends at ``old``."""
        if old == end:
            return [] if is_old_root else [self._hash(start, end)]
        middle = start + _split(end - start)
        if old <= middle:
            left = self._subproof(old, start, middle, is_old_root=is_old_root)
            return [*left, self._hash(middle, end)]
        right = self._subproof(old, middle, end, is_old_root=False)
        return [*right, self._hash(start, middle)]


def is_in(leaf: bytes, index: int, size: int, path: Sequence[bytes], root: bytes) -> bool:
    """Return whether an audit path leads from leaf ``index`` to the head of ``size`` leaves."""
    if not 0 <= index < size:
        return False
    place, last, found = index, size - 1, leaf_hash(leaf)
    for other in path:
        if not last:
            return False
        if place & 1 or place == last:
            found = node_hash(other, found)
            while not place & 1 and place:
                place, last = place >> 1, last >> 1
        else:
            found = node_hash(found, other)
        place, last = place >> 1, last >> 1
    return not last and found == root


def begins_with(old: int, old_root: bytes, size: int, root: bytes, proof: Sequence[bytes]) -> bool:
    """Return whether a consistency proof shows that a tree begins with an earlier one's leaves."""
    if not 0 <= old <= size:
        return False
    if old in (0, size):
        return not proof and old_root == (EMPTY if old == 0 else root)
    # A subtree that is full is its own first node.
    nodes = [old_root, *proof] if old & (old - 1) == 0 else list(proof)
    if not nodes:
        return False
    place, last = old - 1, size - 1
    while place & 1:
        place, last = place >> 1, last >> 1
    found_old = found = nodes[0]
    for other in nodes[1:]:
        if not last:
            return False
        if place & 1 or place == last:
            found_old, found = node_hash(other, found_old), node_hash(other, found)
            while not place & 1 and place:
                place, last = place >> 1, last >> 1
        else:
            found = node_hash(found, other)
        place, last = place >> 1, last >> 1
    return not last and found_old == old_root and found == root


def _split(count: int) -> int:
    """Return the largest power of two below ``count`` >= 2."""
    return int(1 << ((count - 1).bit_length() - 1))
