"""What server and member exchange in a masked round: terms, a masked vector, and a box.

A *box* is a message from a member to the keeper, which the server passes on and cannot read. It has

- a header in clear: run, round, node, length and SHA-256 of the masked vector, hashes of what the
  member was sent, and the signer;
- the seed of the mask, sealed for the keeper's public key;
- the member's signature of both.

The seed is sealed with HPKE (RFC 9180), with the header as its info. So nobody can put the seed
under another header.
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

TERMS_KEY = "masking"  # A key of a message's config, with MaskingTerms as JSON.
VECTOR = "masked-update"  # The one array of a masked reply, uint64 [d].
MASK_RECORD = "mask"  # The record beside the array, with the two values below.
BOX = "box"
LENGTH = "length"
MOST_BYTES = 512  # The largest box that is read.
_KIND = b"fedifbx3"  # The first bytes of a box, which name the version of its format.
_HEADER = struct.Struct("<8sQIQQ32s32s32s32s")  # _KIND, and the fields of BoxHeader.
# The signed bytes: the header, HPKE's public key (a point of X25519), the sealed seed, and its tag.
_SIGNED = _HEADER.size + 32 + SEED_BYTES + 16
_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)


class MaskingTerms(BaseModel):
    """How members mask a round's updates, as the server tells them.

    Attributes
    ----------
    run : int
        The run's id at the keeper, which each process of a run draws anew.
    server_round : int
        The round.
    keys : list of str
        The names of the trained parameters, in the order of the vector ``[d]``.
    max_length : float
        Members shorten longer updates to this length; infinite: no update is shortened.
    trial_secret : str
        In a trial run, the secret in hex from which all keys are made. Empty if there is a real
        keeper, whose key is in each member's own node config.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")
    run: int
    server_round: int = 0
    keys: list[str]
    max_length: float = math.inf
    trial_secret: str = ""

    @property
    def mode(self) -> str:
        """The ``masking.mode`` of a run that sends these terms."""
        if self.trial_secret:
            return "trial"
        return "keeper"

    @classmethod
    def read(cls, config: ConfigRecord) -> MaskingTerms | None:
        """Return the terms in a message's config; ``None`` if updates are not masked.

        Raises
        ------
        ValueError
            If the terms are malformed.
        """
        if TERMS_KEY not in config:
            return None
        return cls.model_validate_json(str(config[TERMS_KEY]))


class BoxHeader(NamedTuple):
    """The header of a box, which is in clear and signed.

    Attributes
    ----------
    run : int
        The run's id at the keeper, in 0 ... 2**64 - 1.
    server_round : int
        The round, in 1 ... 2**32 - 1.
    node : int
        The member's node id, in 0 ... 2**64 - 1.
    length : int
        d, the number of entries of the masked vector.
    digest : bytes
        The SHA-256 of the masked vector, 8 bytes an entry, little-endian.
    instructions : bytes
        The SHA-256 of model and settings that the server sent. By it the keeper sees whether all
        members of a round got the same.
    model : bytes
        The SHA-256 of the parameters with which the member began to train. By it the keeper sees
        whether the server asks about a model again, whatever run and round it names.
    signer : bytes
        The SHA-256 of the signer's public key.
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
        y, ``[d]`` of uint64: the masked update, which is uniformly random without the seed.
    box : bytes
        The box with the seed.
    length : float
        The length (L2 norm) of the encoded update. The server checks it against a sketch.
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
    r"""Mask an update u with a fresh seed s, :math:`y = q_{28}(u) + \mathrm{mask}(s)`.

    See :mod:`~fedif_consortium.masking.ring` for :math:`q_{28}`, the encoding in fixed point.

    Parameters
    ----------
    update : ndarray
        u, ``[d]``, finite, shorter than 2**10.
    keeper : X25519PublicKey
        The public key of the keeper that the member trusts.
    key : private key
        The member's own key, which signs the box.
    terms : MaskingTerms
        The round's terms; the box is bound to their run and round.
    node : int
        The member's node id; the box is bound to it.
    instructions : bytes
        The SHA-256 of model and settings that the server sent. The keeper lets only members with
        the most frequent value take part.
    model : bytes
        The SHA-256 of the parameters with which the member began to train.

    Raises
    ------
    MaskingError
        If the update is not finite, or too long.
    """
    with np.errstate(over="ignore"):
        is_short = bool(np.linalg.norm(update) < ring.LONGEST)  # False for NaN.
    if not is_short:  # The message has no figure of the update, since the server reads it.
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
    """Return a box with a seed of 32 bytes, sealed for the keeper and signed with ``key``."""
    packed_header = _HEADER.pack(_KIND, *header)
    sealed_seed = _SUITE.encrypt(seed, keeper, packed_header)
    content = packed_header + sealed_seed
    return content + keys.sign(key, content)


def read_header(box: bytes) -> BoxHeader:
    """Return the header of a box; its signature is not checked.

    Raises
    ------
    ReplyError
        If the bytes are no box.
    """
    has_length = _SIGNED < len(box) <= MOST_BYTES
    if not has_length or not box.startswith(_KIND):
        raise ReplyError(f"{len(box)} bytes are no box of this version")
    _, *fields = _HEADER.unpack_from(box)
    return BoxHeader(*fields)


def header_for(box: bytes, run: int, server_round: int, node: int, length: int) -> BoxHeader:
    """Return a box's header; raise ReplyError if it has another run, round, node or length d."""
    header = read_header(box)
    stated = (header.run, header.server_round, header.node, header.length)
    expected = (run, server_round, node, length)
    if stated != expected:
        raise ReplyError(f"the box is for run, round, node, length {stated}, not {expected}")
    return header


def open_box(box: bytes, member: VerifyingKey, key: X25519PrivateKey) -> bytes:
    """Return the seed in a member's box.

    Parameters
    ----------
    box : bytes
        The box.
    member : public key
        The member's key.
    key : X25519PrivateKey
        The keeper's key.

    Raises
    ------
    ReplyError
        If the member did not sign the box, or it was not sealed for this keeper.
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
    """Return the private keys of a trial run: its keeper's, and that of all its members.

    ``secret`` is 32 bytes in hex.
    """
    secret_bytes = bytes.fromhex(secret)
    opening_key = X25519PrivateKey.from_private_bytes(secret_bytes)
    signing_key = Ed25519PrivateKey.from_private_bytes(secret_bytes)
    return opening_key, signing_key
