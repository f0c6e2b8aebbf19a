"""Which clients are malicious, and their poison ratios: drawn once from the run's seed."""

from __future__ import annotations

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
    """
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
    """
    return float(numpy_generator("poison-ratio", seed, partition_id).uniform(low, high))
