"""App bundles as a member looks at them: files, digest, signatures, what changed.

A bundle is what Flower sends to a SuperNode: a zip with the app's files. Its SHA-256 names it. One
that was not approved may be hostile: it is never unpacked to disk, and nothing of it is imported.
"""

from __future__ import annotations

import hashlib
import io
import posixpath
import tomllib
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedif_consortium.evidence.dsse import Envelope, read_envelope
from fedif_consortium.evidence.keys import SigningKey, VerifyingKey
from fedif_flower.errors import ConfigError, EvidenceError
from fedif_flower.foreign import refused_as

MOST_BYTES = 10 * 2**20  # Flower makes none that is larger.
MOST_UNPACKED = 200 * 2**20
MOST_FILES = 10_000
MANIFEST = ".info/CONTENT"  # Follows from the other files.
_TYPE = "application/vnd.fedif.app"


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
    with refused_as(ConfigError, f"{name} is no bundle of a Flower app"):
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
    return AppBundle(content, bundle_digest(content), files, app, version)


def build_bundle(folder: Path) -> AppBundle:
    """Return the bundle that ``flwr run`` sends of a folder.

    Raises
    ------
    ConfigError
        If it is no Flower app.
    """
    from flwr.cli.build import build_fab_from_disk  # A guard needs none of Flower's commands.

    with refused_as(ConfigError, f"{folder} is no Flower app"):
        content = build_fab_from_disk(folder)
    return read_bundle(content, str(folder))


def sign_bundle(digest: str, key: SigningKey) -> tuple[str, bytes]:
    """Return the name and the content of a signature's file, detached from the bundle.

    It is an envelope (:mod:`~fedif_consortium.evidence.dsse`) whose content is the digest.

    Parameters
    ----------
    digest : str
        The bundle's.
    key : private key
        A member's or an auditor's.
    """
    envelope = Envelope(payload_type=_TYPE, payload=digest.encode()).signed_by(key)
    return f"{digest}.{envelope.signatures[0].keyid[:16]}.sig", envelope.to_bytes()


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
    found = set()
    for path in folder.glob(f"{digest}.*.sig"):
        try:
            envelope = read_envelope(path.read_bytes(), str(path))
            if (envelope.payload_type, envelope.payload) == (_TYPE, digest.encode()):
                found |= {envelope.signer(one, keys) for one in envelope.signatures}
        except (OSError, EvidenceError):
            continue
    return sorted(found - {""})
