"""Krum [Blanchard et al., 2017] on the screened base.

Paper: https://arxiv.org/abs/1703.02757
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, Unpack, get_args

from fedif_flower.aggregators.krum import krum_scores, select_lowest
from fedif_flower.errors import require
from fedif_flower.messages.screening import AcceptedReply
from fedif_flower.round import Aggregation, ModelVectors, RoundUpdates
from fedif_flower.strategies.arguments import BaseArguments
from fedif_flower.strategies.screened import ScreenedStrategy

logger = logging.getLogger(__name__)

Distances = Literal["parameters", "state"]
DISTANCES: tuple[Distances, ...] = get_args(Distances)


class Krum(ScreenedStrategy):
    r"""Take over the one model that lies nearest to its neighbours.

    Of m replies, f = round(malicious_fraction * m) are assumed to be malicious. The chosen model's
    parameters are taken over bit for bit.

    Parameters
    ----------
    malicious_fraction : float
        Assumed share of malicious clients, in [0, 1].
    num_selected : int
        Average this many of the best (Krum: 1).
    distances : {"parameters", "state"}
        Between what: what is trained, or all that is sent, as in implementations that flatten a
        ``state_dict``. With batch normalisation the latter holds counts of training steps, whose
        differences (tens) hide those of the parameters (about one): clients with equally many
        examples are then near each other, whatever they trained on.
    *flower, **base
        See :class:`~fedif_flower.strategies.screened.ScreenedStrategy`.
    """

    def __init__(
        self,
        *flower: Any,
        malicious_fraction: float = 0.0,
        num_selected: int = 1,
        distances: Distances = "parameters",
        **base: Unpack[BaseArguments],
    ) -> None:
        in_range = 0.0 <= malicious_fraction <= 1.0
        require(in_range, "malicious_fraction", malicious_fraction, "0 to 1")
        require(num_selected >= 1, "num_selected", num_selected, ">= 1")
        require(distances in DISTANCES, "distances", distances, ", ".join(DISTANCES))
        super().__init__(*flower, **base)
        changed = self.update_clipping or self.neighbour_mixing
        self.keep_arrays = num_selected == 1 and not changed
        self.malicious_fraction = malicious_fraction
        self.num_selected = num_selected
        self.distances = distances
        self._warned: set[tuple[int, int]] = set()

    def weigh(self, updates: RoundUpdates) -> Aggregation:
        """Return 1 for the selected model, 0 for the others, ``[m]``; scores are -distances."""
        m = updates.num_clients
        num_malicious = round(self.malicious_fraction * m)
        if 2 * num_malicious + 2 >= m and (num_malicious, m) not in self._warned:
            self._warned.add((num_malicious, m))
            logger.warning(
                "Krum assumes 2f + 2 < m; here f = %d of m = %d: no guarantee holds",
                num_malicious,
                m,
            )
        parameters_only = self.distances == "parameters"
        points = updates.client_updates if parameters_only else updates.state_updates()  # [m, .]
        scores = krum_scores(points, num_malicious)
        weights = select_lowest(scores, min(self.num_selected, m))
        return Aggregation(weights=weights.cpu(), scores=-scores.cpu())

    def merge(
        self, updates: RoundUpdates, accepted: Sequence[AcceptedReply]
    ) -> tuple[ModelVectors, Aggregation]:
        """Take the one chosen model's parameters as they came: a sum of updates rounds them."""
        vectors, aggregation = super().merge(updates, accepted)
        if self.keep_arrays:
            arrays = accepted[int(aggregation.weights.argmax())].arrays
            assert arrays is not None  # keep_arrays
            vectors = replace(vectors, params=self.model.layout.to_vectors(arrays).params)
        return vectors, aggregation
