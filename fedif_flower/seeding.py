"""One random generator per purpose, derived from the run's seed.

No draw depends on which process makes it, on how many clients run at once, or on what
was drawn before: every generator is a function of ``(purpose, seed, ids)`` alone.
"""

from __future__ import annotations

import zlib

import numpy as np
import torch


def _sequence(purpose: str, seed: int, ids: tuple[int, ...]) -> np.random.SeedSequence:
    # NumPy pads a short sequence with zeros. The number of ids keeps (seed, 0) apart from (seed).
    return np.random.SeedSequence([seed, zlib.crc32(purpose.encode()), len(ids), *ids])


def derive_seed(purpose: str, seed: int, *ids: int) -> int:
    """Return a 63-bit seed for one purpose.

    Parameters
    ----------
    purpose : str
        What the draws are for, e.g. ``"label-noise"``.
    seed : int
        The run's seed, >= 0.
    *ids : int
        Numbers that the draws may depend on, each >= 0, such as partition id and round.

    Returns
    -------
    int
        A seed in [0, 2**63).
    """
    return int(_sequence(purpose, seed, ids).generate_state(1, np.uint64)[0]) >> 1


def numpy_generator(purpose: str, seed: int, *ids: int) -> np.random.Generator:
    """Return a NumPy generator for one purpose (see :func:`derive_seed`)."""
    return np.random.default_rng(_sequence(purpose, seed, ids))


def torch_generator(purpose: str, seed: int, *ids: int) -> torch.Generator:
    """Return a CPU torch generator for one purpose (see :func:`derive_seed`)."""
    return torch.Generator().manual_seed(derive_seed(purpose, seed, *ids))
