"""What is signed of a run: by a member, of the update that it sends; by the server, of its records.

Tables and JSON have bytes in hex; they are read by types.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Self

import numpy as np
from cryptography.hazmat.primitives.serialization import load_der_public_key
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray
from pydantic import ValidationError

from fedif_consortium.evidence.attempts import AgreedRun, Hex
from fedif_consortium.evidence.keys import SigningKey, is_allowed, is_signed, public_der, sign
from fedif_flower.errors import EvidenceError
from fedif_flower.foreign import refused_as
from fedif_flower.messages.arrays import arrays_of, view_array

SIGNATURE_RECORD = "signature"  # In a reply, beside the arrays.
TERMS = ("run", *AgreedRun.model_fields)  # Whatever is signed is of one attempt at one run.


class Signed(AgreedRun):
    """Something of a run that somebody signed, with the public key (DER) and the signature.

    Attributes
    ----------
    run : str
        The run's id, drawn by the server.
    kind : str
        What it is, in the bytes that are signed.
    signs : tuple of str
        Which attributes are signed.
    """

    kind: ClassVar[str]
    signs: ClassVar[tuple[str, ...]]

    run: str
    key: Hex
    signature: Hex

    @classmethod
    def by(cls, key: SigningKey, **values: Any) -> Self:
        """Sign values, by the attributes' names."""
        unsigned = cls(key=public_der(key.public_key()), signature=b"", **values)
        return unsigned.model_copy(update={"signature": sign(key, unsigned.to_bytes())})

    @classmethod
    def read(cls, run: str, cells: Mapping[str, Any]) -> Self:
        """Return what a table, or JSON, says was signed.

        Raises
        ------
        ValueError, TypeError
            If it says nothing of the kind.
        """
        return cls.model_validate({**cells, "run": run})

    def cells(self) -> dict[str, Any]:
        """Return what a table, or JSON, has of it: all but the run."""
        return self.model_dump(exclude={"run"})

    def to_bytes(self) -> bytes:
        """Return what is signed."""
        values = self.model_dump(include=set(self.signs))
        return f"fedif-flower {self.kind}\n{json.dumps(values)}".encode()

    def check(self) -> None:
        """Raise EvidenceError unless the key is of a kind that members have, and has signed."""
        with refused_as(EvidenceError, "it is signed with no public key"):
            key = load_der_public_key(self.key)
        if not is_allowed(key):
            raise EvidenceError("it is signed with a key of another kind")
        if not is_signed(key, self.signature, self.to_bytes()):
            raise EvidenceError("the signature does not fit")


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
    signs = (*TERMS, "asked_in", "node_id", "examples", "received", "sent", "head")

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
    """Sign what a reply holds, and add the signature; ``about`` are run, terms, round, node, head.

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
    record = ConfigRecord()
    values = signed.model_dump(include={"key", "signature", "received", "sent", "head"})
    for name, value in values.items():
        if value:  # A record has no empty texts.
            record[name] = value
    content[SIGNATURE_RECORD] = record
    return signed


def claimed_examples(content: RecordDict) -> float:
    """Return what a reply says of its examples; NaN: nothing."""
    for record in content.values():
        if isinstance(record, MetricRecord):
            value = record.get("num-examples")
            if isinstance(value, int | float):
                return float(value)
    return float("nan")


def first_error(error: Exception) -> str:
    """Return the first thing that is wrong, in one line."""
    if not isinstance(error, ValidationError):
        return str(error)
    wrong = error.errors()[0]
    where = ".".join(map(str, wrong["loc"]))
    return f"{where} = {wrong['input']!r:.80}: {wrong['msg']}"
