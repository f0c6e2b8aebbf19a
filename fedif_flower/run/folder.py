"""A run's folder: every file in it, and what it is called."""

from __future__ import annotations

import os
import re
import shutil
import socket
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from fedif_flower.attribution.quarantine import Decision
from fedif_flower.attribution.records import RoundAttribution
from fedif_flower.attribution.table import (
    COLUMNS,
    ROUND_COLUMNS,
    client_lines,
    round_line,
    split_columns,
)
from fedif_flower.errors import ConfigError, StorageError
from fedif_flower.run.record_files import JsonFile, Table
from fedif_flower.server.record import Round
from fedif_flower.storage import (
    make_folder,
    remove_leftovers,
    set_aside,
    sync_directory,
    sync_folder,
    temporary_sibling,
    write_atomically,
    writing,
)
from fedif_flower.valuation.noise_profile import Suspect

_LOCK = ".run.lock"
_ASKING_SECONDS = 0.1  # More than another process needs to ask whether a directory is held.
_MEMBER = ("round", "partition_id", "client_id")
SETTINGS_KEY = "settings"  # In the provenance of a run without a run config.
HELD_OUT_KEY = "held_out"  # In provenance and checkpoints: the examination of the held-out set.
# The columns of rounds.csv in which each new model is measured; those of a task's own metrics
# come after them.
MEASURED = (
    "test_accuracy",
    "test_loss",
    "validation_accuracy",
    "validation_loss",
    "attack_success",
    "validation_contradicted",
)
_CLIENT = (
    *_MEMBER,
    "malicious",
    "score",
    "normalized",
    "weight_score",
    "weight",
    "accumulative_influence",
    "num_examples",
    "claimed_examples",
    "train_seconds",
    "train_loss",
    "status",
    "rejection",
    "note",
    "asked_in",
)
_SIGNATURE = (
    "round",
    "client_id",
    "node_id",
    "attempt",
    "asked_in",
    "examples",
    "received",
    "sent",
    "head",
    "key",
    "signature",
)
_LEAF = ("round", "client_id", "update", "weight", "contribution", "credited", "status")
_HEAD = ("round", "attempt", "size", "root", "rows", "origin", "state", "key", "signature")
_NUM_SKETCHED = 256  # Columns of the sketch of a member's updates in own_parts.csv.
_ROUND_FILE = re.compile(r"round-(\d{6,})\.pt")
# A round's kept updates, or its signed replies.
_KEPT_FILE = re.compile(r"(?:round-(\d{6,})\.pt|sent-(\d{6,})\.npz)")
_ATTEMPT = "attempt"  # Earlier attempts are put aside in the run's folder: attempt-1, attempt-2 ...


