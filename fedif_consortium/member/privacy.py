r"""Differential privacy at the member: noise on updates, and the privacy budget that they cost.

A reply's update u, which is no longer than C (``clip-length``), leaves as

.. math:: u + z\,C\,\xi, \qquad \xi \sim N(0, I)

with the noise multiplier z. An observer of one reply has to tell whether it was made from u or from
0. That is at least as hard as to tell N(1/z, 1) from N(0, 1). For replies t = 1, 2, ... with noise
multipliers :math:`z_t`, the same holds with :math:`1/z^2 = \sum_t 1/z_t^2`: a composition of
Gaussian mechanisms is a Gaussian mechanism, even if each reply depends on those before (Dong, Roth,
Su: Gaussian differential privacy, 2022, Corollary 2).
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
_FILED = TypeAdapter(dict[str, dict[float, int]])  # The content of the budget's file.
_GRID = 16  # Noisy values are multiples of a power of two, which is about std * 2**-16.


class PrivacyBudget:
    """Counts the noisy replies of all runs of a member, and refuses those beyond the budget.

    The counts are kept in ``privacy.json`` in the log's folder, so that they outlive restarts. Only
    the process that has the log open may use them.

    Parameters
    ----------
    log : NodeLog
        Gets a line for each reply, with the epsilon of all replies so far.
    noise_multiplier : float
        z > 0 of the replies to come.
    delta : float
        The delta at which epsilon is stated, in 0 to 1.
    most : float
        The budget: the largest epsilon that all replies together may have.

    Raises
    ------
    ConfigError
        If dp-accounting is not installed, or a single reply would cost more than the budget.
    StorageError
        If the file is damaged.
    """

    def __init__(self, log: NodeLog, noise_multiplier: float, delta: float, most: float) -> None:
        self._log = log
        self._path = log.folder / "privacy.json"
        self._multiplier = noise_multiplier
        self._delta = delta
        self._most = most
        self._read_replies()  # Raises StorageError now if the file is damaged.
        cost = epsilon_of({noise_multiplier: 1}, delta)
        if cost > most:
            raise ConfigError(
                f"noise-multiplier = {noise_multiplier:g}: one reply costs an epsilon of "
                f"{cost:.3g} at target-delta = {delta:g}, more than most-epsilon = {most:g}"
            )

    def _read_replies(self) -> dict[float, int]:
        """Return how many replies left, by noise multiplier.

        Raises
        ------
        StorageError
            If the file is damaged.
        """
        with refused_as(StorageError, f"{self._path} is damaged"):
            if not self._path.exists():
                return {}
            return _FILED.validate_json(self._path.read_bytes())[_REPLIES]

    def charge(self, run_id: int) -> None:
        """Count one more reply, in a run with Flower's id ``run_id``, before it leaves.

        Raises
        ------
        RefusedByMemberError
            If all replies together would cost more than the budget; then nothing is written.
        StorageError
            If the file is damaged, or file or log cannot be written; then the reply must not leave.
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
    """Return the epsilon of all replies together, at ``delta``.

    Parameters
    ----------
    replies : mapping of float to int
        The number of replies by noise multiplier > 0; at least one reply.
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
    """Return values with Gaussian noise, rounded to multiples of one power of two.

    Parameters
    ----------
    values : ndarray of float64
        The values, of any shape.
    std : float
        The noise's standard deviation > 0.
    """
    # Without rounding, the low bits of a floating-point sum would reveal what was added to the
    # noise (Mironov: On significance of the least significant bits for differential privacy, 2012).
    grid = 2.0 ** (math.floor(math.log2(std)) - _GRID)
    noise = std * secure_normal(values.size).reshape(values.shape)
    return np.rint((values + noise) / grid) * grid


def secure_normal(size: int) -> Floats:
    """Return ``size`` draws of N(0, 1) from the operating system's cryptographic randomness.

    A generator for statistics would not do. The server sees the noise itself wherever an update is
    0. From such draws it could compute the state of that generator, and then all other noise.
    """
    words = np.frombuffer(os.urandom(8 * size), np.uint64)
    # The upper 63 bits give the magnitude, up to 9.2 standard deviations, and the lowest the sign.
    tail = ((words >> np.uint64(1)).astype(np.float64) + 0.5) * 2.0**-64  # In (0, 1/2].
    magnitude = -cast(Floats, ndtri(tail))
    return np.where(words & np.uint64(1), magnitude, -magnitude)
