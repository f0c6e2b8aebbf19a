"""What a keeper writes: its key, its log, and what it counts beyond a round in ``state.json``.

Everything is readable by its owner alone. Seeds are not written: a keeper that ends in the middle
of a round fails that round, and the next one goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from filelock import FileLock, Timeout

from fedif_consortium.evidence.chained_log import open_log
from fedif_consortium.evidence.keys import VerifyingKey
from fedif_consortium.masking.keeper import Keeper, KeeperState
from fedif_consortium.masking.policy import KeeperPolicy
from fedif_flower.errors import ConfigError, StorageError
from fedif_flower.storage import (
    make_folder,
    require_private,
    write_atomically,
    write_private,
    writing,
)

OWNER_ALONE = 0o600


class KeeperStore:
    """A keeper's folder.

    Parameters
    ----------
    folder : Path
        Made if it is not there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "log.txt"
        self.public = folder / "box-key.pub"  # What members need.
        self._state = folder / "state.json"
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

    def keeper(self, policy: KeeperPolicy, members: Mapping[str, VerifyingKey]) -> Keeper:
        """Return a keeper with what the folder remembers.

        Raises
        ------
        FedIFError
            If a file is not what a keeper wrote.
        """
        state, log = self.load(), open_log(self.log)
        return Keeper(policy, members, self.key(), state=state, save=self._save, log=log)

    def key(self) -> X25519PrivateKey:
        """Return the key that opens boxes, which is made, with its public half, if it is not there.

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
        write_atomically(self.public, key.public_key().public_bytes_raw().hex() + "\n")
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
            return KeeperState.model_validate_json(self._state.read_bytes())
        except (OSError, ValueError) as error:
            raise StorageError(f"{self._state} is damaged: {error}") from error

    def _save(self, state: KeeperState) -> None:
        write_atomically(self._state, state.model_dump_json(), OWNER_ALONE)
