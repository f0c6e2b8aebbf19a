"""On and off: from which round on malicious clients attack, and when they behave again."""

from __future__ import annotations


def attacks_now(server_round: int, first_round: int, period: int) -> bool:
    """Tell whether malicious clients attack in a round.

    They are honest before ``first_round``. From then on they attack for ``period`` rounds, are
    honest for as many, and so on; without a period they attack until the end.

    Parameters
    ----------
    server_round : int
        t >= 1.
    first_round : int
        >= 1.
    period : int
        Rounds, >= 0; 0: no end.
    """
    since = server_round - first_round
    return since >= 0 and (period == 0 or (since // period) % 2 == 0)
