r"""Signed envelopes in the public format DSSE 1.0; several parties can sign one envelope.

.. math:: \sigma = \text{Sign}(\text{"DSSEv1"} \,\|\, |t| \,\|\, t \,\|\, |c| \,\|\, c)

for content c of type t. The lengths in bytes, |t| and |c|, are written in decimal digits, and a
space separates the five parts. A key's id is the SHA-256 of its public half (DER,
SubjectPublicKeyInfo) in hex.

References
----------
https://github.com/secure-systems-lab/dsse, protocol.md and envelope.md, version 1.0.2.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer
from pydantic.alias_generators import to_camel

from fedif_consortium.evidence.keys import SigningKey, VerifyingKey, is_signed, key_id, sign
from fedif_consortium.evidence.signed import first_error
from fedif_flower.errors import EvidenceError
from fedif_flower.foreign import parse_json

MOST_SIGNATURES = 1000
_URL_SAFE = str.maketrans("-_", "+/")  # DSSE allows both alphabets of base64.


def _from_base64(value: object) -> object:
    if not isinstance(value, str):
        return value
    return base64.b64decode(value.translate(_URL_SAFE), validate=True)


Base64 = Annotated[
    bytes,
    BeforeValidator(_from_base64),
    PlainSerializer(lambda content: base64.b64encode(content).decode()),
]


class Signature(BaseModel):
    """A signature, and the id of the key that claims to have made it (empty: no key is named)."""

    model_config = ConfigDict(frozen=True)

    keyid: str = ""
    sig: Base64


class Envelope(BaseModel):
    """Content of some type, with signatures; each signature covers the content alone.

    Attributes
    ----------
    payload_type : str
        The content's type, such as ``application/vnd.in-toto+json``.
    payload : bytes
        The content.
    signatures : tuple of Signature
        At most 1,000. No two signatures name the same key; a signature may name no key.
    """

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True)

    payload_type: str
    payload: Base64
    signatures: Annotated[tuple[Signature, ...], Field(max_length=MOST_SIGNATURES)] = ()

    def signed_bytes(self) -> bytes:
        """Return the bytes that are signed: the pre-authentication encoding of DSSE."""
        kind = self.payload_type.encode()
        return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(self.payload), self.payload)

    def signed_by(self, key: SigningKey) -> Envelope:
        """Return the envelope with one more signature, made with ``key``.

        Raises
        ------
        EvidenceError
            If this key has signed the envelope already, or it has 1,000 signatures.
        """
        return self.with_signature(key_id(key.public_key()), sign(key, self.signed_bytes()))

    def with_signature(self, keyid: str, sig: bytes) -> Envelope:
        """Return the envelope with one more signature; whether it is genuine is not checked.

        Raises
        ------
        EvidenceError
            If the envelope has a signature that names this key, or 1,000 signatures.
        """
        key_ids = [signature.keyid for signature in self.signatures]
        if keyid and keyid in key_ids:
            raise EvidenceError(f"there is a signature with key {keyid:.16}... already")
        if len(self.signatures) >= MOST_SIGNATURES:  # Nobody could read the envelope then.
            raise EvidenceError(f"there are {MOST_SIGNATURES:,} signatures already: no more may be")
        signatures = (*self.signatures, Signature(keyid=keyid, sig=sig))
        return self.model_copy(update={"signatures": signatures})

    def signer(self, signature: Signature, keys: Mapping[str, VerifyingKey]) -> str:
        """Return the name of the key that made a signature; empty if none of ``keys`` made it.

        Parameters
        ----------
        signature : Signature
            A signature of this envelope.
        keys : mapping of str to public key
            The public keys by name.

        Raises
        ------
        EvidenceError
            If the signature names one of the keys, but that key did not make it.
        """
        content = self.signed_bytes()
        # A key id is only a hint: nobody signs it, and other tools compute it in other ways. So
        # the key that it names is tried first, and then all others.
        names = sorted(keys, key=lambda name: key_id(keys[name]) != signature.keyid)
        for name in names:
            key = keys[name]
            if is_signed(key, signature.sig, content):
                return name
            if key_id(key) == signature.keyid:
                raise EvidenceError(f"the signature of {name} does not fit the content")
        return ""

    def to_bytes(self) -> bytes:
        """Return the envelope as JSON; equal envelopes give equal bytes."""
        text = json.dumps(self.model_dump(by_alias=True), indent=2)
        return f"{text}\n".encode()


def read_envelope(content: bytes, name: str) -> Envelope:
    """Return the envelope in some JSON, which may be hostile; error messages call it ``name``.

    Raises
    ------
    EvidenceError
        If the JSON is no envelope, or two of its signatures name one key, or it has more than
        1,000 signatures.
    """
    try:
        read = Envelope.model_validate(parse_json(content))
    except ValueError as error:
        raise EvidenceError(f"{name} is no signed envelope ({first_error(error)})") from error
    envelope = read.model_copy(update={"signatures": ()})
    for signature in read.signatures:
        envelope = envelope.with_signature(signature.keyid, signature.sig)
    return envelope
