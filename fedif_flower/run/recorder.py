"""The records of a run, written round by round and readable after a crash.

``config.json`` comes first, ``rounds.csv`` and ``clients.csv`` grow by whole lines, and
``summary.json`` comes last: its presence means that the run completed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from fedif_flower.messages.client_node import ClientNode
from fedif_flower.run.completeness import CompletenessRule, configured_rule
from fedif_flower.run.config import RunConfig
from fedif_flower.run.journal import Lines
from fedif_flower.run.report import run_title
from fedif_flower.run.rows import (
    AttendanceRow,
    ClientRow,
    RoundRow,
    checked_row,
    rows_between,
)
from fedif_flower.run.server_evaluation import ServerEvaluation
from fedif_flower.run.writer import OnRow, RunWriter
from fedif_flower.strategies.attributed import RoundAttribution
from fedif_flower.strategies.callbacks import RunningStrategy
from fedif_flower.tasks.task import Metric


class RunRecorder(RunWriter):
    """Writes the results of a run that has a run config: its settings, model and summary too.

    Parameters
    ----------
    config : RunConfig
        The run; results go to ``config.run_dir``, replacing those of an earlier run there.
    is_malicious : callable
        Tells whether a client is known to misbehave, to mark it in the results.
    on_row : callable, optional
        Called with each line of ``rounds.csv``.
    metrics : sequence of Metric
        What is evaluated beside loss and accuracy: a column each for test and validation.
    evaluation : ServerEvaluation, optional
        Measures the models that are due; ``None``: nothing is measured.
    resumed : bool
        Whether the run goes on: what is there is replaced by :meth:`load_state_dict`, once a
        checkpoint's lines have been checked.

    Raises
    ------
    ConfigError
        If ``output-dir`` cannot be written to.
    """

    def __init__(
        self,
        config: RunConfig,
        is_malicious: Callable[[ClientNode], bool],
        on_row: OnRow | None = None,
        metrics: Sequence[Metric] = (),
        evaluation: ServerEvaluation | None = None,
        *,
        resumed: bool = False,
    ) -> None:
        self.config = config
        self._resumed = resumed
        super().__init__(
            config.run_dir,
            every=config.eval_every,
            title=run_title(config.to_mapping(), config.subject),
            is_malicious=is_malicious,
            on_row=on_row,
            metrics=metrics,
        )
        self.evaluation = evaluation or self.evaluation

    @property
    def _place(self) -> str:
        return f"output-dir = {self.config.output_dir!r}:"

    @property
    def last_round(self) -> int:
        """The last round there will be."""
        return self.config.num_server_rounds

    @property
    def rule(self) -> CompletenessRule:
        """When the run counts as complete."""
        return configured_rule(self.config.to_mapping())

    def is_due(self, server_round: int) -> bool:
        """Tell whether a round's model is to be evaluated: the last one's always is."""
        return super().is_due(server_round) or server_round == self.last_round

    def on_start(self, strategy: RunningStrategy) -> None:
        """Note whose weight scores are written; contributions are a resumed run's, too."""
        self._strategy = strategy

    def on_end(self) -> None:
        """Leave the report to whoever finishes the run."""

    def _begin(self) -> None:
        if not self._resumed:
            self._replace()

    def _replace(self) -> None:
        self.folder.begin()
        self.folder.config.write(self.config.to_mapping())
        self._write_tables()

    def lines(self, after: int, last_round: int) -> dict[str, list[dict[str, Any]]]:
        """Return the lines of the rounds after one, up to another, by table."""
        rounds = rows_between(self.rounds, after, last_round)
        clients = rows_between(self.clients, after, last_round)
        attendance = rows_between(self.attendance, after, last_round)
        return {
            "rounds": [dict(vars(row)) for row in rounds],
            "clients": [dict(vars(row)) for row in clients],
            "attendance": [dict(vars(row)) for row in attendance],
        }

    def state_dict(self) -> dict[str, Any]:
        """Return what is not in the lines: the seconds so far, and what members are called."""
        return {"seconds": time.perf_counter() - self._started, "names": dict(self.names)}

    def load_state_dict(self, state: Mapping[str, Any], lines: Lines, last_round: int) -> None:
        """Take over what :meth:`state_dict` returned and all lines, in place of what is there.

        Raises
        ------
        ValueError, TypeError, KeyError
            If the lines are not those of a run up to this round.
        """
        rounds = [checked_row(RoundRow, row) for row in lines["rounds"]]
        clients = [checked_row(ClientRow, row) for row in lines.get("clients", ())]
        attendance = [checked_row(AttendanceRow, row) for row in lines.get("attendance", ())]
        if [row.round for row in rounds] != list(range(last_round + 1)):
            raise ValueError(f"its records are not those of the rounds 0 to {last_round}")
        of_members = [row.round for row in clients] + [row.round for row in attendance]
        if not all(1 <= number <= last_round for number in of_members):
            raise ValueError("its records name clients of rounds that were not run")
        names = {int(key): str(name) for key, name in state.get("names", {}).items()}
        self._started = time.perf_counter() - float(state["seconds"])
        self.rounds, self.clients, self.attendance = rounds, clients, attendance
        self._replace()
        self._add_names(names)

    def finish(
        self, state_dict: Mapping[str, Tensor], attributed: Sequence[RoundAttribution] | None = None
    ) -> dict[str, Any]:
        """Write model, report and, last of all, ``summary.json``; return the summary.

        ``attributed`` are the run's rounds, where it attributed them.
        """
        settings = self.config.to_mapping()
        return self._conclude(settings, self.config.device, state_dict, attributed)
