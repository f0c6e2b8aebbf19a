"""What passes between server and member in a masked run: terms, a masked vector, and a box.

A box tells the keeper, through the server, what the server cannot read: a header in clear (run,
round, node, length and SHA-256 of the masked vector, what the member was sent, who signs), the seed
sealed for the keeper's public key, and the member's signature of both. Sealed with a fresh X25519
key, HKDF-SHA256 and ChaCha20-Poly1305, with the header as associated data: nobody can put a seed
under another header.
"""

from __future__ import annotations

import hashlib
import math
import secrets
import struct
from typing import NamedTuple

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from flwr.app import ConfigRecord
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from fedif_consortium.evidence.keys import (
    SigningKey,
    VerifyingKey,
    is_signed,
    key_digest,
    public_of,
    sign,
)
from fedif_consortium.masking.ring import (
    LONGEST,
    SEED_BYTES,
    UPDATE_BITS,
    Ring,
    decode,
    encode,
    mask_of,
)
from fedif_flower.errors import BoxError, ConfigError, MaskingError
from fedif_flower.foreign import refused_as

TERMS_KEY = "masking"
VECTOR = "masked-update"  # The one array of a masked reply, uint64 [d].
MASK_RECORD, BOX, LENGTH = "mask", "box", "length"  # The record beside it, and what is in it.
MOST_BYTES = 512  # Of a box: more is read from nobody.
_KIND = b"fedifbx1"
_HEADER = struct.Struct("<8sQIQQ32s32s32s")
_POINT = _HEADER.size + 32  # Where the public key of X25519 ends,
_SIGNED = _POINT + SEED_BYTES + 16  # and the seed with its tag: what is signed.


class MaskingTerms(BaseModel):
    """How a round's updates are masked.

    Attributes
    ----------
    run : int
        The run as the keeper knows it, drawn anew for each process of a run.
    keys : list of str
        The trained parameters, in the order of the vector [d].
    max_length : float
        Longer updates are shortened to it; infinite: none is.
    trial_keeper, trial_secret : str
        Of a trial run, in hex: the keeper's public key, and what members' keys are made of. Empty
        where there is a keeper, whose key is in each member's own node config.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")
    run: int
    keys: list[str]
    max_length: float = math.inf
    trial_keeper: str = ""
    trial_secret: str = ""

    def write(self, config: ConfigRecord) -> None:
        """Add it to what the server sends."""
        config[TERMS_KEY] = self.model_dump_json()

    @classmethod
    def read(cls, config: ConfigRecord) -> MaskingTerms | None:
        """Return what the server sent; ``None``: updates are not masked.

        Raises
        ------
        ConfigError
            If it is something else.
        """
        if TERMS_KEY not in config:
            return None
        with refused_as(ConfigError, f"{TERMS_KEY}: the server's terms cannot be read"):
            return cls.model_validate_json(str(config[TERMS_KEY]))


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


class MaskedUpdate(NamedTuple):
    """What a member sends instead of its update.

    Attributes
    ----------
    vector : ndarray
        y, ``[d]`` of uint64: uniformly random to whoever does not know the seed.
    box : bytes
        The seed, sealed for the keeper and signed.
    length : float
        The length of the update as it was encoded. The server checks it against a sketch.
    """

    vector: Ring
    box: bytes
    length: float


def mask_update(
    update: NDArray[np.floating],
    keeper: X25519PublicKey,
    key: SigningKey,
    *,
    run: int,
    server_round: int,
    node: int,
    instructions: bytes = bytes(32),
) -> MaskedUpdate:
    r"""Mask an update with a fresh seed, :math:`y = q_{28}(u) + \mathrm{mask}(s)`.

    Parameters
    ----------
    update : ndarray
        u, ``[d]``, finite, shorter than 2**10.
    keeper : X25519PublicKey
        Of the keeper whom the member trusts.
    key : SigningKey
        The member's own.
    run, server_round, node : int
        What the box is bound to.
    instructions : bytes
        SHA-256 of what the server sent, model and settings: the keeper opens no box of a member who
        got another one than most. Zeros say nothing.

    Raises
    ------
    MaskingError
        If the update is not finite, or too long.
    """
    with np.errstate(over="ignore"):
        is_short = bool(np.linalg.norm(update) < LONGEST)  # False for NaN.
    if not is_short:  # Said without a figure: the server reads it.
        raise MaskingError(f"the update is not finite, or not shorter than {LONGEST:g}")
    encoded = encode(update, UPDATE_BITS, "the update")
    length = float(np.linalg.norm(decode(encoded, UPDATE_BITS)))
    seed = secrets.token_bytes(SEED_BYTES)
    encoded += mask_of(seed, len(encoded))
    digest, signer = vector_digest(encoded), key_digest(public_of(key))
    header = BoxHeader(run, server_round, node, len(encoded), digest, instructions, signer)
    return MaskedUpdate(encoded, seal(header, seed, keeper, key), length)


def vector_digest(vector: Ring) -> bytes:
    """Return the SHA-256 of a vector ``[d]``, 8 bytes an entry, little-endian."""
    return hashlib.sha256(np.ascontiguousarray(vector, "<u8").data).digest()


def seal(header: BoxHeader, seed: bytes, keeper: X25519PublicKey, key: SigningKey) -> bytes:
    """Return a seed of 32 bytes in a box for the keeper alone; ``key`` is the signer's."""
    once = X25519PrivateKey.generate()
    start, point = _HEADER.pack(_KIND, *header), once.public_key().public_bytes_raw()
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
    if not _SIGNED < len(box) <= MOST_BYTES or not box.startswith(_KIND):
        raise BoxError(f"{len(box)} bytes are no box of this version")
    return BoxHeader(*_HEADER.unpack_from(box)[1:])


