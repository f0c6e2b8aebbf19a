"""What a statement signs: the hash of every file, and who signed. It names no member.

``manifest.json`` is what all members get, and may compare: one signature covers every page.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedif_flower.errors import StatementError
from fedif_flower.statement.signing import is_signed

FORMAT = "fedif-flower statement 2"
MANIFEST, SIGNATURE = "manifest.json", "manifest.sig"
SALT = "validation-salt.txt"
ACCOUNT, TABLE, PAGE, CHAIN, PAGES = (
    "statement.json",
    "statement.csv",
    "statement.html",
    "chain.csv",
    "members",
)


@dataclass(frozen=True)
class Manifest:
    """The content of ``manifest.json``.

    Attributes
    ----------
    run : str
        What the run is called.
    made : str
        When the statement was made (UTC).
    contact : str
        Whom members may ask; empty: nobody was named.
    public_key : str
        Of whoever signed, 32 bytes in hex.
    chain : str
        The last hash of the chain.
    head : str
        Lines and root of the tree that members have receipts of; empty: there are none.
    settings, validation, code : str
        Hashes of what can change a result, of the validation set, of the package's source.
    made_with : str
        Hash of the package's source that made the statement.
    files : mapping of str to str
        SHA-256 of every file, by its path below the run's folder.
    """

    run: str
    made: str
    contact: str
    public_key: str
    chain: str
    head: str
    settings: str
    validation: str
    code: str
    made_with: str
    files: Mapping[str, str]

    def to_bytes(self) -> bytes:
        """Return what is signed."""
        content: dict[str, Any] = {"format": FORMAT, **vars(self)}
        return (json.dumps(content, indent=2) + "\n").encode()


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest in a folder, and check that it is signed as it is.

    Raises
    ------
    StatementError
        If it is not there, or was changed.
    """
    content, signature = (read_file(folder, name) for name in (MANIFEST, SIGNATURE))
    try:
        values = json.loads(content)
        if values.pop("format") != FORMAT:
            raise ValueError("another format")
        manifest = Manifest(**values)
        public, kinds = bytes.fromhex(manifest.public_key), set(map(type, vars(manifest).values()))
        if kinds != {str, dict}:
            raise ValueError("another type")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StatementError(
            f"{MANIFEST} was changed: it is no manifest ({error!r:.80})"
        ) from error
    if not is_signed(public, signature, content):
        raise StatementError(f"{MANIFEST} or {SIGNATURE} was changed: the signature does not fit")
    return manifest


def read_file(folder: Path, name: str) -> bytes:
    """Return a file's content.

    Raises
    ------
    StatementError
        If it cannot be read, naming it.
    """
    try:
        return (folder / name).read_bytes()
    except OSError as error:
        raise StatementError(f"{name} cannot be read: {error.strerror}") from error


def file_hash(path: Path) -> str:
    """Return a file's SHA-256 in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
