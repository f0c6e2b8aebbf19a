"""What passes between server and member in a masked run: terms, a masked vector, and a box.

A box tells the keeper, through the server, what the server cannot read. It has a header in clear
(run, round, node, length and SHA-256 of the masked vector, what the member was sent, who signs),
the seed sealed for the keeper's public key, and the member's signature of both. It is sealed with
HPKE (RFC 9180) and the header as its info, so nobody can put a seed under another header.
"""

from __future__ import annotations

import math
import secrets
import struct
from typing import NamedTuple

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from flwr.app import ConfigRecord
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from fedif_consortium.evidence import keys
from fedif_consortium.evidence.keys import SigningKey, VerifyingKey
from fedif_consortium.masking import ring
from fedif_consortium.masking.ring import SEED_BYTES, UPDATE_BITS, Ring
from fedif_flower.errors import MaskingError, ReplyError

TERMS_KEY = "masking"
VECTOR = "masked-update"  # The one array of a masked reply, uint64 [d].
MASK_RECORD = "mask"  # The record beside it, with the box and the length.
BOX = "box"
LENGTH = "length"
MOST_BYTES = 512  # Of a box: more is read from nobody.
_KIND = b"fedifbx3"
_HEADER = struct.Struct("<8sQIQQ32s32s32s32s")
_SIGNED = _HEADER.size + 32 + SEED_BYTES + 16  # With a point of X25519, the seed and its tag.
_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)


class MaskingTerms(BaseModel):
    """How a round's updates are masked.

    Attributes
    ----------
    run : int
        The run as the keeper knows it, drawn anew for each process of a run.
    server_round : int
        The round.
    keys : list of str
        The trained parameters, in the order of the vector [d].
    max_length : float
        Longer updates are shortened to it; infinite: none is.
    trial_secret : str
        Of a trial run, in hex: what all its keys are made of. Empty where there is a keeper, whose
        key is in each member's own node config.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")
    run: int
    server_round: int = 0
    keys: list[str]
    max_length: float = math.inf
    trial_secret: str = ""

    @property
    def mode(self) -> str:
        """The ``masking.mode`` of a run that sends them."""
        if self.trial_secret:
            return "trial"
        return "keeper"

    @classmethod
    def read(cls, config: ConfigRecord) -> MaskingTerms | None:
        """Return what the server sent, :data:`TERMS_KEY`; ``None``: updates are not masked."""
        if TERMS_KEY not in config:
            return None
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
    model : bytes
        SHA-256 of the parameters that the member trained from. By it the keeper sees that the
        server asks about a model again, whatever run and round it names.
    signer : bytes
        SHA-256 of the public key whose holder signed.
    """

    run: int
    server_round: int
    node: int
    length: int
    digest: bytes
    instructions: bytes
    model: bytes
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
    terms: MaskingTerms,
    node: int,
    instructions: bytes = bytes(32),
    model: bytes = bytes(32),
) -> MaskedUpdate:
    r"""Mask an update with a fresh seed, :math:`y = q_{28}(u) + \mathrm{mask}(s)`.

    Parameters
    ----------
    update : ndarray
        u, ``[d]``, finite, shorter than 2**10.
    keeper : X25519PublicKey
        The public key of the keeper whom the member trusts.
    key : SigningKey
        The member's own.
    terms : MaskingTerms
        The box is bound to their run and round.
    node : int
        The member's node; the box is bound to it.
    instructions : bytes
        SHA-256 of what the server sent, model and settings: the keeper opens no box of a member who
        got another one than most. Zeros say nothing.
    model : bytes
        SHA-256 of the parameters that the update was trained from.

    Raises
    ------
    MaskingError
        If the update is not finite, or too long.
    """
    with np.errstate(over="ignore"):
        is_short = bool(np.linalg.norm(update) < ring.LONGEST)  # False for NaN.
    if not is_short:  # Said without a figure: the server reads it.
        raise MaskingError(f"the update is not finite, or not shorter than {ring.LONGEST:g}")
    encoded = ring.encode(update, UPDATE_BITS)
    length = float(np.linalg.norm(ring.decode(encoded, UPDATE_BITS)))
    seed = secrets.token_bytes(SEED_BYTES)
    encoded += ring.mask_of(seed, len(encoded))
    header = BoxHeader(
        run=terms.run,
        server_round=terms.server_round,
        node=node,
        length=len(encoded),
        digest=ring.digest(encoded),
        instructions=instructions,
        model=model,
        signer=keys.key_digest(keys.public_of(key)),
    )
    box = seal(header, seed, keeper, key)
    return MaskedUpdate(encoded, box, length)


def seal(header: BoxHeader, seed: bytes, keeper: X25519PublicKey, key: SigningKey) -> bytes:
    """Return a seed of 32 bytes in a box for the keeper alone; ``key`` is the signer's."""
    packed_header = _HEADER.pack(_KIND, *header)
    sealed_seed = _SUITE.encrypt(seed, keeper, packed_header)
    content = packed_header + sealed_seed
    return content + keys.sign(key, content)


def read_header(box: bytes) -> BoxHeader:
    """Return what a box says that it belongs to, which nobody has checked yet.

    Raises
    ------
    ReplyError
        If it is no box.
    """
    has_length = _SIGNED < len(box) <= MOST_BYTES
    if not has_length or not box.startswith(_KIND):
        raise ReplyError(f"{len(box)} bytes are no box of this version")
    _, *fields = _HEADER.unpack_from(box)
    return BoxHeader(*fields)


def header_for(box: bytes, run: int, server_round: int, node: int, length: int) -> BoxHeader:
    """Return a box's header, or raise ReplyError: it is for another run, round, node or length."""
    header = read_header(box)
    stated = (header.run, header.server_round, header.node, header.length)
    expected = (run, server_round, node, length)
    if stated != expected:
        raise ReplyError(f"the box is for run, round, node, length {stated}, not {expected}")
    return header


def open_box(box: bytes, member: VerifyingKey, key: X25519PrivateKey) -> bytes:
    """Return the seed in a member's box.

    Raises
    ------
    ReplyError
        If the member did not sign it, or it was not sealed for this keeper.
    """
    names_member = read_header(box).signer == keys.key_digest(member)
    signed_content = box[:_SIGNED]
    signature = box[_SIGNED:]
    if not names_member or not keys.is_signed(member, signature, signed_content):
        raise ReplyError("the box is not signed by the member that it names")
    packed_header = signed_content[: _HEADER.size]
    sealed_seed = signed_content[_HEADER.size :]
    try:
        return _SUITE.decrypt(sealed_seed, key, packed_header)
    except InvalidTag as error:
        raise ReplyError("the box was not sealed for this keeper") from error


def trial_keys(secret: str) -> tuple[X25519PrivateKey, Ed25519PrivateKey]:
    """Return the keys of a trial run: its keeper's, and the one that all members sign with."""
    secret_bytes = bytes.fromhex(secret)
    opening_key = X25519PrivateKey.from_private_bytes(secret_bytes)
    signing_key = Ed25519PrivateKey.from_private_bytes(secret_bytes)
    return opening_key, signing_key
