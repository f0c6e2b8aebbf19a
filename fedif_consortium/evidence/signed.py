"""What is signed in a run: members sign the updates that they send, the server signs its records.

Signed values are pydantic models. In tables and JSON their bytes stand in hex.
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

SIGNATURE_RECORD = "signature"  # The record of a reply, beside the arrays, with its signature.
TERMS = ("run", *AgreedRun.model_fields)  # Every signature includes these: run and attempt.


class Signed(AgreedRun):
    """Signed values of a run; subclasses say which values.

    Attributes
    ----------
    kind : str
        A word for the kind of values. The signed bytes begin with it, so that a signature for one
        kind does not fit another.
    signs : tuple of str
        The names of the attributes that the signature covers.
    run : str
        The run's id, drawn by the server.
    key : bytes
        The signer's public key (DER).
    signature : bytes
        The signature of :meth:`to_bytes`.
    """

    kind: ClassVar[str]
    signs: ClassVar[tuple[str, ...]]

    run: str
    key: Hex
    signature: Hex

    @classmethod
    def by(cls, key: SigningKey, **values: Any) -> Self:
        """Return ``values``, which are given by the attributes' names, signed with ``key``."""
        unsigned = cls(key=public_der(key.public_key()), signature=b"", **values)
        return unsigned.model_copy(update={"signature": sign(key, unsigned.to_bytes())})

    @classmethod
    def read(cls, run: str, cells: Mapping[str, Any]) -> Self:
        """Return the signed values in a table's row or in JSON; the signature is not checked.

        Raises
        ------
        ValueError, TypeError
            If a value is missing or malformed.
        """
        try:
            return cls.model_validate({**cells, "run": run})
        except ValidationError as error:
            raise ValueError(first_error(error)) from error

    def cells(self) -> dict[str, Any]:
        """Return all attributes but ``run``, as a table's row or JSON has them."""
        return self.model_dump(exclude={"run"})

    def to_bytes(self) -> bytes:
        """Return the bytes that are signed."""
        # The order of the keys is the order in which the fields are declared.
        values = self.model_dump(include=set(self.signs))
        return f"fedif-flower {self.kind}\n{json.dumps(values)}".encode()

    def check(self) -> None:
        """Raise EvidenceError unless the key is of an allowed kind and made the signature."""
        with refused_as(EvidenceError, "it is signed with no public key"):
            key = load_der_public_key(self.key)
        if not is_allowed(key):
            raise EvidenceError("it is signed with a key of another kind")
        if not is_signed(key, self.signature, self.to_bytes()):
            raise EvidenceError("the signature does not fit")


class SignedUpdate(Signed):
    """What a member signs when it sends an update.

    Attributes
    ----------
    asked_in : int
        The round in which the member was asked.
    node_id : int
        Its node id.
    examples : float
        The number of examples that it claims; NaN if it claims none.
    received, sent : bytes
        The :func:`arrays_digest` of the model that it got, and of the model that it sends back.
    head : bytes
        The last head of the run's records that it was told; empty if it was told none.
    """

    kind = "update"
    signs = (*TERMS, "asked_in", "node_id", "examples", "received", "sent", "head")

    asked_in: int
    node_id: int
    examples: float
    received: Hex
    sent: Hex
    head: Hex = b""


Signatures = Mapping[tuple[int, int], SignedUpdate]
"""What members signed, by round and client id."""


def arrays_digest(arrays: Iterable[tuple[str, NDArray[np.generic]]]) -> bytes:
    """Return the SHA-256 of named arrays: of their names, types, shapes and values.

    Values are hashed in little-endian byte order and C order. So the digest depends neither on the
    order of ``arrays`` nor on their layout in memory.
    """
    digest = hashlib.sha256()
    for name, values in sorted(arrays, key=lambda item: item[0]):
        dtype = values.dtype.newbyteorder("<")
        digest.update(json.dumps([name, dtype.str, list(values.shape)]).encode() + b"\n")
        digest.update(values.astype(dtype, copy=False).reshape(-1).view(np.uint8).data)
    return digest.digest()


def record_digest(arrays: ArrayRecord) -> bytes:
    """Return the :func:`arrays_digest` of a record, which does not depend on its serialisation.

    Raises
    ------
    ReplyError
        If an array of the record cannot be read as a NumPy array.
    """
    return arrays_digest((str(name), view_array(array)) for name, array in arrays.items())


def sign_reply(
    content: RecordDict, received: ArrayRecord, key: SigningKey, **about: Any
) -> SignedUpdate:
    """Sign a reply's content, and add the signature to it as a record.

    Parameters
    ----------
    content : RecordDict
        The reply's content, which is changed.
    received : ArrayRecord
        The model that the member received.
    key : private key
        The member's key.
    **about
        The other signed attributes of :class:`SignedUpdate`: ``run``, the fields of
        :class:`~fedif_consortium.evidence.attempts.AgreedRun`, ``asked_in``, ``node_id``, ``head``.

    Raises
    ------
    ReplyError
        If the arrays of the reply, or those that were received, are missing or cannot be read.
    """
    signed = SignedUpdate.by(
        key,
        examples=claimed_examples(content),
        received=record_digest(received),
        sent=record_digest(arrays_of(content)),
        **about,
    )
    record = ConfigRecord()
    # The server fills in the other signed attributes by itself.
    values = signed.model_dump(include={"key", "signature", "received", "sent", "head"})
    for name, value in values.items():
        if value:  # A record holds no empty texts, so an empty head is left out.
            record[name] = value
    content[SIGNATURE_RECORD] = record
    return signed


def claimed_examples(content: RecordDict) -> float:
    """Return the number of examples that a reply claims; NaN if it claims none."""
    for record in content.values():
        if isinstance(record, MetricRecord):
            value = record.get("num-examples")
            if isinstance(value, int | float):
                return float(value)
    return float("nan")


def first_error(error: Exception) -> str:
    """Return an error's text in one line; of a ValidationError, its first finding alone."""
    if isinstance(error, KeyError):
        return f"{error} is missing"
    if not isinstance(error, ValidationError):
        return str(error)
    wrong = error.errors()[0]
    where = ".".join(map(str, wrong["loc"]))
    if wrong["type"] == "missing":  # Its input is the object that lacks the key.
        return f"{where} is missing"
    return f"{where} = {wrong['input']!r:.80}: {wrong['msg']}"
