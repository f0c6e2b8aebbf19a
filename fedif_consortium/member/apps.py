"""Decides which apps run at a member: those that it approved, or that people on its list signed.

Flower sends an app to a SuperNode as a *bundle*, a zip with the app's files, and names it by its
SHA-256. A bundle that was not approved may be hostile: it is never unpacked to disk, and none of
its code is imported.
"""

from __future__ import annotations

import hashlib
import io
import posixpath
import re
import tomllib
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fedif_consortium.evidence.dsse import Envelope, read_envelope
from fedif_consortium.evidence.keys import SigningKey, VerifyingKey, read_members
from fedif_consortium.evidence.names import holder_of
from fedif_flower.errors import ConfigError, EvidenceError
from fedif_flower.foreign import read_whole, refused_as
from fedif_flower.settings import Settings, setting
from fedif_flower.storage import make_folder, write_atomically

MOST_BYTES = 10 * 2**20  # Flower makes no larger bundles.
MOST_UNPACKED = 200 * 2**20  # Bytes of all files of a bundle together.
MOST_FILES = 10_000
MANIFEST = ".info/CONTENT"  # Flower's list of a bundle's files, which follows from these.
MOST_REFUSED = 4  # Refused bundles that are kept for `fedif app show`; then the oldest is removed.
_TYPE = "application/vnd.fedif.app"  # The payload type of a bundle's signature.
_DIGEST = re.compile(r"[0-9a-f]{64}")


class AppRules(Settings):
    """``[apps]``: which apps run. Folders are relative to the policy's file."""

    approved: str = setting(
        "approved-apps",
        "Folder with the bundles that run here, each called by its digest, `DIGEST.fab`; "
        "`fedif app approve` writes them. What is put into it, or taken out of it, counts from the "
        "next message on.",
    )
    signers: str = setting(
        "",
        "Folder with public keys, `NAME.pub`: a bundle that enough of these signed runs, too; "
        "empty: none.",
    )
    signatures: str = setting(
        "app-signatures",
        "Folder with the signatures of bundles, as `fedif app sign` writes them.",
    )
    least_signers: int = setting(1, "How many of them must have signed a bundle.", ge=1)


@dataclass(frozen=True)
class AppBundle:
    """A bundle, with its files in memory.

    Attributes
    ----------
    content : bytes
        The zip.
    digest : str
        The SHA-256 of the zip, 64 hexadecimal digits.
    files : mapping of str to bytes
        The content of its files by path.
    name, version : str
        The app's ``publisher/name`` and version, by its ``pyproject.toml``.
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
    """Return the bundle in a zip; error messages call it ``name``.

    Raises
    ------
    ConfigError
        If ``content`` is no bundle, or the bundle is too large, packed or unpacked.
    """
    if len(content) > MOST_BYTES:
        raise ConfigError(f"{name} has {len(content)} bytes; allowed: at most {MOST_BYTES}")
    with refused_as(ConfigError, f"{name} is no bundle of a Flower app"):
        files = _unpacked_files(content, name)
        pyproject = tomllib.loads(files["pyproject.toml"].decode())
        publisher = pyproject["tool"]["flwr"]["app"]["publisher"]
        app_name = f"{publisher}/{pyproject['project']['name']}"
        version = str(pyproject["project"]["version"])
    return AppBundle(content, bundle_digest(content), files, app_name, version)


def _unpacked_files(content: bytes, name: str) -> dict[str, bytes]:
    """Return the files of a zip by path; error messages call the zip ``name``."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        infos = [info for info in archive.infolist() if not info.is_dir()]
        # Check the declared sizes before unpacking; zipfile unpacks no more than these.
        unpacked_size = sum(info.file_size for info in infos)
        if len(infos) > MOST_FILES or unpacked_size > MOST_UNPACKED:
            raise ConfigError(
                f"{name} unpacks to more than {MOST_UNPACKED} bytes or {MOST_FILES} files"
            )
        files = {info.filename: archive.read(info) for info in infos}
    if len(files) != len(infos):
        raise ConfigError(f"{name} has two files of the same name")
    for path in files:
        if not _is_normal(path):
            raise ConfigError(f"{name} has a file whose path is not normal: {path!r:.80}")
    return files


def _is_normal(path: str) -> bool:
    """Return whether a path lies within the bundle and is written in normal form.

    Otherwise two paths could name one file: ``./app.py`` would replace ``app.py`` when unpacked.
    """
    if "\\" in path or path.startswith(("/", "..")):
        return False
    return posixpath.normpath(path) == path


def sign_bundle(digest: str, key: SigningKey) -> tuple[str, bytes]:
    """Return the name and the content of a file with a signature of a bundle.

    The file is an envelope (:mod:`~fedif_consortium.evidence.dsse`) whose content is the bundle's
    digest; it does not hold the bundle.
    """
    envelope = Envelope(payload_type=_TYPE, payload=digest.encode()).signed_by(key)
    key_id = envelope.signatures[0].keyid
    return f"{digest}.{key_id[:16]}.sig", envelope.to_bytes()


