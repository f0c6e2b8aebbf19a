"""What is signed, as tables and JSON have it: bytes in hex or base64, read by types."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, ValidationError

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
    """Something of a run that somebody signed, with the public key and the signature."""

    model_config = ConfigDict(frozen=True)

    run: str
    key: Hex
    signature: Hex

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


def first_of(error: Exception) -> str:
    """Return the first thing that is wrong, in one line."""
    if not isinstance(error, ValidationError):
        return str(error)
    wrong = error.errors()[0]
    where = ".".join(map(str, wrong["loc"]))
    return f"{where} = {wrong['input']!r:.80}: {wrong['msg']}"
