"""What a masked run asked its keeper: digests of the vectors."""

from __future__ import annotations

import logging

from fedif_consortium.masking.workspace import Masking
from fedif_flower.errors import KeeperError
from fedif_flower.run.folder import RunFolder
from fedif_flower.storage import make_folder
from fedif_flower.strategies.callbacks import Callback, RunningStrategy
from fedif_flower.strategies.reports import RoundReport

logger = logging.getLogger(__name__)


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
    after : int
        What was written of later rounds, by an earlier attempt, is removed.
    """

    def __init__(self, folder: RunFolder, masking: Masking, keeper: str, *, after: int) -> None:
        self._folder, self._masking = folder, masking
        self._keeper, self._last_round = keeper, after

    def on_start(self, strategy: RunningStrategy) -> None:  # noqa: ARG002
        """Begin behind what was asked in the rounds so far."""
        make_folder(self._folder.vectors)
        lines = self._folder.asked.read()
        self._folder.asked.replace(line for line in lines if int(line["round"]) <= self._last_round)
        self._write("")

    def note(self, server_round: int, purpose: str, sha256: str) -> None:
        """Write down what was asked."""
        run = f"{self._masking.run:016x}"
        row = {"round": server_round, "run": run, "purpose": purpose, "sha256": sha256}
        self._folder.asked.append([row])

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