class MemberApps:
    """A member's apps: which may run, who approved them, and which were refused.

    Parameters
    ----------
    rules : AppRules
        The section ``[apps]`` of the policy.
    beside : Path
        The folder of the policy's file, to which the rules' folders are relative.
    state : Path
        The folder of the policy's state, in which refused bundles are kept.

    Raises
    ------
    ConfigError
        If a signer's key cannot be read, or there are fewer keys than ``least-signers``.
    """

    def __init__(self, rules: AppRules, beside: Path, state: Path) -> None:
        self._least_signers = rules.least_signers
        self.approved = beside / rules.approved
        self.signatures = beside / rules.signatures
        self.refused = state / "refused-apps"
        self._signers: Mapping[str, VerifyingKey] = {}
        if rules.signers:
            keys = read_members(beside / rules.signers)
            # Earlier keys of a holder do not count: somebody else may have them by now.
            self._signers = {name: key for name, key in keys.items() if holder_of(name) == name}
            if len(self._signers) < self._least_signers:
                raise ConfigError(
                    f"[apps] signers = {rules.signers!r} has {len(self._signers)} keys, NAME.pub; "
                    f"allowed: at least least-signers = {self._least_signers}"
                )

    def signers_of(self, digest: str) -> list[str]:
        """Return the names on the member's list whose keys signed a bundle, sorted."""
        signers = set()
        for path in self.signatures.glob(f"{digest}.*.sig"):
            try:
                envelope = read_envelope(read_whole(path), str(path))
                if envelope.payload_type != _TYPE or envelope.payload != digest.encode():
                    continue
                # A file counts for nothing if one of its signatures is damaged.
                names = [envelope.signer(entry, self._signers) for entry in envelope.signatures]
            except (OSError, EvidenceError):
                continue
            signers.update(names)
        signers.discard("")  # Stands for signatures with keys that are not on the list.
        return sorted(signers)

    def approval(self, digest: str) -> str:
        """Return why a bundle may run, in words; empty if it may not."""
        if not _DIGEST.fullmatch(digest):
            return ""
        if _path(self.approved, digest).is_file():
            return "approved"
        signers = self.signers_of(digest)
        if len(signers) < self._least_signers:
            return ""
        return f"signed by {', '.join(signers)}"

    def digests(self) -> list[str]:
        """Return the digests of all bundles that may run and have a file here, sorted."""
        names = {path.stem for path in self.approved.glob("*.fab")}
        names |= {path.name.partition(".")[0] for path in self.signatures.glob("*.sig")}
        return [digest for digest in sorted(names) if self.approval(digest)]

    def approve(self, bundle: AppBundle) -> Path:
        """Approve a bundle, and return the path of its file.

        Raises
        ------
        StorageError
            If the file cannot be written.
        """
        make_folder(self.approved)
        path = _path(self.approved, bundle.digest)
        write_atomically(path, bundle.content)
        _path(self.refused, bundle.digest).unlink(missing_ok=True)
        return path

    def keep_refused(self, digest: str, fetch: Callable[[], bytes]) -> None:
        """Keep a refused bundle for ``fedif app show``, and only the last four of these.

        A bundle is not kept if its digest is another one, or it is too large.

        Parameters
        ----------
        digest : str
            The bundle's digest, as the server says.
        fetch : callable
            Returns the bundle's content. It is not called if the bundle is kept already.

        Raises
        ------
        StorageError
            If the bundle cannot be written.
        """
        path = _path(self.refused, digest)
        if path.is_file():
            return
        content = fetch()
        if bundle_digest(content) != digest or len(content) > MOST_BYTES:
            return
        make_folder(self.refused)
        write_atomically(path, content)
        oldest_first = sorted(self.refused.glob("*.fab"), key=lambda file: file.stat().st_mtime)
        for file in oldest_first[:-MOST_REFUSED]:
            file.unlink(missing_ok=True)

    def find(self, beginning: str) -> AppBundle:
        """Return the bundle that a user names.

        Parameters
        ----------
        beginning : str
            A folder with a Flower app, a file with a bundle, or the first digits of the digest of
            an approved or refused bundle.

        Raises
        ------
        ConfigError
            If there is no such bundle, or more than one.
        """
        place = Path(beginning)
        if place.is_dir():
            # Imported here, since a guard never needs it.
            from flwr.cli.build import build_fab_from_disk

            with refused_as(ConfigError, f"{beginning} is no Flower app"):
                return read_bundle(build_fab_from_disk(place), beginning)
        if place.is_file():
            return read_bundle(place.read_bytes(), beginning)
        bundles = [*self.approved.glob("*.fab"), *self.refused.glob("*.fab")]
        # By name: the same bundle may lie in both folders.
        paths = {path.name: path for path in bundles if path.name.startswith(beginning)}
        if len(paths) != 1:
            raise ConfigError(
                f"{beginning!r} is no file, no folder, and the beginning of {len(paths)} digests "
                f"of bundles in {self.approved} and {self.refused}"
            )
        (path,) = paths.values()
        return read_bundle(path.read_bytes(), str(path))


def _path(folder: Path, digest: str) -> Path:
    return folder / f"{digest}.fab"
