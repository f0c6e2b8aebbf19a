"""Who was removed, in a list outside of the federation's folder: no backup brings a member back.

A backup holds the registrations of its day. Restored, it would let in whoever was removed since.
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
_GONE = "removed"
_REKEYED = "rekeyed"
_REASONS = (_GONE, _REKEYED)


class Removal(NamedTuple):
    """A key that is let in no more.

    Attributes
    ----------
    name : str
        Whose it was.
    key : str
        Its id; empty: the member had none yet.
    removed : str
        When.
    why : str
        ``removed``: the member was; ``rekeyed``: it has another one.
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
    """Return the removal of a member whose key is given in a line, as OpenSSH writes it."""
    if not key:
        return Removal(name, "", removed)
    public_key = read_public_key(key.encode(), f"{name}: key")
    return Removal(name, key_id(public_key), removed)


def rekeying_of(name: str, key: str, removed: str) -> Removal:
    """Return the removal of a member's earlier key."""
    return removal_of(name, key, removed)._replace(why=_REKEYED)


def removals_of(name: str, keys: Collection[str], known: Iterable[Removal]) -> list[Removal]:
    """Return which of the removals are a member's, whichever of its keys they are of.

    A backup may hold a key that the member had before or after the one with which it was removed.
    Another federation's member of the same name has none of these keys.

    Parameters
    ----------
    name : str
        The member's.
    keys : collection of str
        Those that it has and had, as lines of OpenSSH; empty: it had none yet.
    known : iterable of Removal
        The list.
    """
    of_name = [removal for removal in known if removal.name == name]
    key_ids = {removal_of(name, key, "").key for key in keys}
    removed_ids = {removal.key for removal in of_name}
    if key_ids and key_ids.isdisjoint(removed_ids):
        return []  # Another federation's member.
    return of_name


def read_removals(path: Path) -> list[Removal]:
    """Return the list; empty where there is no file.

    Raises
    ------
    ConfigError
        If it is no such list, or cannot be read.
    """
    with refused_as(ConfigError, f"{path}, the list of removed members, cannot be read"):
        rows = read_rows(path)
        text = _text_of(path)
    if not _has_header(text) or any(row.keys() != set(_COLUMNS) for row in rows):
        raise ConfigError(f"{path} is no list of removed members: {', '.join(_COLUMNS)}")
    removals = [Removal(**row) for row in rows]
    whole = removals
    if removals and _is_torn(text, removals[-1]):
        whole = removals[:-1]  # The last one's key is let in no more, either.
    for number, removal in enumerate(whole, start=2):
        key = f"{path}, line {number}: why"
        require(removal.why in _REASONS, key, removal.why, " or ".join(_REASONS))
    return removals


def _text_of(path: Path) -> str:
    """Return what a list's file says; empty where there is none."""
    if not path.exists():
        return ""
    return read_whole(path).decode("utf-8-sig")


def _is_torn(text: str, last: Removal) -> bool:
    """Return whether a list was torn off while the reason of its last removal was written."""
    is_ended = text.endswith(("\n", "\r"))
    return not is_ended and any(reason.startswith(last.why) for reason in _REASONS)


def _has_header(text: str) -> bool:
    """Return whether a list begins with its columns, or was torn off while these were written."""
    header, end, _ = text.partition("\n")
    if not end:
        return ",".join(_COLUMNS).startswith(header.rstrip("\r"))
    columns = next(csv.reader([header.rstrip("\r")]), [])  # A spreadsheet may quote them.
    return set(columns) == set(_COLUMNS)


def note_removal(path: Path, removal: Removal) -> None:
    """Add a removal to the list, unless it is there, whenever it was.

    That a key was replaced does not say that its member was removed.

    Raises
    ------
    StorageError
        If the list cannot be written.
    """
    for noted in read_removals(path):
        if noted._replace(removed=removal.removed) == removal:
            return
    begin_removals(path)
    append_line(path, csv_text([removal]).rstrip())


def begin_removals(path: Path) -> None:
    """Make an empty list, unless there is one.

    It only grows: where the folder that it lies in is another user's, a file that is this one's
    will do.

    Raises
    ------
    StorageError
        Saying what to do where it cannot be written.
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
