"""What a masked run asked its keeper: digests of the vectors, the vectors where they are kept."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedif_flower.errors import KeeperError, StatementError
from fedif_flower.masking import decode, encode_vectors
from fedif_flower.masking.boxes import vector_digest
from fedif_flower.masking.ring import VECTOR_BITS
from fedif_flower.messages.masked_rounds import AskedVector, Masking
from fedif_flower.run.folder import RunFolder
from fedif_flower.storage import make_folder, write_atomically, writing
from fedif_flower.strategies.callbacks import Callback
from fedif_flower.strategies.reports import RoundReport

logger = logging.getLogger(__name__)
_FILE = re.compile(r"round-(\d{6,})-[a-z]+\.npz")


class AskedVectors(Callback):
    """Writes a line of ``vectors/vectors.csv`` for each vector asked about; and who keeps masks.

    Parameters
    ----------
    folder : RunFolder
        The run's.
    masking : Masking
        Who keeps the masks.
    keeper : str
        What records call the keeper.
    keep : bool
        Also write the vectors, ``vectors/round-000001-scores.npz``: 4 bytes an entry.
    after : int
        What was written of later rounds, by an earlier attempt, is removed.
    """

    def __init__(
        self, folder: RunFolder, masking: Masking, keeper: str, *, keep: bool, after: int
    ) -> None:
        self._folder, self._masking, self._keep = folder, masking, keep
        self._keeper, self._last_round = keeper, after
        make_folder(folder.vectors)
        lines = [line for line in folder.asked.read() if int(line["round"]) <= after]
        folder.asked.replace(lines)
        with writing(folder.vectors):
            for path in folder.vectors.iterdir():
                named = _FILE.fullmatch(path.name)
                if named and int(named[1]) > after:
                    path.unlink()
        self._write("")

    def note(self, asked: AskedVector) -> None:
        """Write down what was asked."""
        self._folder.asked.append(
            [
                {
                    "round": asked.server_round,
                    "run": f"{self._masking.run:016x}",
                    "purpose": asked.purpose,
                    "sha256": asked.sha256,
                }
            ]
        )
        if self._keep:
            encoded, exponents = encode_vectors(asked.vector.numpy()[None])
            # Entries are below 1 in size, with 24 bits after the point.
            small = encoded[0].view(np.int64).astype(np.int32)
            buffer = BytesIO()
            np.savez(buffer, vector=small, exponent=exponents[0])
            write_atomically(self._path(asked.server_round, asked.purpose), buffer.getvalue())

    def on_round(self, report: RoundReport) -> None:
        """Remember which round there was last."""
        self._last_round = report.server_round

    def on_end(self) -> None:
        """Let the keeper forget the last round, and write down its log's last hash."""
        try:
            self._write(self._masking.keeper.close_round(self._masking.run, self._last_round))
        except KeeperError as error:
            logger.error("the keeper's last hash is not in the records: %s", error)

    def _write(self, last_hash: str) -> None:
        self._folder.masking.write({"keeper": self._keeper, "log": last_hash})

    def _path(self, server_round: int, purpose: str) -> Path:
        return self._folder.vectors / f"round-{server_round:06d}-{purpose}.npz"


@dataclass(frozen=True)
class KeptVector:
    """A vector ``[d]`` that a run asked about, and its digest."""

    vector: NDArray[np.float64]
    sha256: str


def read_vector(folder: RunFolder, server_round: int, purpose: str) -> KeptVector | None:
    """Return a vector that a run kept; ``None``: it did not.

    Raises
    ------
    StatementError
        If the file is damaged.
    """
    path = folder.vectors / f"round-{server_round:06d}-{purpose}.npz"
    if not path.is_file():
        return None
    try:
        with np.load(path, allow_pickle=False) as content:
            small: NDArray[Any] = content["vector"]
            exponent = int(content["exponent"])
        if small.ndim != 1 or small.dtype != np.int32:
            raise ValueError(f"{small.dtype} {small.shape}")
    except Exception as error:  # a file that was made by hand can hold anything
        raise StatementError(f"{path.name} is no kept vector: {error!r:.200}") from error
    encoded = small.astype(np.int64).view(np.uint64)
    vector = np.ldexp(decode(encoded, VECTOR_BITS), exponent)
    return KeptVector(vector, vector_digest(encoded).hex())
