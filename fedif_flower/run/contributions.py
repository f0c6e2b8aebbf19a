"""What members contributed over a run, with a confidence interval for each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedif_flower.attribution.intervals import ends_of, intervals
from fedif_flower.run.rows import Line


class Contribution(NamedTuple):
    """What a member contributed over a run, and the ends of its 95 % interval."""

    total: float | None = None
    low: float | None = None
    high: float | None = None


UNKNOWN = Contribution()


def contributions_of(
    rounds: Sequence[Line], parts: Sequence[Line], blocks: Mapping[str, float]
) -> dict[int, Contribution]:
    """Return each member's contribution over the run and the ends of its interval, by client id.

    Parameters
    ----------
    rounds : sequence of mapping
        The lines of ``attribution_rounds.csv``, one for each of T rounds.
    parts : sequence of mapping
        The lines of ``attribution.csv`` of these rounds, one for each client in a round.
    blocks : mapping of str to float
        Each of the B blocks' part of the held-out examples, by its column of ``parts``. With
        blocks, an interval says how the contribution would vary with other held-out examples.
        Empty: it says how the contribution would vary with other rounds.
    """
    client_ids = sorted({part["client_id"] for part in parts})
    per_round = _per_round(rounds, parts, client_ids)  # [T, n]
    if blocks:
        by_block = _by_block(parts, client_ids, list(blocks))  # [B, n]
        ends: NDArray[np.float64] | None = ends_of(by_block, np.array(list(blocks.values())))
    else:
        ends = intervals(per_round)  # [n, 2]
    contributions = {}
    for column, client_id in enumerate(client_ids):
        total = math.fsum(per_round[:, column])
        if ends is None:
            contributions[client_id] = Contribution(total)
        else:
            low, high = ends[column].tolist()
            contributions[client_id] = Contribution(total, low, high)
    return contributions


def _per_round(
    rounds: Sequence[Line], parts: Sequence[Line], client_ids: Sequence[int]
) -> NDArray[np.float64]:
    """Return the clients' contributions to the rounds, ``[T, n]``; 0 where a client had no part."""
    row_of = {line["round"]: row for row, line in enumerate(rounds)}
    column_of = {client_id: column for column, client_id in enumerate(client_ids)}
    per_round = np.zeros((len(row_of), len(client_ids)))
    for part in parts:
        per_round[row_of[part["round"]], column_of[part["client_id"]]] = part["contribution"]
    return per_round


def _by_block(
    parts: Sequence[Line], client_ids: Sequence[int], blocks: Sequence[str]
) -> NDArray[np.float64]:
    """Return the clients' contributions in each block, summed over the rounds, ``[B, n]``."""
    column_of = {client_id: column for column, client_id in enumerate(client_ids)}
    by_block = np.zeros((len(blocks), len(client_ids)))
    for part in parts:
        by_block[:, column_of[part["client_id"]]] += [part[block] for block in blocks]
    return by_block
