"""The list of removed members and keys, which lies outside of the federation's folder.

A backup of the folder holds the registrations of its day. If it is restored, it would let in the
members that were removed since. The list, which is not restored, keeps them out.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from fedif_consortium.evidence.keys import key_id, read_public_key
from fedif_flower.errors import ConfigError, StorageError, require
from fedif_flower.foreign import read_whole, refused_as
from fedif_flower.run.rows import csv_text, read_rows
from fedif_flower.storage import append_line, cut_torn_line

_COLUMNS = ("name", "key", "removed", "why")
# The values of the column `why`.
_GONE = "removed"
_REKEYED = "rekeyed"
_REASONS = (_GONE, _REKEYED)


class Removal(NamedTuple):
    """A key that is no longer let in.

    Attributes
    ----------
    name : str
        The name of the member whose key it was.
    key : str
        The key's id; empty if the member had no key yet.
    removed : str
        When it was removed.
    why : str
        ``removed`` if the member was removed, ``rekeyed`` if it got another key.
    """

    name: str
    key: str
    removed: str
    why: str = _GONE

    @property
    def is_of_member(self) -> bool:
        """Whether the member itself was removed."""
        return self.why == _GONE


def removal_of(name: str, key: str, removed: str) -> Removal:
    """Return the removal of a member.

    Parameters
    ----------
    name : str
        The member's name.
    key : str
        Its public key as a line in OpenSSH's format; empty if it has none.
    removed : str
        When it was removed.
    """
    if not key:
        return Removal(name, "", removed)
    public_key = read_public_key(key.encode(), f"{name}: key")
    return Removal(name, key_id(public_key), removed)


def rekeying_of(name: str, key: str, removed: str) -> Removal:
    """Return the removal of a member's earlier key; the parameters are as in :func:`removal_of`."""
    return removal_of(name, key, removed)._replace(why=_REKEYED)


def removals_of(name: str, keys: Collection[str], removals: Iterable[Removal]) -> list[Removal]:
    """Return the removals of a member, by whichever of its keys.

    One key in common is enough: a backup may hold another key of the member than the one with which
    it was removed. A member of another federation that has the same name has none of these keys.

    Parameters
    ----------
    name : str
        The member's name.
    keys : collection of str
        All keys that it has or had, as lines in OpenSSH's format; empty if it never had one.
    removals : iterable of Removal
        The list's content.
    """
    of_name = [removal for removal in removals if removal.name == name]
    key_ids = {removal_of(name, key, "").key for key in keys}
    removed_ids = {removal.key for removal in of_name}
    if key_ids and key_ids.isdisjoint(removed_ids):
        return []  # They are of another federation's member.
    return of_name


def read_removals(path: Path) -> list[Removal]:
    """Return the removals in the list's file; empty if there is no file.

    Raises
    ------
    ConfigError
        If the file is no such list, or cannot be read.
    """
    with refused_as(ConfigError, f"{path}, the list of removed members, cannot be read"):
        rows = read_rows(path)
        text = _text_of(path)
    if not _has_header(text) or any(row.keys() != set(_COLUMNS) for row in rows):
        raise ConfigError(f"{path} is no list of removed members: {', '.join(_COLUMNS)}")
    removals = [Removal(**row) for row in rows]
    whole = removals
    if removals and _is_torn(text, removals[-1]):
        whole = removals[:-1]  # The torn line still counts as a removal; its reason is not checked.
    for number, removal in enumerate(whole, start=2):
        key = f"{path}, line {number}: why"
        require(removal.why in _REASONS, key, removal.why, " or ".join(_REASONS))
    return removals


def _text_of(path: Path) -> str:
    """Return the text of the list's file; empty if there is no file."""
    if not path.exists():
        return ""
    return read_whole(path).decode("utf-8-sig")


def _is_torn(text: str, last: Removal) -> bool:
    """Return whether the list's last line was torn within the reason of its removal."""
    is_ended = text.endswith(("\n", "\r"))
    return not is_ended and any(reason.startswith(last.why) for reason in _REASONS)


def _has_header(text: str) -> bool:
    """Return whether a list begins with its columns, or was torn within them."""
    header, end, _ = text.partition("\n")
    if not end:
        return ",".join(_COLUMNS).startswith(header.rstrip("\r"))
    columns = next(csv.reader([header.rstrip("\r")]), [])  # A spreadsheet may quote them.
    return set(columns) == set(_COLUMNS)


def note_removal(path: Path, removal: Removal) -> None:
    """Add a removal to the list, unless it is there already, whatever its date.

    A removal with another reason is another entry: that a key was replaced does not say that its
    member was removed.

    Raises
    ------
    ConfigError
        If the list cannot be read.
    StorageError
        If the list cannot be written.
    """
    for noted in read_removals(path):
        if noted._replace(removed=removal.removed) == removal:
            return
    begin_removals(path)
    append_line(path, csv_text([removal]).rstrip())


def begin_removals(path: Path) -> None:
    """Make an empty list unless there is one, and cut off half a line at its end.

    The list is only appended to, and never replaced. So if its folder belongs to another user, it
    is enough that the file belongs to this user.

    Raises
    ------
    StorageError
        If the list cannot be written; the message says what to do.
    """
    try:
        cut_torn_line(path, 0o600)
        if not path.stat().st_size:
            append_line(path, ",".join(_COLUMNS))
    except StorageError as error:
        raise StorageError(
            f"the list of removed members cannot be written ({error}): make {path} this user's, "
            "with `install -o USER -m 600 /dev/null FILE` as root, or name another place in "
            "FEDIF_REMOVED_MEMBERS; then give this command once more"
        ) from error
