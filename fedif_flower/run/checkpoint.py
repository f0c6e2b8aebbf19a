"""Checkpoints: everything a run needs to continue after a crash, each file written atomically.

A file is one line with the SHA-256 of the rest, then what ``torch.save`` writes; it is read back
with ``weights_only=True``, so that nothing in it can run. No generator is kept: every random draw
is a function of (purpose, seed, ids), the round among them, see :mod:`~fedif_flower.seeding`.

The lines of a run's tables lie beside the checkpoints, in one file that grows and is not written
again. A checkpoint holds how many bytes of it are its own, and a hash of them. What lies behind
them is of a checkpoint that was not completed, or of rounds that were given up: it is cut off.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedif_flower.errors import CheckpointError, StorageError
from fedif_flower.run.folder import file_of_round, files_of_rounds
from fedif_flower.run.kept_values import unreadable_in
from fedif_flower.storage import remove_leftovers, write_atomically, writing

logger = logging.getLogger(__name__)

AUTO = "auto"
KEPT = 2
JOURNAL = "records.jsonl"
_MAGIC = b"fedif-flower checkpoint 4 sha256 "


class _DamagedError(CheckpointError):
    """A file is damaged; an older checkpoint may be whole."""


Lines = Mapping[str, Sequence[Mapping[str, Any]]]  # Of each table, in their order.


class JournalEnd(NamedTuple):
    """Where a checkpoint's lines end: after how many bytes, and the hash of a chain of batches."""

    size: int = 0
    sha256: str = ""

    def after(self, batch: bytes) -> JournalEnd:
        """Return the end behind one more batch of lines."""
        digest = hashlib.sha256(self.sha256.encode() + batch).hexdigest()
        return JournalEnd(self.size + len(batch), digest)


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after one of its rounds.

    Attributes
    ----------
    server_round : int
        The last round that is part of it, >= 0.
    settings : dict
        Everything that can change a result; a run with other settings cannot go on from here.
    arrays : dict of str to Tensor
        The global model.
    way_back : dict of str to Tensor, optional
        The model that it may yet be taken back to; ``None``: it has proved to work.
    strategy, records : dict
        State of the strategy and of the results
        (see :class:`~fedif_flower.server.rule.Stateful`).
    lines : dict of str to list of dict
        The results' lines by table: all of them where it was read; to be saved, those since the
        checkpoint that was saved or continued from last.
    source : tuple of Path and JournalEnd, optional
        Where it was read, and where its lines end in the file beside it.
    """

    server_round: int
    settings: dict[str, Any]
    arrays: dict[str, Tensor]
    strategy: dict[str, Any]
    records: dict[str, Any]
    lines: Lines = field(default_factory=dict)
    way_back: dict[str, Tensor] | None = None
    source: tuple[Path, JournalEnd] | None = None


class CheckpointFolder:
    """The checkpoints of one run, of which the last two are kept.

    Parameters
    ----------
    folder : Path
        Created with the first checkpoint.
    settings : mapping
        The run's own; see :class:`Checkpoint`.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.folder = folder
        self.settings = dict(settings)
        # The last complete checkpoint's round and where its lines end. They change together: a
        # signal may interrupt a save anywhere, and the next one begins where these two say.
        self._last = -1, JournalEnd()

    @property
    def last_round(self) -> int:
        """The round of the last complete checkpoint, -1 where there is none."""
        return self._last[0]

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint, then remove all but the last two.

        Raises
        ------
        CheckpointError
            If it cannot be written, or not be read back; earlier ones are as they were.
        """
        _require_readable(checkpoint)
        path = file_of_round(self.folder, checkpoint.server_round)
        try:
            with writing(path):
                self.folder.mkdir(parents=True, exist_ok=True)
                remove_leftovers(path)
                end = append_lines(self.folder / JOURNAL, checkpoint.lines, self._last[1])
                write_atomically(path, _file_content(checkpoint, end))
                self._last = checkpoint.server_round, end
                self._remove_old()
        except StorageError as error:
            raise CheckpointError(str(error)) from error
        return path

    def _remove_old(self) -> None:
        """Remove all checkpoints but the last ones."""
        paths = list(files_of_rounds(self.folder).values())
        for old in paths[:-KEPT]:
            old.unlink()

    def find(self, resume: str) -> Checkpoint | None:
        """Return the checkpoint that ``resume`` names, or ``None`` to begin at the beginning.

        Parameters
        ----------
        resume : str
            ``""``: none. ``"auto"``: the folder's last, the one before it if that is damaged, none
            if there are none. Anything else: a file's path.

        Raises
        ------
        CheckpointError
            If it is damaged or of another configuration.
        """
        if not resume:
            return None
        if resume != AUTO:
            return self._checked(Path(resume).expanduser())
        paths = list(files_of_rounds(self.folder).values())
        for path in reversed(paths):
            try:
                return self._checked(path)
            except _DamagedError as error:
                logger.warning("resume = 'auto': %s; trying the one before it", error)
        if paths:
            raise CheckpointError(
                f"resume = 'auto': every checkpoint in {self.folder} is damaged; remove the "
                "folder, or set resume = '', to begin anew"
            )
        logger.debug("resume = 'auto': no checkpoint in %s, beginning at round 1", self.folder)
        return None

    def begin(self) -> None:
        """Remove the checkpoints of an earlier run."""
        self._remove_leftovers()
        for path in (*files_of_rounds(self.folder).values(), self.folder / JOURNAL):
            path.unlink(missing_ok=True)

    def go_on(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint that was read; remove what does not lead up to it.

        Raises
        ------
        CheckpointError
            If its lines cannot be copied into this folder.
        """
        assert checkpoint.source is not None
        path, end = checkpoint.source
        self._remove_leftovers()
        is_from_here = lies_in(self.folder, path)
        for number, other in files_of_rounds(self.folder).items():
            if not is_from_here or number > checkpoint.server_round:
                other.unlink()
        self._remove_old()
        try:
            with writing(self.folder):
                self.folder.mkdir(parents=True, exist_ok=True)
                if not is_from_here and end.size:
                    lines = path.with_name(JOURNAL).read_bytes()[: end.size]
                    write_atomically(self.folder / JOURNAL, lines)
                self._last = checkpoint.server_round, end
        except StorageError as error:
            raise CheckpointError(str(error)) from error

    def _remove_leftovers(self) -> None:
        """Remove what a killed process was writing."""
        for name in ("round-*", JOURNAL):
            remove_leftovers(self.folder / name)

    def _checked(self, path: Path) -> Checkpoint:
        """Return the checkpoint in a file, which must have this run's settings."""
        checkpoint = read_checkpoint(path)
        differences = _differences(checkpoint.settings, self.settings)
        if differences:
            raise CheckpointError(f"{path} is of another configuration: {'; '.join(differences)}")
        return checkpoint


