"""What a member signs of a round: the model that it received, and the update that it sends."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.serialization import load_der_public_key
from numpy.typing import NDArray

from fedif_consortium.evidence.keys import (
    SigningKey,
    VerifyingKey,
    is_signed,
    public_der,
    public_of,
    sign,
)
from fedif_flower.errors import EvidenceError

_KIND = b"fedif-flower update 2\n"


def arrays_digest(arrays: Iterable[tuple[str, NDArray[np.generic]]]) -> bytes:
    """Return the SHA-256 of named arrays: names, types, shapes and values, little-endian.

    The order in which they are given does not count, nor how they lie in memory.
    """
    digest = hashlib.sha256()
    for name, values in sorted(arrays, key=lambda item: item[0]):
        dtype = values.dtype.newbyteorder("<")
        about = [name, dtype.str, list(values.shape)]
        digest.update(json.dumps(about).encode() + b"\n")
        flat = values.astype(dtype, copy=False).reshape(-1)
        digest.update(flat.view(np.uint8).data)
    return digest.digest()


@dataclass(frozen=True)
class UpdateStatement:
    """What a member says of its part in a round.

    Attributes
    ----------
    run : str
        The run's id, drawn by the server.
    server_round : int
        The round in which it was asked.
    node : int
        Its node id.
    examples : float
        The examples that it claims.
    received, sent : bytes
        :func:`arrays_digest` of the model it got and of what it sends back.
    head : bytes
        The end of the chain of the run's records, as far as it was told; empty: of nothing.
    """

    run: str
    server_round: int
    node: int
    examples: float
    received: bytes
    sent: bytes
    head: bytes = b""

    def to_bytes(self) -> bytes:
        """Return what is signed."""
        content = {
            "examples": float(self.examples),
            "head": self.head.hex(),
            "node": self.node,
            "received": self.received.hex(),
            "round": self.server_round,
            "run": self.run,
            "sent": self.sent.hex(),
        }
        return _KIND + json.dumps(content, sort_keys=True).encode()


@dataclass(frozen=True)
class SignedUpdate:
    """A statement, the public key of who signed it (DER), and the signature."""

    statement: UpdateStatement
    key: bytes
    signature: bytes

    @classmethod
    def by(cls, key: SigningKey, statement: UpdateStatement) -> SignedUpdate:
        """Sign a statement."""
        return cls(statement, public_der(public_of(key)), sign(key, statement.to_bytes()))

    @classmethod
    def read(cls, run: str, cells: Mapping[str, Any]) -> SignedUpdate:
        """Return what a table, or JSON, says was signed.

        Raises
        ------
        ValueError, KeyError, TypeError
            If it says nothing of the kind.
        """
        statement = UpdateStatement(
            run=run,
            server_round=int(cells["asked_in"]),
            node=int(cells["node_id"]),
            examples=float(cells["examples"]),
            received=bytes.fromhex(cells["received"]),
            sent=bytes.fromhex(cells["sent"]),
            head=bytes.fromhex(cells["head"]),
        )
        return cls(statement, bytes.fromhex(cells["key"]), bytes.fromhex(cells["signature"]))

    def cells(self) -> dict[str, Any]:
        """Return what a table, or JSON, has of it: all but the run."""
        said = self.statement
        return {
            "node_id": said.node,
            "asked_in": said.server_round,
            "examples": said.examples,
            "received": said.received.hex(),
            "sent": said.sent.hex(),
            "head": said.head.hex(),
            "key": self.key.hex(),
            "signature": self.signature.hex(),
        }

    def check(self) -> None:
        """Raise EvidenceError unless the key has signed the statement."""
        if not is_signed(read_der(self.key), self.signature, self.statement.to_bytes()):
            raise EvidenceError("the signature does not fit")


def read_der(data: bytes) -> VerifyingKey:
    """Return a public key of a kind that members have.

    Raises
    ------
    EvidenceError
        If it is none.
    """
    try:
        key = load_der_public_key(data)
    except Exception as error:  # another kind, a curve that is not known, no key at all
        raise EvidenceError("it is signed with no public key") from error
    if not isinstance(key, VerifyingKey):
        raise EvidenceError("it is signed with a key of another kind")
    return key
