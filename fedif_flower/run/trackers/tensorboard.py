"""TensorBoard; needs ``pip install 'fedif-flower[tensorboard]'``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from fedif_flower.run.trackers.tracker import Tracker


class TensorBoardTracker(Tracker):
    """Writes TensorBoard's event files; ``tensorboard --logdir DIRECTORY`` shows them.

    Parameters
    ----------
    directory : str or Path
        Where to; curves of an earlier process there are continued.
    """

    def __init__(self, directory: str | Path) -> None:
        self._writer = SummaryWriter(str(directory))

    def log(self, server_round: int, values: Mapping[str, float]) -> None:
        """Write the numbers of a round."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, server_round)
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()
