"""What a keeper writes: its key, its state, which outlives a restart, and its log.

Everything is readable by its owner alone. Seeds stand in ``state.json`` and nowhere else; the file
is written anew, without them, when a round is over.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from filelock import FileLock, Timeout

from fedif_consortium.evidence.chained_log import ChainedLog, verified
from fedif_consortium.masking.interface import OpenedRound
from fedif_consortium.masking.keeper import KeeperState, KeptRound
from fedif_flower.errors import ConfigError, KeeperError, StorageError
from fedif_flower.storage import (
    append_line,
    cut_torn_line,
    make_folder,
    require_private,
    write_atomically,
    write_private,
    writing,
)

logger = logging.getLogger(__name__)
OWNER_ALONE = 0o600


class KeeperStore:
    """A keeper's folder.

    Parameters
    ----------
    folder : Path
        Made if it is not there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._state, self._log = folder / "state.json", folder / "log.txt"
        self._rows: set[Path] = set()
        make_folder(folder)
        with writing(folder):
            folder.chmod(0o700)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the folder alone; a killed process releases it.

        Raises
        ------
        StorageError
            If another keeper holds it.
        """
        try:
            with FileLock(self.folder / ".lock", timeout=0):
                yield
        except Timeout:
            raise StorageError(f"{self.folder} is in use by another keeper") from None

    def key(self) -> X25519PrivateKey:
        """Return the key that opens boxes, which is made if it is not there.

        Its public half, which members need, is in ``box-key.pub`` beside it.

        Raises
        ------
        ConfigError
            If its file has something else, or others may read it.
        """
        path = self.folder / "box-key"
        if not path.exists():
            write_private(path, X25519PrivateKey.generate().private_bytes_raw().hex().encode())
        require_private(path, "the keeper's key")
        try:
            key = X25519PrivateKey.from_private_bytes(bytes.fromhex(path.read_text()))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} has no key of a keeper: {error}") from error
        public = key.public_key().public_bytes_raw().hex() + "\n"
        write_atomically(self.folder / "box-key.pub", public)
        return key

    def load(self) -> KeeperState:
        """Return what was saved, or an empty state.

        Raises
        ------
        StorageError
            If it is damaged.
        """
        if not self._state.exists():
            return KeeperState()
        try:
            content = json.loads(self._state.read_text())
            rounds = {int(run): self._load_round(kept) for run, kept in content["rounds"].items()}
            last_rounds, vectors = (
                {int(run): count for run, count in content.get(name, {}).items()}
                for name in ("last-rounds", "vectors")
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise StorageError(f"{self._state} is damaged: {error!r}") from error
        return KeeperState(last_rounds, rounds, vectors)

    def save(self, state: KeeperState) -> None:
        """Write a state, and delete what it no longer needs.

        Raises
        ------
        StorageError
            If it cannot be written.
        """
        needed = set()
        for kept in state.rounds.values():
            for index, row in enumerate(kept.basis):
                path = self._basis(kept, index)
                needed.add(path)
                if path not in self._rows:  # One that a state was saved with never changes.
                    write_atomically(path, row.tobytes(), OWNER_ALONE)
        content = {
            "last-rounds": state.last_rounds,
            "vectors": state.vectors,
            "rounds": {run: _readable(kept) for run, kept in state.rounds.items()},
        }
        write_atomically(self._state, json.dumps(content), OWNER_ALONE)
        self._rows = needed
        with writing(self.folder):
            for path in set(self.folder.glob("basis-*")) - needed:
                path.unlink()

    def log(self) -> ChainedLog:
        """Return the log, which goes on after its last whole line.

        Raises
        ------
        EvidenceError
            If a line of it was changed.
        """
        if cut_torn_line(self._log, OWNER_ALONE):
            logger.warning("The end of %s was torn off, and is written over.", self._log)
        return ChainedLog(read_log(self._log)[1], partial(append_line, self._log))

    def _basis(self, kept: KeptRound, index: int) -> Path:
        return self.folder / f"basis-{kept.run}-{kept.server_round}-{index}"

    def _load_round(self, content: dict[str, object]) -> KeptRound:
        values: dict[str, object] = dict(content)
        rows, length = int(str(values.pop("directions"))), int(str(values["length"]))
        opened = OpenedRound(
            tuple(_list(values.pop("nodes"))),
            tuple(_list(values.pop("members"))),
            {int(node): str(reason) for node, reason in _list(values.pop("refused"))},
        )
        seeds = tuple(bytes.fromhex(seed) for seed in _list(values.pop("seeds")))
        basis = np.empty((rows, length))
        kept = KeptRound(
            answer=opened,
            seeds=seeds,
            basis=basis,
            **values,  # type: ignore[arg-type]
        )
        for index in range(rows):
            basis[index] = np.fromfile(self._basis(kept, index), np.float64)
            self._rows.add(self._basis(kept, index))
        return kept


def read_log(path: Path) -> tuple[list[dict[str, object]], str]:
    """Return the entries of a keeper's log, and its last hash.

    Raises
    ------
    KeeperError
        If it cannot be read.
    EvidenceError
        Naming the first line that was changed.
    """
    try:
        with path.open(encoding="utf-8") as file:
            return verified(file, "the keeper's log")
    except (OSError, UnicodeDecodeError) as error:
        raise KeeperError(f"{path} is no keeper's log: {error}") from error


def _readable(kept: KeptRound) -> dict[str, object]:
    """Return a round as JSON can write it; its basis has files of its own."""
    return {
        "run": kept.run,
        "server_round": kept.server_round,
        "length": kept.length,
        "opened": kept.opened,
        "boxes": kept.boxes,
        "nodes": kept.answer.nodes,
        "members": kept.answer.members,
        "refused": list(kept.answer.refused.items()),
        "seeds": [seed.hex() for seed in kept.seeds],
        "vectors": kept.vectors,
        "directions": len(kept.basis),
        "sums": kept.sums,
    }


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is no list")
    return value
