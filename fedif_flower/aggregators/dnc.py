"""Divide and conquer: leave out updates that lie far along the main direction of their spread."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import torch

from fedif_flower.aggregators.linear_algebra import gram_matrix
from fedif_flower.aggregators.small_rounds import SmallRounds
from fedif_flower.constructors import CheckedFields
from fedif_flower.round import Aggregation, RoundUpdates
from fedif_flower.settings import MaliciousFraction, Setting

COORDINATES = 10_000  # How many random coordinates each iteration looks at.


@dataclass(frozen=True)
class DnC(CheckedFields):
    r"""Average the updates that do not stand out along the main direction of their spread.

    .. math:: s_i = \langle v, x_i - \mu \rangle^2

    with :math:`x_i` the updates in 10,000 random coordinates, :math:`\mu` their mean, and v the
    main direction (top right singular vector) of the centred updates :math:`x_i - \mu`. The f
    updates of largest :math:`s_i` are left out, but at least one of the m updates is kept;
    f = round(malicious_fraction * m) is the assumed number of malicious clients. Each iteration
    draws other coordinates. The updates that no iteration leaves out are averaged. If there are
    none, the model stays as it is.

    Parameters
    ----------
    malicious_fraction : float
        Assumed share of malicious clients, in [0, 1].
    iterations : int
        How many random sets of coordinates are looked at, >= 1.

    References
    ----------
    Shejwalkar & Houmansadr, 2021 (Manipulating the Byzantine), algorithm 2.
    """

    gives_weights = True

    malicious_fraction: MaliciousFraction = 0.2
    iterations: Annotated[int, Setting("random sets of coordinates that are looked at", ge=1)] = 1
    _small_rounds: SmallRounds = field(
        default_factory=SmallRounds, init=False, repr=False, compare=False
    )

    def __call__(self, updates: RoundUpdates) -> Aggregation:
        """Return equal weights for the updates that no iteration leaves out, else 0, ``[m]``."""
        client_updates = updates.client_updates  # [m, d]
        m, d = client_updates.shape
        num_malicious = round(self.malicious_fraction * m)
        self._small_rounds.warn_unless_minority("DnC", num_malicious, m)
        num_honest = max(m - num_malicious, 1)
        generator = updates.generator("dnc")
        good = torch.ones(m, dtype=torch.bool)
        for _ in range(self.iterations):
            chosen = torch.randperm(d, generator=generator)[:COORDINATES].to(client_updates.device)
            part = client_updates[:, chosen].double()  # [m, coordinates]
            # Up to a constant, the projections <v, x_i - mu> are the eigenvector of the largest
            # eigenvalue of the [m, m] Gram matrix. eigh returns that one last.
            _, vectors = torch.linalg.eigh(gram_matrix(part - part.mean(dim=0)))
            nearest = vectors[:, -1].square().argsort(stable=True)
            best = nearest[:num_honest].cpu()
            good &= torch.zeros_like(good).scatter_(0, best, True)
        return Aggregation(weights=good.double() / good.sum().clamp_min(1))
