"""What a member signs of a round: the model that it received, and the update that it sends."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedif_consortium.evidence.cells import Hex, Signed
from fedif_consortium.evidence.keys import SigningKey
from fedif_flower.messages.arrays import arrays_of, view_array

SIGNATURE_RECORD = "signature"  # In a reply, beside the arrays.


class SignedUpdate(Signed):
    """What a member says of its part in a round.

    Attributes
    ----------
    asked_in : int
        The round in which it was asked.
    node_id : int
        Its node id.
    examples : float
        The examples that it claims.
    received, sent : bytes
        :func:`arrays_digest` of the model it got and of what it sends back.
    head : bytes
        The end of the chain of the run's records, as far as it was told; empty: of nothing.
    """

    kind = "update"
    signs = ("run", "asked_in", "node_id", "examples", "received", "sent", "head")

    asked_in: int
    node_id: int
    examples: float
    received: Hex
    sent: Hex
    head: Hex = b""


def arrays_digest(arrays: Iterable[tuple[str, NDArray[np.generic]]]) -> bytes:
    """Return the SHA-256 of named arrays: names, types, shapes and values, little-endian.

    The order in which they are given does not count, nor how they lie in memory.
    """
    digest = hashlib.sha256()
    for name, values in sorted(arrays, key=lambda item: item[0]):
        dtype = values.dtype.newbyteorder("<")
        digest.update(json.dumps([name, dtype.str, list(values.shape)]).encode() + b"\n")
        digest.update(values.astype(dtype, copy=False).reshape(-1).view(np.uint8).data)
    return digest.digest()


def record_digest(arrays: ArrayRecord) -> bytes:
    """Return the digest of a record's arrays, however they are serialised.

    Raises
    ------
    ReplyError
        If an array is none of NumPy's.
    """
    return arrays_digest((str(name), view_array(array)) for name, array in arrays.items())


def sign_reply(
    content: RecordDict, received: ArrayRecord, key: SigningKey, **about: Any
) -> SignedUpdate:
    """Sign what a reply holds, and add the signature; ``about`` are run, round, node and head.

    Raises
    ------
    ReplyError
        If there are no arrays in it, or in what was received, that can be read.
    """
    signed = SignedUpdate.by(
        key,
        examples=claimed_examples(content),
        received=record_digest(received),
        sent=record_digest(arrays_of(content)),
        **about,
    )
    values = signed.model_dump(include={"key", "signature", "received", "sent", "head"})
    # A record has no empty texts.
    content[SIGNATURE_RECORD] = ConfigRecord({n: value for n, value in values.items() if value})
    return signed


def claimed_examples(content: RecordDict) -> float:
    """Return what a reply says of its examples; NaN: nothing."""
    for record in content.values():
        if isinstance(record, MetricRecord):
            value = record.get("num-examples")
            if isinstance(value, int | float):
                return float(value)
    return float("nan")
