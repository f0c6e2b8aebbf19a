"""How often a member took part: counted in a file, so that a restart does not begin anew."""

from __future__ import annotations

from datetime import date
from pathlib import Path

from pydantic import BaseModel

from fedif_consortium.member.run_rules import RunRules
from fedif_flower.errors import ConfigError, RefusedByMemberError
from fedif_flower.foreign import refused_as
from fedif_flower.storage import make_folder, write_atomically

TRAIN = "train"


class _Counts(BaseModel, strict=True):
    """What was answered on a day."""

    day: date = date.min
    rounds: int = 0
    messages: int = 0


class RoundCounts:
    """Counts rounds and messages, and refuses those that are too many.

    Parameters
    ----------
    state : Path
        The folder of the policy's state.
    rules : RunRules
        How many there may be.

    Raises
    ------
    ConfigError
        If there is a file that is not what this class wrote.
    """

    def __init__(self, state: Path, rules: RunRules) -> None:
        self._path, self._rules = state / "round-counts.json", rules
        self._counts = _Counts()
        with refused_as(ConfigError, f"{self._path}; without it counts begin at 0"):
            if self._path.exists():
                self._counts = _Counts.model_validate_json(self._path.read_bytes())

    def count(self, kind: str, today: date) -> None:
        """Count a message before it is answered.

        Parameters
        ----------
        kind : str
            Its type; ``"train"``, and ``"train."`` with a name, begin a round.
        today : date
            The day in UTC.

        Raises
        ------
        RefusedByMemberError
            If it is one too many.
        StorageError
            If the count cannot be written; then the message must not be answered.
        """
        before = self._counts if self._counts.day == today else _Counts()
        is_round = kind.partition(".")[0] == TRAIN
        found = _Counts(day=today, rounds=before.rounds + is_round, messages=before.messages + 1)
        for count, most, what in (
            (found.rounds if is_round else 0, self._rules.most_rounds_a_day, "rounds"),
            (found.messages, self._rules.most_messages_a_day, "messages"),
        ):
            if 0 < most < count:
                raise RefusedByMemberError(f"this member takes part in at most {most} {what} a day")
        make_folder(self._path.parent)
        write_atomically(self._path, found.model_dump_json() + "\n")
        self._counts = found