class RunFolder:
    """The files of one run.

    Parameters
    ----------
    path : str or Path
        The folder; it need not exist.

    Attributes
    ----------
    config, provenance, summary : JsonFile
        The settings; hashes of what the result depends on; the result in a few figures. The summary
        is written last: a run that has one is complete.
    rounds, clients : Table
        A line for each round (:class:`~fedif_flower.server.record.Round`), and for each
        client in it.
    attendance : Table
        A line whenever a member came, left or was paused; it holds until the member's next line.
    attribution, attributed_rounds : Table
        What each client contributed to each round, and what the round gained.
    quarantine, names : Table
        Who was left out, when and why; what the operator calls members.
    held_out : Table
        The examples of the validation split whose labels look wrong.
    signatures : Table
        What members signed of their updates: digests, keys and signatures, in hex.
    receipts, round_heads : Table
        A chain of hashes over the rounds, for which members hold receipts: its leaves and its
        heads, with bytes in hex.
    own_parts : Table
        For each member, a sketch of how the directions of its updates differ from the mean
        direction, summed over rounds.
    server_seed : JsonFile
        The secret from which the server's draws follow, once the run has ended; not in simulations.
    masking : JsonFile
        Who kept the masks of a masked run.
    model, unlearned : Path
        The last global model, and the same after a backdoor was unlearned.
    pictures : dict of str to Path
        The pictures of the run, by name.
    report : Path
        The report, in Markdown.
    checkpoints, updates, statement : Path
        Folders: checkpoints; the updates of each round, where they are kept; the statement of what
        members contributed.
    undelivered : JsonFile
        Which members have yet to get their page of the statement.
    live : JsonFile
        What the run is doing now (:class:`~fedif_flower.run.live_state.LiveState`); not a result.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser().absolute()
        self._results: list[Path] = []
        self.summary = JsonFile(self._result("summary.json"))
        self.config = JsonFile(self._result("config.json"))
        self.provenance = JsonFile(self._result("provenance.json"))
        self.names = self._table("names", ("client_id", "name"))
        self.rounds = self._table("rounds", (*Round(0).line(), *MEASURED))
        self.clients = self._table("clients", _CLIENT)
        self.attendance = self._table("attendance", (*_MEMBER, "presence", "at"))
        self.attribution = self._table("attribution", COLUMNS)
        self.attributed_rounds = self._table("attribution_rounds", ROUND_COLUMNS)
        decision = [field.name for field in fields(Decision)]
        self.quarantine = self._table("quarantine", decision)
        suspect = [field.name for field in fields(Suspect)]
        self.held_out = self._table("held_out", suspect)
        self.signatures = self._table("signatures", _SIGNATURE)
        self.receipts = self._table("receipts", _LEAF)
        self.round_heads = self._table("round_heads", _HEAD)
        self.server_seed = JsonFile(self._result("server_seed.json"))
        self.masking = JsonFile(self._result("masking.json"))
        sketch = [f"sketch_{k}" for k in range(_NUM_SKETCHED)]
        self.own_parts = self._table("own_parts", ("client_id", "rounds", "squares", *sketch))
        self.model = self._result("model.pt")
        self.unlearned = self._result("model-unlearned.pt")
        self.pictures: dict[str, Path] = {}
        for name in ("accuracy", "metric", "attribution", "weight-scores"):
            self.pictures[name] = self._result(f"{name}.png")
        self.report = self._result("report.md")
        self.checkpoints = self.path / "checkpoints"
        self.updates = self.path / "updates"
        self.statement = self.path / "statement"
        self.undelivered = JsonFile(self.path / "undelivered.json")
        self.live = JsonFile(self.path / "state.json")

    def _result(self, name: str) -> Path:
        """Return the path of a file that a run writes, and that a new run in the folder removes."""
        path = self.path / name
        self._results.append(path)
        return path

    def _table(self, name: str, columns: Iterable[str]) -> Table:
        """Return a table that is one of the results."""
        return Table(self._result(f"{name}.csv"), columns)

    def begin(self, stay: Collection[Path] = (), last_round: int = 0) -> None:
        """Make the folder, and remove the files of an earlier run.

        The earlier run's statement is renamed, since members may have been sent it. Its kept
        updates of rounds after ``last_round`` are removed even if the new run keeps no updates: a
        statement of the new run would take them for its own.

        Parameters
        ----------
        stay : collection of Path
            Files that are not removed.
        last_round : int
            The last round of the earlier run that still counts; 0: none does.
        """
        make_folder(self.path)
        for path in (*self._results, self.live.path):
            remove_leftovers(path)
            if path not in stay:
                path.unlink(missing_ok=True)
        # These stay; only half-written copies of them, which a killed process left, are removed.
        for path in (self.statement, self.undelivered.path, self.path / f"{_ATTEMPT}-*"):
            remove_leftovers(path)
        self._remove_updates(after=last_round)
        set_aside(self.statement)

    def _remove_updates(self, after: int) -> None:
        """Remove the kept updates and signed replies of all rounds later than ``after``."""
        with writing(self.updates):
            for kind in ("round-*", "sent-*"):
                remove_leftovers(self.updates / kind)
            for path in self.updates.glob("*"):
                match = _KEPT_FILE.fullmatch(path.name)
                if match and int(match[1] or match[2]) > after:
                    path.unlink()

    def keep_attempt(self) -> Path | None:
        """Copy an earlier attempt's results into a folder of their own, before another one begins.

        The records are kept because members hold signatures, receipts and perhaps a statement that
        refer to them.

        Returns
        -------
        Path, optional
            ``attempt-1`` (``-2`` ...) in the run's folder; ``None``: there were no results.

        Raises
        ------
        StorageError
            If the copies cannot be written, since the disk is full, for example.
        """
        paths = self._results_there()
        if not paths:
            return None
        target = self._free_attempt()
        fresh = temporary_sibling(target)
        try:
            with writing(target):
                for path in paths:
                    place = fresh / path.relative_to(self.path)
                    place.parent.mkdir(parents=True, exist_ok=True)
                    if path.parent == self.updates:
                        # Files of updates are large, and never written a second time.
                        _link_or_copy(path, place)
                    else:
                        shutil.copy2(path, place)
                # The next attempt removes the originals: first the copies have to be on the disk.
                sync_folder(fresh)
                fresh.replace(target)
                sync_directory(self.path)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        return target

    def _free_attempt(self) -> Path:
        """Return the first path among ``attempt-1``, ``attempt-2`` ... that is not in use."""
        number = 1
        while (self.path / f"{_ATTEMPT}-{number}").exists():
            number += 1
        return self.path / f"{_ATTEMPT}-{number}"

    def attempts_put_aside(self) -> list[RunFolder]:
        """Return the folders that :meth:`keep_attempt` has made in this one."""
        return [RunFolder(path) for path in sorted(self.path.glob(f"{_ATTEMPT}-*"))]

    def holds_run(self) -> bool:
        """Whether a run has begun to write its tables here."""
        return self.rounds.path.is_file()

    def is_put_aside(self) -> bool:
        """Whether this folder was made by :meth:`keep_attempt`, so that it is no run that counts.

        It lies in a run's folder then. Elsewhere, a folder with such a name is a run of its own.
        """
        if not re.fullmatch(rf"{_ATTEMPT}-\d+", self.path.name):
            return False
        return RunFolder(self.path.parent).holds_run()

    def _results_there(self) -> list[Path]:
        """Return the results that exist: first the folder's own files, then the kept updates."""
        paths = [path for path in self._results if path.is_file()]
        paths += sorted(self.updates.glob("[rs]*"))  # round-000001.pt, sent-000001.npz
        return paths

    def last_round(self) -> int:
        """Return the last round that has a line in ``rounds.csv``; 0: there is none.

        Raises
        ------
        ConfigError
            If ``rounds.csv`` is not a table of a run.
        """
        rows = self.rounds.read()
        header = self.rounds.header()
        if header and "round" not in header:
            raise ConfigError(
                f"{self.rounds.path} is no table of rounds: it has no column 'round'; allowed: a "
                "folder without it"
            )
        last = 0
        for row in rows:
            if row["round"].isdecimal():
                last = max(last, int(row["round"]))
        return last

    def settings(self) -> dict[str, Any]:
        """Return the run's settings by run-config key.

        A run without a run config has only the few settings that its strategy and attribution show.

        Raises
        ------
        FileNotFoundError
            If the folder has no settings.
        """
        if self.provenance.path.is_file() and not self.config.path.is_file():
            settings = self.provenance.read().get(SETTINGS_KEY)
            if isinstance(settings, dict):
                return settings
        return self.config.read()

    def is_complete(self) -> bool:
        """Whether the run came to its end, where its summary is written."""
        try:
            self.summary.read()
        except (OSError, ConfigError):
            return False
        return True

    def results(self) -> list[str]:
        """Return the results that exist, as paths relative to the folder.

        Locks and checkpoints are no results.
        """
        return [path.relative_to(self.path).as_posix() for path in self._results_there()]

    def tables(self) -> list[Path]:
        """Return the paths of the run's tables, whether the files exist or not."""
        return [path for path in self._results if path.suffix == ".csv"]

    def begin_attribution(self, num_classes: int, num_blocks: int, *, has_noise_ends: bool) -> None:
        """Begin both tables of the attribution, with a column for each class and each block.

        With ``has_noise_ends`` there are also columns for contributions at the lowest and the
        highest share of wrong labels that the held-out set may have.
        """
        columns = split_columns(num_classes, num_blocks, has_noise_ends=has_noise_ends)
        self.attribution.begin(columns)
        self.attributed_rounds.begin()

    def add_attribution(self, attribution: RoundAttribution) -> None:
        """Write a round's attribution.

        The round's own line comes last: it tells a reader that the clients' lines are complete.
        """
        self.attribution.append(client_lines(attribution))
        self.attributed_rounds.append([round_line(attribution)])


