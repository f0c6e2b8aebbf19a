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
_MEMBER = ("round", "partition_id", "client_id")
SETTINGS_KEY = "settings"  # In the provenance of a run without a run config.
HELD_OUT_KEY = "held_out"  # In provenance and checkpoints: what was found before round 1.
# What a new model is measured by; a task's metrics have columns of their own behind.
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
_HEAD = ("round", "attempt", "size", "root", "rows", "state", "key", "signature")
_NUM_SKETCHED = 256  # Columns of the sketch of what a member's updates have of their own.
_ROUND_FILE = re.compile(r"round-(\d{6,})\.pt")
_KEPT_FILE = re.compile(r"(?:round-(\d{6,})\.pt|sent-(\d{6,})\.npz)")  # An update, a signed reply.
_ATTEMPT = "attempt"  # Of a run, put aside in its folder: attempt-1, attempt-2 ...


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
        is written last: where there is one, the run is complete.
    rounds, clients : Table
        A line for each round (:class:`~fedif_flower.server.record.Round`), and for each
        client in it.
    attendance : Table
        A line wherever a member came, left or was paused, what it is until its next line.
    attribution, attributed_rounds : Table
        What each client contributed to each round, and what the round gained.
    quarantine, names : Table
        Who was left out, when and why; what the operator calls members.
    held_out : Table
        The examples of the validation split whose labels look wrong.
    signatures : Table
        What members signed of their updates: digests, keys and signatures, in hex.
    receipts, round_heads : Table
        The leaves of the chain that members have receipts of, and its heads; bytes in hex.
    own_parts : Table
        A sketch of what each member's updates have of their own, summed over rounds.
    masking : JsonFile
        Who kept the masks of a masked run.
    pictures : dict of str to Path
        What is drawn of it, by name.
    live : JsonFile
        What the run is doing now (:class:`~fedif_flower.run.live_state.LiveState`); no result.
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
        """Return where a file lies that a run writes, and a new run in the same place removes."""
        path = self.path / name
        self._results.append(path)
        return path

    def _table(self, name: str, columns: Iterable[str]) -> Table:
        """Return a table that is one of the results."""
        return Table(self._result(f"{name}.csv"), columns)

    def begin(self, stay: Collection[Path] = (), last_round: int = 0) -> None:
        """Make the folder, and remove an earlier run's files, but for those that ``stay``.

        Its statement is kept under another name: members may have been sent it. Of the updates that
        it kept, those up to ``last_round`` stay: whether the new run keeps any or not, a statement
        would take the others for its own.
        """
        make_folder(self.path)
        for path in (*self._results, self.live.path):
            remove_leftovers(path)
            if path not in stay:
                path.unlink(missing_ok=True)
        for path in (self.statement, self.undelivered.path, self.path / f"{_ATTEMPT}-*"):
            remove_leftovers(path)
        self._remove_updates(after=last_round)
        set_aside(self.statement)

    def _remove_updates(self, after: int) -> None:
        """Remove the updates, and the signed replies, that were kept of rounds after one."""
        with writing(self.updates):
            for kind in ("round-*", "sent-*"):
                remove_leftovers(self.updates / kind)
            for path in self.updates.glob("*"):
                match = _KEPT_FILE.fullmatch(path.name)
                if match and int(match[1] or match[2]) > after:
                    path.unlink()

    def keep_attempt(self) -> Path | None:
        """Copy what an attempt left into a folder of its own, before another one begins here.

        Members have signatures, receipts and perhaps a statement of these very records.

        Returns
        -------
        Path, optional
            ``attempt-1`` (``-2`` ...) in the run's folder; ``None``: there was nothing.

        Raises
        ------
        StorageError
            If the disk takes no more.
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
                        _link_or_copy(path, place)  # Large, and never written a second time.
                    else:
                        shutil.copy2(path, place)
                sync_folder(fresh)  # The next attempt removes what was copied.
                fresh.replace(target)
                sync_directory(self.path)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        return target

    def _free_attempt(self) -> Path:
        """Return the first of ``attempt-1``, ``-2`` ... that is not there."""
        number = 1
        while (self.path / f"{_ATTEMPT}-{number}").exists():
            number += 1
        return self.path / f"{_ATTEMPT}-{number}"

    def attempts_put_aside(self) -> list[RunFolder]:
        """Return what :meth:`keep_attempt` left here, as folders of their own."""
        return [RunFolder(path) for path in sorted(self.path.glob(f"{_ATTEMPT}-*"))]

    def holds_run(self) -> bool:
        """Tell whether a run has begun to write its tables here."""
        return self.rounds.path.is_file()

    def is_put_aside(self) -> bool:
        """Tell whether it is what :meth:`keep_attempt` left in a run's folder: it counts no more.

        Beside no run's files, a folder of such a name is a run of its own.
        """
        if not re.fullmatch(rf"{_ATTEMPT}-\d+", self.path.name):
            return False
        return RunFolder(self.path.parent).holds_run()

    def _results_there(self) -> list[Path]:
        """Return the results that are there: files of the folder, then those of kept updates."""
        paths = [path for path in self._results if path.is_file()]
        paths += sorted(self.updates.glob("[rs]*"))  # round-000001.pt, and signed replies.
        return paths

    def last_round(self) -> int:
        """Return the last round that has a line; 0: none has.

        Raises
        ------
        ConfigError
            If the table of rounds is no run's.
        """
        rows = self.rounds.read()
        if rows and "round" not in rows[0]:
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
        """Return the run's settings by their keys.

        An app of its own has no run config: there are only the few that its objects tell.

        Raises
        ------
        FileNotFoundError
            If there are none.
        """
        if self.provenance.path.is_file() and not self.config.path.is_file():
            settings = self.provenance.read().get(SETTINGS_KEY)
            if isinstance(settings, dict):
                return settings
        return self.config.read()

    def is_complete(self) -> bool:
        """Tell whether the run came to its end."""
        try:
            self.summary.read()
        except (OSError, ConfigError):
            return False
        return True

    def results(self) -> list[str]:
        """Return the results that are there, by path below the folder.

        Locks and checkpoints are none.
        """
        return [path.relative_to(self.path).as_posix() for path in self._results_there()]

    def tables(self) -> list[Path]:
        """Return where its tables lie, there or not."""
        return [path for path in self._results if path.suffix == ".csv"]

    def begin_attribution(
        self, num_classes: int, num_blocks: int = 0, *, has_noise_ends: bool = False
    ) -> None:
        """Begin both tables of the attribution, with a column for each class and each block.

        ``has_noise_ends``: also for contributions at both ends of the share of wrong labels.
        """
        columns = split_columns(num_classes, num_blocks, has_noise_ends=has_noise_ends)
        self.attribution.begin(columns)
        self.attributed_rounds.begin()

    def add_attribution(self, attribution: RoundAttribution) -> None:
        """Write a round's attribution.

        The round's own line comes last: where there is one, the clients' lines are complete.
        """
        self.attribution.append(client_lines(attribution))
        self.attributed_rounds.append([round_line(attribution)])


def _link_or_copy(path: Path, place: Path) -> None:
    """Give a file a second name; where the disk knows no such thing, copy it."""
    try:
        os.link(path, place)
    except OSError:
        shutil.copy2(path, place)


def file_of_round(folder: Path, server_round: int) -> Path:
    """Return where a folder of checkpoints or updates holds what is of one round."""
    return folder / f"round-{server_round:06d}.pt"


def files_of_rounds(folder: Path) -> dict[int, Path]:
    """Return a folder's files by round, in order; other files there are left out."""
    if not folder.is_dir():
        return {}
    paths: dict[int, Path] = {}
    for path in folder.iterdir():
        match = _ROUND_FILE.fullmatch(path.name)
        if match:
            paths[int(match[1])] = path
    return dict(sorted(paths.items()))


