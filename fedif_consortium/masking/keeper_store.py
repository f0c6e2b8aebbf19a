"""What a keeper writes: its key, its log, and what it counts beyond a round in ``state.json``.

Everything is readable by its owner alone. Seeds are not written: a keeper that ends in the middle
of a round fails that round, and the next one goes on.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from filelock import FileLock, Timeout

from fedif_consortium.evidence.chained_log import ChainedLog, verified
from fedif_consortium.masking.keeper import KeeperState
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
            last_rounds, vectors = (
                {int(run): int(count) for run, count in content[name].items()}
                for name in ("last-rounds", "vectors")
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise StorageError(f"{self._state} is damaged: {error!r}") from error
        return KeeperState(last_rounds, vectors)

    def save(self, state: KeeperState) -> None:
        """Write a state.

        Raises
        ------
        StorageError
            If it cannot be written.
        """
        content = {"last-rounds": state.last_rounds, "vectors": state.vectors}
        write_atomically(self._state, json.dumps(content), OWNER_ALONE)

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