def _link_or_copy(path: Path, place: Path) -> None:
    """Make a hard link to a file; copy it if the file system has no hard links."""
    try:
        os.link(path, place)
    except OSError:
        shutil.copy2(path, place)


def file_of_round(folder: Path, server_round: int) -> Path:
    """Return the path of a round's file in a folder of checkpoints or updates."""
    return folder / f"round-{server_round:06d}.pt"


def files_of_rounds(folder: Path) -> dict[int, Path]:
    """Return the files of rounds in a folder, by round and in order; other files are left out."""
    if not folder.is_dir():
        return {}
    paths: dict[int, Path] = {}
    for path in folder.iterdir():
        match = _ROUND_FILE.fullmatch(path.name)
        if match:
            paths[int(match[1])] = path
    return dict(sorted(paths.items()))


def write_tensors(path: Path, content: Mapping[str, Any]) -> None:
    """Write a file that ``torch.load(weights_only=True)`` reads, whole or not at all."""
    buffer = BytesIO()
    torch.save(dict(content), buffer)
    write_atomically(path, buffer.getvalue())


def is_held(run_dir: Path) -> bool:
    """Whether a process holds a run's directory now, by :func:`hold_directory`."""
    lock_path = run_dir / _LOCK
    if not lock_path.is_file():
        return False
    lock = FileLock(lock_path)
    try:
        lock.acquire(timeout=_ASKING_SECONDS)
    except Timeout:
        return True
    except OSError:  # It cannot be written to. A run that begins there raises an error.
        return False
    lock.release()
    return False