def write_tensors(path: Path, content: Mapping[str, Any]) -> None:
    """Write what ``torch.load`` reads again with ``weights_only``, whole or not at all."""
    buffer = BytesIO()
    torch.save(dict(content), buffer)
    write_atomically(path, buffer.getvalue())


def is_held(run_dir: Path) -> bool:
    """Tell whether a run's directory is held now, as by :func:`hold_directory`."""
    if not (run_dir / _LOCK).is_file():
        return False
    try:
        with hold_directory(run_dir):
            return False
    except StorageError:
        return True
    except ConfigError:  # It cannot be written to: who begins a run there is told why.
        return False


@contextmanager
def hold_directory(
    run_dir: Path, *, setting: str = "", remedy: str = "set another run-name"
) -> Iterator[None]:
    """Hold a run's directory alone; a killed process releases it.

    One that was made here, and in which nothing was written, is removed at the end.

    Parameters
    ----------
    run_dir : Path
        The directory; it is made if it is not there.
    setting : str
        Name and value of what the user set it by; empty: ``output-dir``.
    remedy : str
        What to do where it is held, beside waiting.

    Raises
    ------
    StorageError
        If another run holds it, naming that one's process, host and start.
    ConfigError
        If it cannot be made or written to.
    """
    lock_path = run_dir / _LOCK
    lock = FileLock(lock_path)
    holder = run_dir / ".run.holder"
    since = datetime.now(UTC).isoformat(sep=" ", timespec="seconds")
    is_new = not run_dir.exists()
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
        holder.write_text(f"process {os.getpid()} on {socket.gethostname()} since {since}")
    except Timeout:
        who = ""
        if holder.is_file():
            who = holder.read_text()
        if not who:  # It has the lock, and has not yet said who it is.
            who = "another run"
        raise StorageError(f"{run_dir} is in use by {who}: wait for its end, or {remedy}") from None
    except OSError as error:
        lock.release()
        setting = setting or f"output-dir = {str(run_dir.parent)!r}"
        raise ConfigError(f"{setting}: cannot write: {error}") from error
    try:
        yield
    finally:
        # Where the disk went read-only meanwhile, what the run itself could not write counts.
        with suppress(OSError):
            holder.unlink(missing_ok=True)
            if is_new and list(run_dir.iterdir()) == [lock_path]:
                lock_path.unlink()
                run_dir.rmdir()
        lock.release()
