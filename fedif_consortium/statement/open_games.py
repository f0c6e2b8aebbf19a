"""Which games for a larger share a run's settings leave open: said by the statement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CREDIT_BOUNDS: Mapping[str, str] = {
    "length": "updates are credited however long they are",
    "borrowed": "members are credited for repeating the last global steps",
    "weight": "members are credited for any weight that they get or claim",
}


def open_games(config: Mapping[str, Any]) -> list[str]:
    """Return what can be farmed in a run, a sentence each without its full stop.

    Parameters
    ----------
    config : mapping
        The run's settings by their keys, as in ``config.json``.
    """
    found = [
        f"credit.{name} = 0: {words}"
        for name, words in CREDIT_BOUNDS.items()
        if not float(config.get(f"credit.{name}", 0.0))
    ]
    if not config.get("credit.secret-validation", False):
        found.append(
            "credit.secret-validation = false: contributions are measured on the data that weigh, "
            "and a member who knows these and trains on them is paid for it"
        )
    if config.get("strategy") == "influence-descent" and not config.get(
        "influence-descent.relative", False
    ):
        found.append("influence-descent.relative = false: who repeats the last step gains weight")
    return found