@contextmanager
def hold_directory(
    run_dir: Path, *, setting: str = "", remedy: str = "set another run-name"
) -> Iterator[None]:
    """Hold a run's directory, so that no other run writes to it.

    The directory is released even if the process is killed. A directory that was made here is
    removed at the end if nothing was written to it.

    Parameters
    ----------
    run_dir : Path
        The directory; it is made if it is not there.
    setting : str
        The setting with which the user chose the directory, and its value; errors name it. Empty:
        ``output-dir``.
    remedy : str
        What the user can do, beside waiting, where another run holds the directory.

    Raises
    ------
    StorageError
        If another run holds the directory; the error names its process, its host and its start.
    ConfigError
        If the directory cannot be made or written to.
    """
    lock_path = run_dir / _LOCK
    lock = FileLock(lock_path)
    holder = run_dir / ".run.holder"
    since = datetime.now(UTC).isoformat(sep=" ", timespec="seconds")
    is_new = not run_dir.exists()
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=_ASKING_SECONDS)
        holder.write_text(f"process {os.getpid()} on {socket.gethostname()} since {since}")
    except Timeout:
        who = ""
        if holder.is_file():
            who = holder.read_text()
        if not who:  # The other run has the lock, but has not yet written who it is.
            who = "another run"
        raise StorageError(f"{run_dir} is in use by {who}: wait for its end, or {remedy}") from None
    except OSError as error:
        lock.release()
        setting = setting or f"output-dir = {str(run_dir.parent)!r}"
        raise ConfigError(f"{setting}: cannot write: {error}") from error
    try:
        yield
    finally:
        # If the disk became read-only meanwhile, the error of the run's own writing is to be seen.
        with suppress(OSError):
            holder.unlink(missing_ok=True)
            if is_new and list(run_dir.iterdir()) == [lock_path]:
                lock_path.unlink()
                run_dir.rmdir()
        lock.release()
