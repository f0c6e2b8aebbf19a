"""What every tracker does: turns rounds into named numbers."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from fedif_flower.strategies.callbacks import Callback
from fedif_flower.strategies.reports import RoundReport, client_line, round_line

# Of each member; the other columns of clients.csv are no curves.
MEMBER_VALUES = ("score", "weight_score", "weight", "train_loss", "train_seconds")

logger = logging.getLogger(__name__)


class Tracker(Callback):
    """Sends each round's and each member's numbers to a place where people look at curves.

    Names are ``round/<name>`` for a round, with the metrics of its model, and
    ``members/<client id>/<name>`` for a member; steps are rounds. A place that fails during a run
    is given up with a warning: the run goes on. A subclass says how to :meth:`log`.
    """

    _given_up = False

    def log(self, server_round: int, values: Mapping[str, float]) -> None:
        """Send a round's numbers, all finite."""
        raise NotImplementedError

    def close(self) -> None:
        """Send what is left, and let go of the place."""

    def on_round(self, report: RoundReport) -> None:
        """Send a round's numbers, and each member's."""
        values = {f"round/{name}": value for name, value in round_line(report).items()}
        for client in report.clients:
            line = client_line(report.server_round, client)
            values |= {
                f"members/{line['client_id']}/{name}": line[name]
                for name in MEMBER_VALUES
                if line[name] is not None
            }
        self._send(report.server_round, values)

    def on_metrics(self, server_round: int, metrics: Mapping[str, float]) -> None:
        """Send what evaluation and other callbacks said of a round's model."""
        self._send(server_round, {f"round/{name}": value for name, value in metrics.items()})

    def on_end(self) -> None:
        """Close the place."""
        self._guarded(self.close)

    def _send(self, server_round: int, values: Mapping[str, Any]) -> None:
        numbers = {
            name: float(value)
            for name, value in values.items()
            if name != "round/round" and isinstance(value, int | float) and math.isfinite(value)
        }
        if numbers:
            self._guarded(self.log, server_round, numbers)

    def _guarded(self, call: Any, *arguments: Any) -> None:
        if self._given_up:
            return
        try:
            call(*arguments)
        except Exception as error:  # A server that is away must not end a federation.
            self._given_up = True
            logger.warning("%s is given up: %r", type(self).__name__, error)
