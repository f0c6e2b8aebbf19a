"""Which apps run at a member: bundles in a folder, or those that somebody on its list signed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from fedif_consortium.evidence.keys import VerifyingKey, read_members
from fedif_consortium.member.app_bundle import (
    MOST_BYTES,
    AppBundle,
    build_bundle,
    bundle_digest,
    read_bundle,
    signers_of,
)
from fedif_flower.errors import ConfigError, RefusedByMemberError
from fedif_flower.settings import Settings, setting
from fedif_flower.storage import make_folder, write_atomically

REFUSED = "refused-apps"  # In the folder of the policy's state.
MOST_REFUSED = 4  # Kept for `fedif app show`; then the oldest goes.
_DIGEST = re.compile(r"[0-9a-f]{64}")


class AppRules(Settings):
    """``[apps]``: which apps run. Folders are relative to the policy's file."""

    approved: str = setting(
        "approved-apps",
        "Folder with the bundles that run here; `fedif app approve` writes them. What is put into "
        "it, or taken out of it, counts from the next message on.",
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


class MemberApps:
    """A member's apps: what runs, who says so, and what was refused.

    Parameters
    ----------
    rules : AppRules
        With folders as the policy's file has them.
    beside : Path
        The folder of the policy's file.
    state : Path
        Where what was refused is kept.

    Raises
    ------
    ConfigError
        If a signer's key cannot be read, or there are too few.
    """

    def __init__(self, rules: AppRules, beside: Path, state: Path) -> None:
        self._rules = rules
        self.approved = beside / rules.approved
        self.signatures = beside / rules.signatures
        self.refused = state / REFUSED
        self._signers: Mapping[str, VerifyingKey] = {}
        if rules.signers:
            self._signers = read_members(beside / rules.signers)
            if len(self._signers) < rules.least_signers:
                raise ConfigError(
                    f"[apps] signers = {rules.signers!r} has {len(self._signers)} keys, NAME.pub; "
                    f"allowed: at least least-signers = {rules.least_signers}"
                )

    def signers_of(self, digest: str) -> list[str]:
        """Return who on the member's list signed a bundle."""
        return signers_of(digest, self.signatures, self._signers)

    def approval(self, digest: str) -> str:
        """Return why a bundle runs, in words; empty: it does not."""
        if not _DIGEST.fullmatch(digest):
            return ""
        if _path(self.approved, digest).is_file():
            return "approved"
        signers = self.signers_of(digest)
        enough = bool(signers) and len(signers) >= self._rules.least_signers
        return f"signed by {', '.join(signers)}" if enough else ""

    def check(self, digest: str) -> None:
        """Raise RefusedByMemberError, with what to do, unless a bundle runs here."""
        if not self.approval(digest):
            raise RefusedByMemberError(
                f"this member has not approved app {digest}; there: fedif app approve {digest[:12]}"
            )

    def approve(self, bundle: AppBundle) -> Path:
        """Let a bundle run; return its file.

        Raises
        ------
        StorageError
            If it cannot be written.
        """
        make_folder(self.approved)
        path = _path(self.approved, bundle.digest)
        write_atomically(path, bundle.content)
        _path(self.refused, bundle.digest).unlink(missing_ok=True)
        return path

    def keep_refused(self, digest: str, fetch: Callable[[], bytes]) -> None:
        """Keep a bundle that was refused, instead of the oldest one where there are too many.

        Parameters
        ----------
        digest : str
            The bundle's, as the server says.
        fetch : callable
            Returns the bundle; called unless it is kept already.

        Raises
        ------
        StorageError
            If it cannot be written.
        """
        path = _path(self.refused, digest)
        if path.is_file():
            return
        content = fetch()
        if bundle_digest(content) != digest or len(content) > MOST_BYTES:
            return
        make_folder(self.refused)
        write_atomically(path, content)
        kept = sorted(self.refused.glob("*.fab"), key=lambda one: one.stat().st_mtime)
        for oldest in kept[:-MOST_REFUSED]:
            oldest.unlink(missing_ok=True)

    def find(self, beginning: str) -> AppBundle:
        """Return a folder's or a file's bundle, or the one here whose digest begins so.

        Raises
        ------
        ConfigError
            If there is none, or more than one.
        """
        if (given := Path(beginning)).is_dir():
            return build_bundle(given)
        if given.is_file():
            return read_bundle(given.read_bytes(), beginning)
        there = [*self.approved.glob("*.fab"), *self.refused.glob("*.fab")]
        paths = {path.name: path for path in there if path.name.startswith(beginning)}
        if len(paths) != 1:
            raise ConfigError(
                f"{beginning!r} is no file, no folder, and the beginning of {len(paths)} digests "
                f"of bundles in {self.approved} and {self.refused}"
            )
        (path,) = paths.values()
        return read_bundle(path.read_bytes(), str(path))


def _path(folder: Path, digest: str) -> Path:
    return folder / f"{digest}.fab"
