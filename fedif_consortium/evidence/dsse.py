r"""Envelopes that several parties sign, as others read them: DSSE 1.0.

.. math:: \sigma = \text{Sign}(\text{"DSSEv1"} \,\|\, |t| \,\|\, t \,\|\, |c| \,\|\, c)

for content c of type t, with lengths in decimal digits and a space between any two. A key's id is
the SHA-256 of its public half (DER, SubjectPublicKeyInfo) in hex.

References
----------
https://github.com/secure-systems-lab/dsse, protocol.md and envelope.md, version 1.0.2.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fedif_consortium.evidence.keys import (
    SigningKey,
    VerifyingKey,
    is_signed,
    key_id,
    public_of,
    sign,
)
from fedif_flower.errors import EvidenceError
from fedif_flower.foreign import parse_json

MOST_SIGNATURES = 1000
_URL_SAFE = str.maketrans("-_", "+/")  # The standard allows both alphabets.


@dataclass(frozen=True)
class Signature:
    """A signature, and the id of the key that is said to have made it."""

    keyid: str
    sig: bytes


@dataclass(frozen=True)
class Envelope:
    """Content of some type, with the signatures that stand side by side.

    Attributes
    ----------
    payload_type : str
        How the content is to be read.
    payload : bytes
        The content.
    signatures : tuple of Signature
        No two name the same key; one need not name any.
    """

    payload_type: str
    payload: bytes
    signatures: tuple[Signature, ...] = ()

    def signed_bytes(self) -> bytes:
        """Return what is signed: the pre-authentication encoding."""
        kind = self.payload_type.encode()
        return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(self.payload), self.payload)

    def signed_by(self, key: SigningKey) -> Envelope:
        """Return the envelope with one more signature.

        Raises
        ------
        EvidenceError
            If this key has signed it already.
        """
        return self.with_signature(
            Signature(key_id(public_of(key)), sign(key, self.signed_bytes()))
        )

    def with_signature(self, signature: Signature) -> Envelope:
        """Return the envelope with one more signature, which is not checked.

        Raises
        ------
        EvidenceError
            If there is one of this key.
        """
        if signature.keyid and signature.keyid in [other.keyid for other in self.signatures]:
            raise EvidenceError(f"there is a signature with key {signature.keyid:.16}... already")
        return replace(self, signatures=(*self.signatures, signature))

    def signer(self, signature: Signature, keys: Mapping[str, VerifyingKey]) -> str:
        """Return by which of these keys a signature is; empty: by none of them.

        Parameters
        ----------
        signature : Signature
            Of this envelope.
        keys : mapping of str to public key
            By what their holders are called.

        Raises
        ------
        EvidenceError
            If it names one of the keys, and is not by it.
        """
        content = self.signed_bytes()
        for name, key in keys.items():
            if key_id(key) == signature.keyid:
                if not is_signed(key, signature.sig, content):
                    raise EvidenceError(f"the signature of {name} does not fit the content")
                return name
        # An id is a hint that nobody signed: other tools make them in other ways.
        fits = (name for name, key in keys.items() if is_signed(key, signature.sig, content))
        return next(fits, "")

    def to_bytes(self) -> bytes:
        """Return it as JSON, always the same for the same envelope."""
        content = {
            "payloadType": self.payload_type,
            "payload": base64.b64encode(self.payload).decode(),
            "signatures": [
                {"keyid": one.keyid, "sig": base64.b64encode(one.sig).decode()}
                for one in self.signatures
            ],
        }
        return (json.dumps(content, indent=2) + "\n").encode()


def read_envelope(content: bytes, name: str) -> Envelope:
    """Read an envelope's JSON, whoever wrote it; ``name`` is what an error calls it.

    Raises
    ------
    EvidenceError
        If it is none, two signatures are of one key, or there are more than 1,000.
    """
    try:
        values: dict[str, Any] = parse_json(content)
        found = Envelope(_text(values["payloadType"]), _decoded(values["payload"]))
        if len(values["signatures"]) > MOST_SIGNATURES:
            raise ValueError(f"more than {MOST_SIGNATURES} signatures")
        for one in values["signatures"]:
            signature = Signature(_text(one.get("keyid") or ""), _decoded(one["sig"]))
            found = found.with_signature(signature)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise EvidenceError(f"{name} is no signed envelope ({error!r:.80})") from error
    return found


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value


def _decoded(value: object) -> bytes:
    return base64.b64decode(_text(value).translate(_URL_SAFE), validate=True)
