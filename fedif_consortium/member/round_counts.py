"""How often a member took part: counted in a file, so that a restart does not begin anew."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

from fedif_consortium.member.run_rules import RunRules
from fedif_flower.errors import ConfigError, RefusedByMemberError
from fedif_flower.storage import make_folder, write_atomically

TRAIN = "train"
MOST_RUNS = 1000  # Whose rounds are remembered.


class RoundCounts:
    """Counts rounds and messages, and refuses those that are too many.

    Parameters
    ----------
    path : Path
        The file, JSON; made where it is not there.
    rules : RunRules
        How many there may be.

    Raises
    ------
    ConfigError
        If the file is there and is not what this class wrote.
    """

    def __init__(self, path: Path, rules: RunRules) -> None:
        self._path, self._rules = path, rules
        self._day, self._rounds, self._messages = "", 0, 0
        self._by_run: dict[str, int] = {}
        try:
            found = json.loads(path.read_bytes()) if path.exists() else None
            if found is not None:
                self._day, self._rounds, self._messages = (
                    str(found["day"]),
                    int(found["rounds"]),
                    int(found["messages"]),
                )
                self._by_run = {str(run): int(count) for run, count in found["by-run"].items()}
        except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
            raise ConfigError(
                f"{path} does not hold counts of rounds: {error}; without it they begin at 0"
            ) from error

    def count(self, run_id: int, kind: str, today: date) -> None:
        """Count a message before it is answered.

        Parameters
        ----------
        run_id : int
            Its run.
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
        rules, run = self._rules, str(run_id)
        if self._day != (day := today.isoformat()):
            self._day, self._rounds, self._messages = day, 0, 0
        is_round = kind.partition(".")[0] == TRAIN
        of_run = self._by_run.get(run, 0) + is_round
        _allow(of_run, rules.most_rounds, "rounds of a run")
        _allow(self._rounds + is_round, rules.most_rounds_a_day, "rounds a day")
        _allow(self._messages + 1, rules.most_messages_a_day, "messages a day")
        self._rounds += is_round
        self._messages += 1
        if is_round:
            self._by_run.pop(run, None)
            self._by_run[run] = of_run  # The last one to be forgotten.
        while len(self._by_run) > MOST_RUNS:
            del self._by_run[next(iter(self._by_run))]
        make_folder(self._path.parent)
        written = {
            "day": self._day,
            "rounds": self._rounds,
            "messages": self._messages,
            "by-run": self._by_run,
        }
        write_atomically(self._path, json.dumps(written) + "\n")


def _allow(count: int, most: int, what: str) -> None:
    if most and count > most:
        raise RefusedByMemberError(f"this member takes part in at most {most} {what}")
