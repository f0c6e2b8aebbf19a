"""App bundles as a member looks at them: files, digest, signatures, what changed.

A bundle is what Flower sends to a SuperNode: a zip with the app's files. Its SHA-256 names it. One
that was not approved may be hostile: it is never unpacked to disk, and nothing of it is imported.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import posixpath
import tomllib
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedif_consortium.evidence.keys import (
    SigningKey,
    VerifyingKey,
    is_signed,
    key_digest,
    public_of,
    sign,
)
from fedif_flower.errors import ConfigError

MOST_BYTES = 10 * 2**20  # Flower makes none that is larger.
MOST_UNPACKED = 200 * 2**20
MOST_FILES = 10_000
MANIFEST = ".info/CONTENT"  # Follows from the other files.
_PURPOSE = "fedif app 1"


@dataclass(frozen=True)
class AppBundle:
    """A bundle, read.

    Attributes
    ----------
    content : bytes
        The zip.
    digest : str
        Its SHA-256, 64 hexadecimal digits.
    files : mapping of str to bytes
        Its files by path.
    name, version : str
        As its ``pyproject.toml`` says: ``publisher/name``.
    """

    content: bytes
    digest: str
    files: Mapping[str, bytes]
    name: str
    version: str


def bundle_digest(content: bytes) -> str:
    """Return the SHA-256 by which Flower names a bundle."""
    return hashlib.sha256(content).hexdigest()


def read_bundle(content: bytes, name: str) -> AppBundle:
    """Return a bundle; ``name`` is what an error calls it.

    Raises
    ------
    ConfigError
        If it is none, or unpacks to more than it may.
    """
    if len(content) > MOST_BYTES:
        raise ConfigError(f"{name} has {len(content)} bytes; allowed: at most {MOST_BYTES}")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            infos = [info for info in archive.infolist() if not info.is_dir()]
            # Sizes are checked before anything is unpacked; zipfile unpacks no more than they say.
            if len(infos) > MOST_FILES or sum(info.file_size for info in infos) > MOST_UNPACKED:
                raise ConfigError(
                    f"{name} unpacks to more than {MOST_UNPACKED} bytes or {MOST_FILES} files"
                )
            files = {info.filename: archive.read(info) for info in infos}
        if len(files) != len(infos):
            raise ConfigError(f"{name} has two files of the same name")
        for path in files:  # Unpacked, `./app.py` takes the place of `app.py`.
            if posixpath.normpath(path) != path or path.startswith(("/", "..")) or "\\" in path:
                raise ConfigError(f"{name} has a file whose path is not normal: {path!r:.80}")
        project = tomllib.loads(files["pyproject.toml"].decode())
        app = f"{project['tool']['flwr']['app']['publisher']}/{project['project']['name']}"
        version = str(project["project"]["version"])
    except (
        *(zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError),
        *(ValueError, LookupError, TypeError),
    ) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{name} is no bundle of a Flower app: {error!r}") from error
    return AppBundle(content, bundle_digest(content), files, app, version)


def sign_bundle(digest: str, key: SigningKey) -> tuple[str, str]:
    """Return the name and the content of a signature's file, detached from the bundle.

    Parameters
    ----------
    digest : str
        The bundle's.
    key : private key
        A member's or an auditor's.
    """
    signer = key_digest(public_of(key)).hex()
    signature = base64.b64encode(sign(key, _signed_content(digest))).decode()
    content = json.dumps({"app": digest, "key": signer, "signature": signature}, indent=2)
    return f"{digest}.{signer[:16]}.sig", content + "\n"


def signers_of(digest: str, folder: Path, keys: Mapping[str, VerifyingKey]) -> list[str]:
    """Return who signed a bundle.

    Parameters
    ----------
    digest : str
        The bundle's.
    folder : Path
        With files as :func:`sign_bundle` names them; one that holds no signature counts for nobody.
    keys : mapping of str to public key
        Those who may have signed, by name.

    Returns
    -------
    list of str
        Their names, each once, in order.
    """
    names = {key_digest(key).hex(): name for name, key in keys.items()}
    found = set()
    for path in sorted(folder.glob(f"{digest}.*.sig")):
        try:
            entry = json.loads(path.read_bytes())
            name = names[entry["key"]]
            if is_signed(keys[name], base64.b64decode(entry["signature"]), _signed_content(digest)):
                found.add(name)
        except (OSError, ValueError, LookupError, TypeError):
            continue
    return sorted(found)


def _signed_content(digest: str) -> bytes:
    return f"{_PURPOSE}\n{digest}\n".encode()