def lies_in(folder: Path, path: str | Path) -> bool:
    """Tell whether a file is one of a folder's own; an empty path is that of none."""
    if not str(path):
        return False
    return Path(path).expanduser().parent.resolve() == folder.resolve()


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a file that :meth:`CheckpointFolder.save` wrote.

    Raises
    ------
    CheckpointError
        If it cannot be read, or is not exactly what was written.
    MemoryError
        If there is too little memory for it.
    """
    try:
        header, _, body = path.read_bytes().partition(b"\n")
        if header != _MAGIC + hashlib.sha256(body).hexdigest().encode():
            raise ValueError("its SHA-256 differs")
        content = torch.load(BytesIO(body), weights_only=True)
        end = JournalEnd(**content.pop("lines"))
        lines = read_lines(path.with_name(JOURNAL), end)
        return Checkpoint(**content, lines=lines, source=(path, end))
    except MemoryError:
        raise
    except Exception as error:  # a file that was made by hand can hold anything
        if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
            # It may be whole: nothing older takes its place, and nobody is told to remove it.
            raise CheckpointError(f"the checkpoint {path} cannot be read: {error}") from error
        raise _DamagedError(
            f"the checkpoint {path} is damaged, or of another version: {error!s:.200}"
        ) from error


def _require_readable(checkpoint: Checkpoint) -> None:
    """Raise CheckpointError, naming the part, for what nobody could read back."""
    for part in ("settings", "strategy", "records"):
        unreadable = unreadable_in(getattr(checkpoint, part))
        if unreadable is not None:
            raise CheckpointError(
                f"the checkpoint of round {checkpoint.server_round} could not be read back: "
                f"{part}{unreadable}; allowed: Python's own numbers, texts, None, tensors, and "
                "lists, tuples and dicts of these"
            )


def _file_content(checkpoint: Checkpoint, end: JournalEnd) -> bytes:
    """Return the bytes of a checkpoint's file; its lines are in the journal, up to ``end``."""
    content = dict(vars(checkpoint))
    del content["source"]
    content["lines"] = end._asdict()
    buffer = BytesIO()
    torch.save(content, buffer)
    digest = hashlib.sha256(buffer.getbuffer()).hexdigest().encode()
    return b"".join((_MAGIC, digest, b"\n", buffer.getbuffer()))


def append_lines(path: Path, lines: Lines, end: JournalEnd) -> JournalEnd:
    """Write a batch of lines behind those that a complete checkpoint has; return where they end.

    A batch is one JSON object on a line of its own. The file's folder exists.

    Raises
    ------
    StorageError
        If they cannot be written.
    """
    if not any(lines.values()):
        return end
    batch = json.dumps(lines).encode() + b"\n"
    mode = "r+b" if path.exists() else "xb"
    with writing(path), path.open(mode) as file:
        # What lies behind was never part of a complete checkpoint.
        file.truncate(end.size)
        file.seek(end.size)
        file.write(batch)
        file.flush()
        os.fsync(file.fileno())
    return end.after(batch)


def read_lines(path: Path, end: JournalEnd) -> dict[str, list[dict[str, Any]]]:
    """Return the lines up to a checkpoint's, by table.

    Raises
    ------
    OSError, ValueError
        If they are not there as they were written.
    """
    tables: dict[str, list[dict[str, Any]]] = {}
    if not end.size:
        return tables
    with path.open("rb") as file:
        batches = file.read(end.size).splitlines(keepends=True)
    end_in_file = JournalEnd()
    for batch in batches:
        end_in_file = end_in_file.after(batch)
    # Nothing is parsed before all of it is known to be whole.
    if end_in_file != end:
        raise ValueError(f"its lines in {path} are damaged: their SHA-256 differs")
    for batch in batches:
        for table, lines in json.loads(batch).items():
            tables.setdefault(table, []).extend(lines)
    return tables


def _differences(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    """Return in words which settings of a checkpoint differ from a run's, by key."""
    differences = []
    for key in sorted(theirs.keys() | ours.keys()):
        if theirs.get(key) != ours.get(key):
            there = _shown(theirs, key)
            here = _shown(ours, key)
            differences.append(f"{key} = {there} there, {here} here")
    return differences


def _shown(settings: Mapping[str, Any], key: str) -> str:
    """Return a setting's value; those of sections that are not there are defaults."""
    if key not in settings:
        return "its default"
    return repr(settings[key])
