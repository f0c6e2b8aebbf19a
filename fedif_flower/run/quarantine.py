"""The decisions of a quarantine, in a file that grows with them."""

from __future__ import annotations

import csv
import dataclasses

from fedif_flower.run.config import RunConfig
from fedif_flower.storage import write_atomically, writing
from fedif_flower.strategies.attribution import PathAttribution
from fedif_flower.strategies.quarantine import Decision, Quarantine

DECISIONS = "quarantine.csv"
_COLUMNS = tuple(field.name for field in dataclasses.fields(Decision))


class RecordedQuarantine(Quarantine):
    """Writes ``quarantine.csv``, one line for each decision.

    A resumed run decides again what was decided before, from the attribution in the checkpoint.

    Parameters
    ----------
    config : RunConfig
        The run, whose ``policy`` is ``"quarantine"``.
    attribution : PathAttribution
        The run's.
    """

    def __init__(self, config: RunConfig, attribution: PathAttribution) -> None:
        super().__init__(attribution, self._append)
        self._path = config.run_dir / DECISIONS
        write_atomically(self._path, ",".join(_COLUMNS) + "\n")

    def _append(self, decision: Decision) -> None:
        with writing(self._path), self._path.open("a", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow(dataclasses.astuple(decision))
