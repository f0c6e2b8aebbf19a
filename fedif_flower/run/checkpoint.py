"""Checkpoints: everything a run needs to continue after a crash, each file written atomically.

A file is one line with the SHA-256 of the rest, then what ``torch.save`` writes; it is read back
with ``weights_only=True``, so that no code in it can run. No random generator is kept: every random
draw is a function of (purpose, seed, ids), and ids include the round
(see :mod:`~fedif_flower.seeding`).

The lines of a run's tables lie beside the checkpoints in one file, the journal, which only grows. A
checkpoint holds how many bytes at the journal's beginning belong to it, and a hash of them. Bytes
behind those belong to a checkpoint that was not completed, or to rounds that were given up: the
next checkpoint cuts them off.
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
from fedif_flower.settings import AUTO
from fedif_flower.storage import remove_leftovers, write_atomically, writing

logger = logging.getLogger(__name__)

_MOST_KEPT = 2  # If the last checkpoint is damaged, the run can be resumed from the one before.
JOURNAL = "records.jsonl"
_MAGIC = b"fedif-flower checkpoint 4 sha256 "  # 4 is the version of the format.


class _DamagedError(CheckpointError):
    """A file is damaged; an older checkpoint may be whole."""


Lines = Mapping[str, Sequence[Mapping[str, Any]]]  # By table, its lines in their order.


class JournalEnd(NamedTuple):
    """Where a checkpoint's lines end in the journal.

    Attributes
    ----------
    size : int
        How many bytes the lines take.
    sha256 : str
        The hash of a chain: each batch of lines is hashed together with the hash of those before.
    """

    size: int = 0
    sha256: str = ""

    def after(self, batch: bytes) -> JournalEnd:
        """Return the end of the lines once a batch is added to them."""
        digest = hashlib.sha256(self.sha256.encode() + batch).hexdigest()
        return JournalEnd(self.size + len(batch), digest)


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after one of its rounds.

    Attributes
    ----------
    server_round : int
        The last round that is part of the checkpoint, >= 0.
    settings : dict
        Everything that can change a result. A run with other settings cannot be resumed from here.
    arrays : dict of str to Tensor
        The global model.
    way_back : dict of str to Tensor, optional
        The earlier model to which the run returns if no round succeeds from ``arrays``; ``None``:
        ``arrays`` has proved to work.
    strategy, records : dict
        State of the strategy and of the results
        (see :class:`~fedif_flower.server.rule.Stateful`).
    lines : dict of str to list of dict
        The lines of the run's tables, by table. A checkpoint that was read has all of them. One
        that is to be saved has those since the last checkpoint that was saved or continued from.
    source : tuple of Path and JournalEnd, optional
        The file that the checkpoint was read from, and where its lines end in the journal beside
        it; ``None``: it was not read from a file.
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
        The run's settings; see :class:`Checkpoint`.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.folder = folder
        self.settings = dict(settings)
        # The last complete checkpoint's round, and where its lines end. Both change in one
        # assignment: a signal may interrupt a save anywhere, and the next save begins from them.
        self._last = -1, JournalEnd()

    @property
    def last_round(self) -> int:
        """The round of the last complete checkpoint; -1: there is none."""
        return self._last[0]

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint, then remove all but the last two.

        Raises
        ------
        CheckpointError
            If the checkpoint cannot be written, or could not be read back. Earlier checkpoints are
            as they were.
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
        for old in paths[:-_MOST_KEPT]:
            old.unlink()

    def find(self, resume: str) -> Checkpoint | None:
        """Return the checkpoint that ``resume`` names, or ``None`` to begin at the beginning.

        Parameters
        ----------
        resume : str
            ``""``: no checkpoint. ``"auto"``: the last checkpoint in the folder, or the one before
            if the last is damaged; none if the folder has none. Anything else: a file's path.

        Raises
        ------
        CheckpointError
            If the checkpoint is damaged, or if its run has another configuration.
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
        """Continue from a checkpoint that was read; remove checkpoints that do not lead up to it.

        Raises
        ------
        CheckpointError
            If the checkpoint's lines cannot be copied into this folder.
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
        """Remove half-written files that a killed process left."""
        for name in ("round-*", JOURNAL):
            remove_leftovers(self.folder / name)

    def _checked(self, path: Path) -> Checkpoint:
        """Return the checkpoint in a file; raise CheckpointError if its settings are not ours."""
        checkpoint = read_checkpoint(path)
        differences = _differences(checkpoint.settings, self.settings)
        if differences:
            raise CheckpointError(f"{path} is of another configuration: {'; '.join(differences)}")
        return checkpoint


def lies_in(folder: Path, path: str | Path) -> bool:
    """Whether a file lies directly in a folder; an empty path does not."""
    if not str(path):
        return False
    return Path(path).expanduser().parent.resolve() == folder.resolve()


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a file that :meth:`CheckpointFolder.save` wrote.

    Raises
    ------
    CheckpointError
        If the file cannot be read, or is not exactly what was written.
    MemoryError
        If there is too little memory for the checkpoint.
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
    except Exception as error:  # A file that was made by hand can hold anything.
        if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
            # The file may be whole, so it is not called damaged: no older checkpoint takes its
            # place, and the user is not advised to remove it.
            raise CheckpointError(f"the checkpoint {path} cannot be read: {error}") from error
        raise _DamagedError(
            f"the checkpoint {path} is damaged, or of another version: {error!s:.200}"
        ) from error


def _require_readable(checkpoint: Checkpoint) -> None:
    """Raise CheckpointError, naming the value, if the checkpoint could not be read back."""
    for part in ("settings", "strategy", "records"):
        unreadable = unreadable_in(getattr(checkpoint, part))
        if unreadable is not None:
            raise CheckpointError(
                f"the checkpoint of round {checkpoint.server_round} could not be read back: "
                f"{part}{unreadable}; allowed: Python's own numbers, texts, None, tensors, and "
                "lists, tuples and dicts of these"
            )


def _file_content(checkpoint: Checkpoint, end: JournalEnd) -> bytes:
    """Return the bytes of a checkpoint's file; the lines are in the journal, up to ``end``."""
    content = dict(vars(checkpoint))
    del content["source"]
    content["lines"] = end._asdict()
    buffer = BytesIO()
    torch.save(content, buffer)
    digest = hashlib.sha256(buffer.getbuffer()).hexdigest().encode()
    return b"".join((_MAGIC, digest, b"\n", buffer.getbuffer()))


