"""The records of a run, written round by round and readable after a crash.

``config.json`` comes first, ``rounds.csv`` and ``clients.csv`` grow by whole lines, and
``summary.json`` comes last: its presence means that the run completed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from fedif_flower.run.checkpoint import Checkpoint
from fedif_flower.run.config import RunConfig
from fedif_flower.run.results import run_title
from fedif_flower.run.rows import Line
from fedif_flower.run.writer import RunWriter
from fedif_flower.strategies.callbacks import RunningStrategy


class RunRecorder(RunWriter):
    """Writes the results of a run that has a run config: its settings, model and summary too.

    Parameters
    ----------
    config : RunConfig
        The run; results go to ``config.run_dir``, replacing those of an earlier run there.
    resumed : bool
        Whether the run goes on: what is there is replaced by :meth:`load_state_dict`, once a
        checkpoint's lines have been checked.
    **arguments
        Of :class:`RunWriter`: what is measured, and who is told.

    Raises
    ------
    ConfigError
        If ``output-dir`` cannot be written to.
    """

    def __init__(self, config: RunConfig, *, resumed: bool = False, **arguments: Any) -> None:
        self.config = config
        self._resumed = resumed
        title = run_title(config.to_mapping())
        super().__init__(config.run_dir, every=config.eval_every, title=title, **arguments)

    @property
    def _place(self) -> str:
        return f"output-dir = {self.config.output_dir!r}:"

    def is_due(self, server_round: int) -> bool:
        """Tell whether a round's model is to be evaluated: the last one's always is."""
        return super().is_due(server_round) or server_round == self.config.num_server_rounds

    def on_start(self, strategy: RunningStrategy) -> None:
        """Note whose weight scores are written; contributions are a resumed run's, too."""
        self._strategy = strategy

    def on_end(self) -> None:
        """Leave the report to whoever finishes the run."""

    def _begin(self) -> None:
        if not self._resumed:
            super()._begin()
            self.folder.config.write(self.config.to_mapping())

    def lines_between(self, after: int, last_round: int) -> dict[str, list[Line]]:
        """Return the lines of the rounds after one, up to another, by table."""
        return {
            table: [line for line in lines if after < line["round"] <= last_round]
            for table, lines in self.lines.items()
        }

    def state_dict(self) -> dict[str, Any]:
        """Return what is not in the lines: the seconds so far, and what members are called."""
        return {"seconds": time.perf_counter() - self._started, "names": dict(self.names)}

    def load_state_dict(self, checkpoint: Checkpoint) -> None:
        """Take over what a checkpoint has of records and lines, in place of what is there.

        Raises
        ------
        ValueError, TypeError, KeyError
            If the lines are not those of a run up to this round.
        """
        state, lines, last = checkpoint.records, checkpoint.lines, checkpoint.server_round
        if [row["round"] for row in lines["rounds"]] != list(range(last + 1)):
            raise ValueError(f"its records are not those of the rounds 0 to {last}")
        self._started = time.perf_counter() - float(state["seconds"])
        self._resumed = False
        self._begin()
        for table in self.lines:
            self._add(table, lines.get(table, ()))
        self._add_names({int(key): str(name) for key, name in state["names"].items()})

    def finish(self, state_dict: Mapping[str, Tensor]) -> dict[str, Any]:
        """Write model, report and, last of all, ``summary.json``; return the summary."""
        return self._conclude(self.config.to_mapping(), self.config.device, state_dict)
