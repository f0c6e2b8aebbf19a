"""The box: what a member tells the keeper, through the server, and the server cannot read.

A header in clear (run, round, node, length and SHA-256 of the masked vector, what the member was
sent, who signs), the seed sealed for the keeper's public key, and the member's signature of both.
Sealed with a fresh X25519 key, HKDF-SHA256 and ChaCha20-Poly1305, with the header as associated
data: nobody can put a seed under another header.
"""

from __future__ import annotations

import hashlib
import struct
from typing import NamedTuple

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedif_consortium.evidence.keys import SigningKey, VerifyingKey, is_signed, key_digest, sign
from fedif_consortium.masking.ring import SEED_BYTES, Ring
from fedif_flower.errors import BoxError, ConfigError

KeeperKey = X25519PrivateKey
"""What opens boxes."""
MOST_BYTES = 512  # Of a box: more is read from nobody.
_KIND = b"fedifbx1"
_HEADER = struct.Struct("<8sQIQQ32s32s32s")
_POINT = _HEADER.size + 32  # Where the public key of X25519 ends,
_SIGNED = _POINT + SEED_BYTES + 16  # and the seed with its tag: what is signed.


class BoxHeader(NamedTuple):
    """What a box belongs to; in clear, and signed.

    Attributes
    ----------
    run : int
        The run's id, in 0 ... 2**64 - 1.
    server_round : int
        In 1 ... 2**32 - 1.
    node : int
        The member's node id, in 0 ... 2**64 - 1.
    length : int
        d, the parameters of the masked vector.
    digest : bytes
        Its SHA-256, of 8 bytes an entry, little-endian.
    instructions : bytes
        SHA-256 of what the server sent, model and settings, by which the keeper sees that all
        members of a round got the same.
    signer : bytes
        SHA-256 of the public key whose holder signed.
    """

    run: int
    server_round: int
    node: int
    length: int
    digest: bytes
    instructions: bytes
    signer: bytes

    def to_bytes(self) -> bytes:
        """Return the header as it stands in a box."""
        return _HEADER.pack(_KIND, *self)


def vector_digest(vector: Ring) -> bytes:
    """Return the SHA-256 of a vector ``[d]``, 8 bytes an entry, little-endian."""
    return hashlib.sha256(np.ascontiguousarray(vector, "<u8").data).digest()


def seal(header: BoxHeader, seed: bytes, keeper: X25519PublicKey, key: SigningKey) -> bytes:
    """Return a seed in a box that the keeper alone can open.

    Parameters
    ----------
    header : BoxHeader
        What the seed is for; its signer is ``key``'s.
    seed : bytes
        32 bytes.
    keeper : X25519PublicKey
        Of the keeper whom the member trusts.
    key : SigningKey
        The member's.
    """
    once = X25519PrivateKey.generate()
    start, point = header.to_bytes(), once.public_key().public_bytes_raw()
    cipher = _cipher(once.exchange(keeper), point, keeper)
    content = start + point + cipher.encrypt(bytes(12), seed, start)
    return content + sign(key, content)


def read_header(box: bytes) -> BoxHeader:
    """Return what a box says that it belongs to, which nobody has checked yet.

    Raises
    ------
    BoxError
        If it is no box.
    """
    if not _SIGNED < len(box) <= MOST_BYTES:
        raise BoxError(f"{len(box)} bytes are no box")
    kind, *fields = _HEADER.unpack_from(box)
    if kind != _KIND:
        raise BoxError("this is no box of this version")
    return BoxHeader(*fields)


def header_for(box: bytes, run: int, server_round: int, node: int, length: int) -> BoxHeader:
    """Return a box's header, or raise BoxError if it is for another run, round, node or length."""
    header = read_header(box)
    wanted = {"run": run, "round": server_round, "node": node, "length": length}
    for (name, value), found in zip(wanted.items(), header, strict=False):
        if found != value:
            raise BoxError(f"the box is for {name} {found}, not {value}")
    return header


def check_signature(box: bytes, key: VerifyingKey) -> None:
    """Raise BoxError unless a box is signed with a key, and names it."""
    if read_header(box).signer != key_digest(key) or not is_signed(
        key, box[_SIGNED:], box[:_SIGNED]
    ):
        raise BoxError("the box is not signed by the member that it names")


def open_box(box: bytes, key: KeeperKey) -> bytes:
    """Return the seed in a box, whose signature is the caller's to check.

    Raises
    ------
    BoxError
        If the box was not sealed for this keeper, or was changed.
    """
    header, point, sealed = box[: _HEADER.size], box[_HEADER.size : _POINT], box[_POINT:_SIGNED]
    try:
        shared = key.exchange(X25519PublicKey.from_public_bytes(point))
        return _cipher(shared, point, key.public_key()).decrypt(bytes(12), sealed, header)
    except (InvalidTag, ValueError) as error:  # ValueError: a point of low order.
        raise BoxError("the box was not sealed for this keeper") from error


def read_keeper_key(text: str, name: str) -> X25519PublicKey:
    """Return the keeper's public key from its 64 hexadecimal digits.

    Raises
    ------
    ConfigError
        If the text is something else, by ``name``.
    """
    try:
        return X25519PublicKey.from_public_bytes(bytes.fromhex(text))
    except ValueError as error:
        raise ConfigError(
            f"{name} = {text!r}; allowed: a keeper's public key, 64 hexadecimal digits"
        ) from error


def _cipher(shared: bytes, point: bytes, keeper: X25519PublicKey) -> ChaCha20Poly1305:
    """Return the cipher of one box; its key is used once, so its nonce may be zero."""
    salt = point + keeper.public_bytes_raw()
    derive = HKDF(hashes.SHA256(), 32, salt, b"fedif-flower box 1")
    return ChaCha20Poly1305(derive.derive(shared))
