"""Krum and Multi-Krum: the models that lie nearest to their neighbours."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch
from torch import Tensor

from fedif_flower.aggregators.linear_algebra import pairwise_squared_distances
from fedif_flower.aggregators.small_rounds import SmallRounds
from fedif_flower.constructors import CheckedFields
from fedif_flower.errors import require
from fedif_flower.round import Aggregation, RoundUpdates
from fedif_flower.settings import MaliciousFraction, Setting

Distances = Literal["parameters", "state"]


@dataclass(frozen=True)
class Krum(CheckedFields):
    r"""Take over the one model that lies nearest to its neighbours, bit for bit.

    Formula: :func:`krum_scores`. Of m replies, f = round(malicious_fraction * m) are assumed to be
    malicious. An update that a stage shortens, or that is late and counts less, moves the model by
    what is left of it.

    Parameters
    ----------
    malicious_fraction : float
        Assumed share of malicious clients, in [0, 1].
    num_selected : int
        How many of the best updates are averaged, >= 1 (Krum: 1). More than m - f include some
        that are assumed to be malicious, which is logged. A run whose rounds may close with fewer
        updates is refused.
    distances : {"parameters", "state"}
        What the distances are taken between: "parameters", those that are trained, or "state", all
        that clients send, as in implementations that flatten a ``state_dict``. With batch
        normalisation the state holds counts of training steps. Their differences (tens) hide those
        of the parameters (about one): clients with equally many examples are then near each other,
        whatever they trained on.
    """

    gives_weights = True

    malicious_fraction: MaliciousFraction = 0.0
    num_selected: Annotated[int, Setting("average this many of the best", ge=1)] = 1
    distances: Annotated[
        Distances,
        Setting(
            "what is measured between: what is trained, or all that is sent, counters of batch "
            "normalisation included (`docs/results.md` says what that does)"
        ),
    ] = "parameters"
    _small_rounds: SmallRounds = field(
        default_factory=SmallRounds, init=False, repr=False, compare=False
    )

    @property
    def chooses_one(self) -> bool:
        """Whether the round's model is that of one client."""
        return self.num_selected == 1

    def require_updates(self, count: int, allowed: str) -> None:
        """Raise ConfigError if ``count`` updates, the least of a round, are too few to average.

        ``allowed`` is what the error says is allowed.
        """
        require(self.num_selected <= count, "Krum.num_selected", self.num_selected, allowed)

    def __call__(self, updates: RoundUpdates) -> Aggregation:
        """Return equal weights for the selected updates, 0 for the others, ``[m]``.

        The scores are the negated :func:`krum_scores`, so that more is better.
        """
        m = updates.num_clients
        num_malicious = round(self.malicious_fraction * m)
        self._warn_of_few(num_malicious, m)
        points = updates.client_updates  # [m, d]
        if self.distances == "state":
            points = updates.state_updates()  # [m, all that is sent]
        scores = krum_scores(points, num_malicious)
        selected = min(max(self.num_selected or m - num_malicious, 1), m)
        weights = torch.zeros_like(scores)
        # Stable: of equal scores, those of the first clients are selected.
        weights[scores.argsort(stable=True)[:selected]] = 1.0 / selected
        return Aggregation(weights=weights.cpu(), scores=-scores.cpu())

    def _warn_of_few(self, num_malicious: int, num_updates: int) -> None:
        """Warn if f of m updates are too many, or if more than the m - f others are averaged."""
        counts = f"f = {num_malicious} of m = {num_updates}"
        if 2 * num_malicious + 2 >= num_updates:
            words = f"Krum assumes 2f + 2 < m; here {counts}: no guarantee holds"
            self._small_rounds.warn(words)
        if self.num_selected > num_updates - num_malicious:
            words = f"Krum averages {self.num_selected} updates, more than m - f; here {counts}"
            self._small_rounds.warn(words)


@dataclass(frozen=True)
class MultiKrum(Krum):
    """Average the best m - f of m replies or groups, at least one."""

    num_selected: int = field(default=0, init=False, repr=False)  # 0 stands for m - f.
    distances: Distances = field(default="parameters", init=False, repr=False)


def krum_scores(updates: Tensor, num_malicious: int) -> Tensor:
    r"""Return each client's Krum score; lower is better.

    .. math:: s_i = \sum_{j \in \mathcal{N}_i} \lVert x_i - x_j \rVert^2

    with :math:`x_i` client i's update and :math:`\mathcal{N}_i` its m - f - 2 nearest
    neighbours among the m clients: at least one, unless m = 1.

    Parameters
    ----------
    updates : Tensor
        ``[m, d]``, m >= 1, finite. Only differences count, so the clients' models give the same
        scores as their updates.
    num_malicious : int
        f, >= 0. The guarantee needs 2f + 2 < m, which the caller checks.

    Returns
    -------
    Tensor
        ``[m]``, float64; zeros if m = 1.

    Raises
    ------
    ValuationError
        If ``updates`` has NaN or Inf, or squares overflow float64.

    References
    ----------
    Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent",
    NeurIPS 2017.
    """
    distances = pairwise_squared_distances(updates)  # [m, m]
    m = distances.shape[0]
    num_neighbours = min(max(m - num_malicious - 2, 1), m - 1)
    distances.fill_diagonal_(torch.inf)  # No client is its own neighbour.
    return distances.topk(num_neighbours, dim=1, largest=False).values.sum(dim=1)
