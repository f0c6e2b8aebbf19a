"""What is signed, as tables and JSON have it: bytes in hex or base64, read by types."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

from cryptography.hazmat.primitives.serialization import load_der_public_key
from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, ValidationError

from fedif_consortium.evidence.keys import SigningKey, VerifyingKey, is_signed, public_der, sign
from fedif_flower.errors import EvidenceError

_URL_SAFE = str.maketrans("-_", "+/")  # DSSE allows both alphabets.


def _from_hex(value: object) -> object:
    return bytes.fromhex(value) if isinstance(value, str) else value


def _from_base64(value: object) -> object:
    if not isinstance(value, str):
        return value
    return base64.b64decode(value.translate(_URL_SAFE), validate=True)


Hex = Annotated[bytes, BeforeValidator(_from_hex), PlainSerializer(bytes.hex)]
Base64 = Annotated[
    bytes, BeforeValidator(_from_base64), PlainSerializer(lambda v: base64.b64encode(v).decode())
]


class Signed(BaseModel):
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

    model_config = ConfigDict(frozen=True)
    kind: ClassVar[str]
    signs: ClassVar[tuple[str, ...]]

    run: str
    key: Hex
    signature: Hex

    @classmethod
    def by(cls, key: SigningKey, **said: Any) -> Self:
        """Sign what is said, by the attributes' names."""
        unsigned = cls(key=public_der(key.public_key()), signature=b"", **said)
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
        said = self.model_dump(include=set(self.signs))
        return f"fedif-flower {self.kind}\n{json.dumps(said)}".encode()

    def check(self) -> None:
        """Raise EvidenceError unless the key is of a kind that members have, and has signed."""
        try:
            key = load_der_public_key(self.key)
        except Exception as error:  # another kind, a curve that is not known, no key at all
            raise EvidenceError("it is signed with no public key") from error
        if not isinstance(key, VerifyingKey):
            raise EvidenceError("it is signed with a key of another kind")
        if not is_signed(key, self.signature, self.to_bytes()):
            raise EvidenceError("the signature does not fit")


def first_of(error: Exception) -> str:
    """Return the first thing that is wrong, in one line."""
    if not isinstance(error, ValidationError):
        return str(error)
    wrong = error.errors()[0]
    where = ".".join(map(str, wrong["loc"]))
    return f"{where} = {wrong['input']!r:.80}: {wrong['msg']}"
