"""Which clients are malicious, when, and which of their examples they poison."""

from __future__ import annotations

import torch
from torch import Tensor

from fedif_flower.errors import is_count, require
from fedif_flower.seeding import numpy_generator


def malicious_partitions(num_clients: int, malicious_fraction: float, seed: int) -> frozenset[int]:
    """Choose the malicious clients.

    Parameters
    ----------
    num_clients : int
        K >= 1; partition ids are 0 to K - 1.
    malicious_fraction : float
        Their share, in [0, 1] (the paper's ``n_level``).
    seed : int
        The run's seed; the choice depends on nothing else.

    Returns
    -------
    frozenset of int
        ``round(malicious_fraction * num_clients)`` partition ids.

    Raises
    ------
    ConfigError
        If an argument lies outside its range.
    """
    require(is_count(num_clients, 1), "num_clients", num_clients, "an integer >= 1")
    is_share = 0 <= malicious_fraction <= 1
    require(is_share, "malicious_fraction", malicious_fraction, "a number from 0 to 1")
    order = numpy_generator("malicious-partitions", seed).permutation(num_clients)
    return frozenset(order[: round(malicious_fraction * num_clients)].tolist())


def poison_ratio(low: float, high: float, seed: int, partition_id: int) -> float:
    """Draw the share of a malicious client's samples that it poisons, uniform in [low, high].

    Parameters
    ----------
    low, high : float
        0 <= low <= high <= 1 (the paper's range of ``n_ratio``).
    seed : int
        The run's seed.
    partition_id : int
        The client; it keeps its ratio for the whole run.

    Raises
    ------
    ConfigError
        If the range is none.
    """
    require(0 <= low <= high <= 1, "poison ratio", (low, high), "0 <= low <= high <= 1")
    return float(numpy_generator("poison-ratio", seed, partition_id).uniform(low, high))


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
        How many rounds an attack lasts, >= 0; 0: it does not end.

    Raises
    ------
    ConfigError
        If an argument lies outside its range.
    """
    require(is_count(first_round, 1), "first_round", first_round, "an integer >= 1")
    require(is_count(period, 0), "period", period, "an integer >= 0")
    since = server_round - first_round
    return since >= 0 and (period == 0 or (since // period) % 2 == 0)


def choose(count: int, ratio: float, generator: torch.Generator) -> Tensor:
    """Draw ``round(ratio * count)`` distinct indices out of ``range(count)``, in random order.

    Parameters
    ----------
    count : int
        Examples to choose from, >= 0.
    ratio : float
        Share to choose, in [0, 1].
    generator : torch.Generator
        On the CPU.

    Returns
    -------
    Tensor
        ``[round(ratio * count)]`` int64.

    Raises
    ------
    ConfigError
        If the share lies outside its range.
    """
    require(0 <= ratio <= 1, "ratio", ratio, "a number from 0 to 1")
    return torch.randperm(count, generator=generator)[: round(ratio * count)]
