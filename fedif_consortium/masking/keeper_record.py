"""Who keeps a masked run's masks, and where the keeper's log ended, in the records."""

from __future__ import annotations

import logging

from fedif_consortium.masking.workspace import Masking
from fedif_flower.errors import KeeperError
from fedif_flower.run.folder import RunFolder
from fedif_flower.strategies.callbacks import Callback, RunningStrategy
from fedif_flower.strategies.reports import RoundReport

logger = logging.getLogger(__name__)


class KeeperRecord(Callback):
    """Writes ``masking.json``; the keeper's log has what was asked, by digest.

    Parameters
    ----------
    folder : RunFolder
        The run's.
    masking : Masking
        Who keeps the masks.
    keeper : str
        What records call the keeper.
    """

    def __init__(self, folder: RunFolder, masking: Masking, keeper: str) -> None:
        self._file, self._masking, self._keeper = folder.masking, masking, keeper
        self._last_round = 0

    def on_start(self, strategy: RunningStrategy) -> None:  # noqa: ARG002
        """Write down who keeps the masks."""
        self._write("")

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
        self._file.write({"keeper": self._keeper, "log": last_hash})
