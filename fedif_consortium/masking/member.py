"""The member's side: an update becomes a masked vector and a box."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from numpy.typing import NDArray

from fedif_consortium.evidence.keys import SigningKey, key_digest, public_of
from fedif_consortium.masking.boxes import BoxHeader, seal, vector_digest
from fedif_consortium.masking.ring import (
    LONGEST,
    SEED_BYTES,
    UPDATE_BITS,
    Ring,
    decode,
    encode,
    mask_of,
)
from fedif_flower.errors import MaskingError


@dataclass(frozen=True)
class MaskedUpdate:
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