def header_for(box: bytes, run: int, server_round: int, node: int, length: int) -> BoxHeader:
    """Return a box's header, or raise BoxError if it is for another run, round, node or length."""
    header = read_header(box)
    wanted = {"run": run, "round": server_round, "node": node, "length": length}
    for (name, value), found in zip(wanted.items(), header, strict=False):
        if found != value:
            raise BoxError(f"the box is for {name} {found}, not {value}")
    return header


def open_box(box: bytes, member: VerifyingKey, key: X25519PrivateKey) -> bytes:
    """Return the seed in a member's box.

    Raises
    ------
    BoxError
        If the member did not sign it, or it was not sealed for this keeper.
    """
    signature, signed = box[_SIGNED:], box[:_SIGNED]
    if read_header(box).signer != key_digest(member) or not is_signed(member, signature, signed):
        raise BoxError("the box is not signed by the member that it names")
    header, point, sealed = signed[: _HEADER.size], signed[_HEADER.size : _POINT], signed[_POINT:]
    try:
        shared = key.exchange(X25519PublicKey.from_public_bytes(point))
        return _cipher(shared, point, key.public_key()).decrypt(bytes(12), sealed, header)
    except (InvalidTag, ValueError) as error:  # ValueError: a point of low order.
        raise BoxError("the box was not sealed for this keeper") from error


def trial_key(secret: str, node_id: int) -> Ed25519PrivateKey:
    """Return the key that a member of a trial run signs with, made of the run's secret."""
    seed = hashlib.sha256(f"{secret} {node_id}".encode()).digest()
    return Ed25519PrivateKey.from_private_bytes(seed)


def _cipher(shared: bytes, point: bytes, keeper: X25519PublicKey) -> ChaCha20Poly1305:
    """Return the cipher of one box; its key is used once, so its nonce may be zero."""
    salt = point + keeper.public_bytes_raw()
    derive = HKDF(hashes.SHA256(), 32, salt, b"fedif-flower box 1")
    return ChaCha20Poly1305(derive.derive(shared))