def append_lines(path: Path, lines: Lines, end: JournalEnd) -> JournalEnd:
    """Write a batch of lines to the journal, as one JSON object on a line; return where it ends.

    Parameters
    ----------
    path : Path
        The journal; its folder exists.
    lines : mapping of str to sequence of mapping
        The lines, by table; if there are none, nothing is written.
    end : JournalEnd
        Where the last complete checkpoint's lines end. The batch goes there; what the file has
        behind is cut off.

    Raises
    ------
    StorageError
        If the batch cannot be written.
    """
    if not any(lines.values()):
        return end
    batch = json.dumps(lines).encode() + b"\n"
    mode = "r+b" if path.exists() else "xb"
    with writing(path), path.open(mode) as file:
        # The bytes behind were never part of a complete checkpoint that counts.
        file.truncate(end.size)
        file.seek(end.size)
        file.write(batch)
        file.flush()
        os.fsync(file.fileno())
    return end.after(batch)


def read_lines(path: Path, end: JournalEnd) -> dict[str, list[dict[str, Any]]]:
    """Return the lines in a journal up to the end that a checkpoint names, by table.

    Raises
    ------
    OSError, ValueError
        If the lines are not there as they were written.
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
    """Return in words how a checkpoint's settings differ from a run's, one text for each key."""
    differences = []
    for key in sorted(theirs.keys() | ours.keys()):
        if theirs.get(key) != ours.get(key):
            there = _shown(theirs, key)
            here = _shown(ours, key)
            differences.append(f"{key} = {there} there, {here} here")
    return differences


def _shown(settings: Mapping[str, Any], key: str) -> str:
    """Return a setting's value in words; a setting that is not recorded has its default."""
    if key not in settings:
        return "its default"
    return repr(settings[key])
