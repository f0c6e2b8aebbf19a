"""When a run gives up: after too many failed rounds in a row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedif_flower.errors import TrainingFailedError
from fedif_flower.messages.screening import Screening


class FailureCount:
    """Counts rounds in a row that failed, or in which most clients did.

    Parameters
    ----------
    maximum : int
        The run ends with an error after this many, >= 1.
    """

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self.rounds = 0

    def update(
        self, server_round: int, screening: Screening, num_asked: int, *, failed: bool
    ) -> None:
        """Take in a round; ``failed`` says that it left the model as it was.

        Raises
        ------
        TrainingFailedError
            If there were too many.
        """
        most_failed = screening.num_failed * 2 > num_asked
        self.rounds = self.rounds + 1 if failed or most_failed else 0
        if self.rounds >= self.maximum:
            last = next((r.reason for r in screening.refused), "the model could not be aggregated")
            raise TrainingFailedError(
                f"{self.rounds} rounds in a row failed, the last being round {server_round} with "
                f"{len(screening.accepted)} valid replies of {num_asked}; first reason: {last}"
            )

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on."""
        return {"rounds": self.rounds}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""
        self.rounds = state["rounds"]
