r"""Differential privacy at the member: noise on what leaves, and what it has cost so far.

A reply's update u, no longer than C, leaves as

.. math:: u + z\,C\,\xi, \qquad \xi \sim N(0, I)

with the noise multiplier z. Two inputs of the member that differ in whether its update is there at
all (u or 0) are told apart no better than N(0, 1) and N(1/z, 1), and after several replies than
with :math:`1/z^2 = \sum_t 1/z_t^2`: a composition of Gaussian mechanisms is one, also where each
reply depends on those before (Dong, Roth, Su: Gaussian differential privacy, 2022, Corollary 2).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from typing import cast

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter
from scipy.special import ndtri

from fedif_consortium.member.node_log import NodeLog
from fedif_flower.errors import ConfigError, RefusedByMemberError, StorageError
from fedif_flower.foreign import refused_as
from fedif_flower.storage import write_atomically

Floats = NDArray[np.float64]
_REPLIES = "replies by noise multiplier"
_FILED = TypeAdapter(dict[str, dict[float, int]])
_GRID = 16  # Noisy values are multiples of the noise's length times 2 to the -16, about.


class PrivacyBudget:
    """What the replies of a member have cost, of all its runs together.

    It lies in a file of the log's folder, and outlives restarts. The process that holds the log
    holds it as well.

    Parameters
    ----------
    log : NodeLog
        Each reply gets a line there that says what all have cost.
    noise_multiplier : float
        z > 0, of the replies to come.
    delta : float
        The delta at which epsilon is stated.
    most : float
        The budget: the largest epsilon of all replies together.

    Raises
    ------
    ConfigError
        If dp-accounting is not installed, or the first reply would cost more than the budget.
    StorageError
        If the file is damaged.
    """

    def __init__(self, log: NodeLog, noise_multiplier: float, delta: float, most: float) -> None:
        self._log = log
        self._path = log.folder / "privacy.json"
        self._multiplier = noise_multiplier
        self._delta = delta
        self._most = most
        self._read_replies()
        cost = epsilon_of({noise_multiplier: 1}, delta)
        if cost > most:
            raise ConfigError(
                f"noise-multiplier = {noise_multiplier:g}: one reply costs an epsilon of "
                f"{cost:.3g} at target-delta = {delta:g}, more than most-epsilon = {most:g}"
            )

    def _read_replies(self) -> dict[float, int]:
        """Return how many replies left, by noise multiplier; a StorageError if it is damaged."""
        with refused_as(StorageError, f"{self._path} is damaged"):
            if not self._path.exists():
                return {}
            return _FILED.validate_json(self._path.read_bytes())[_REPLIES]

    def charge(self, run_id: int) -> None:
        """Write down one more reply, of a run, and what all have cost.

        Raises
        ------
        RefusedByMemberError
            If that is more than the budget; then nothing is written.
        StorageError
            If it cannot be written, or is damaged.
        """
        replies = self._read_replies()
        replies[self._multiplier] = replies.get(self._multiplier, 0) + 1
        epsilon = epsilon_of(replies, self._delta)
        if epsilon > self._most:
            raise RefusedByMemberError(
                "the privacy budget is spent",
                f"epsilon = {epsilon:.4g} at delta {self._delta:g}; most-epsilon = {self._most:g}",
            )
        write_atomically(self._path, json.dumps({_REPLIES: replies}) + "\n", mode=0o600)
        self._log.append(
            direction="out",
            run=run_id,
            kind="privacy",
            epsilon=epsilon,
            delta=self._delta,
            replies=sum(replies.values()),
        )


def epsilon_of(replies: Mapping[float, int], delta: float) -> float:
    """Return the epsilon of replies by noise multiplier, at ``delta``.

    Parameters
    ----------
    replies : mapping of float to int
        How many left with which noise multiplier, > 0.
    delta : float
        In 0 to 1.

    Raises
    ------
    ConfigError
        If dp-accounting is not installed.
    """
    with refused_as(ConfigError, "noise-multiplier needs pip install 'fedif-flower[consortium]'"):
        from dp_accounting import get_epsilon_gaussian
    precision = sum(count / multiplier**2 for multiplier, count in replies.items())
    return float(get_epsilon_gaussian(precision**-0.5, delta))


def add_noise(values: Floats, std: float) -> Floats:
    """Return values with Gaussian noise, all multiples of one power of two.

    Parameters
    ----------
    values : NDArray
        Of any shape.
    std : float
        The noise's standard deviation > 0.
    """
    # Sums of floating-point numbers have gaps that tell what was added to the noise (Mironov:
    # On significance of the least significant bits for differential privacy, 2012).
    grid = 2.0 ** (math.floor(math.log2(std)) - _GRID)
    noise = std * secure_normal(values.size).reshape(values.shape)
    return np.rint((values + noise) / grid) * grid


def secure_normal(size: int) -> Floats:
    """Return draws of N(0, 1) from the operating system's cryptographic randomness.

    The noise keeps a secret from a server that sees most of it: where an update is 0, it sees the
    noise itself. From such draws the state of a generator made for statistics can be worked out,
    and with it all other noise.
    """
    words = np.frombuffer(os.urandom(8 * size), np.uint64)
    # 63 bits choose how far out, to 9.2 standard deviations; one the sign.
    tail = ((words >> np.uint64(1)).astype(np.float64) + 0.5) * 2.0**-64  # In 0 to 1/2.
    magnitude = -cast(Floats, ndtri(tail))
    return np.where(words & np.uint64(1), magnitude, -magnitude)
