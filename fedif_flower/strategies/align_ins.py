"""AlignIns [Xu et al., 2025]: a filter of directions and signs, against backdoors."""

from __future__ import annotations

from typing import Any, Unpack

from fedif_flower.aggregators.align_ins import align_ins_coefficients
from fedif_flower.errors import require
from fedif_flower.round import Aggregation, RoundUpdates
from fedif_flower.strategies.arguments import BaseArguments
from fedif_flower.strategies.screened import ScreenedStrategy


class AlignIns(ScreenedStrategy):
    """Average the updates whose direction and signs are those of the others, at bounded length.

    Paper: Xu et al., *Detecting Backdoor Attacks in Federated Learning via Direction Alignment
    Inspection*, CVPR 2025.

    Parameters
    ----------
    threshold : float
        Updates further than this many standard deviations from the median are left out, > 0.
    share : float
        Of the coordinates, in (0, 1], that count as an update's largest.
    *flower, **base
        See :class:`~fedif_flower.strategies.screened.ScreenedStrategy`.
    """

    def __init__(
        self,
        *flower: Any,
        threshold: float = 1.0,
        share: float = 0.3,
        **base: Unpack[BaseArguments],
    ) -> None:
        require(threshold > 0.0, "threshold", threshold, "> 0")
        require(0.0 < share <= 1.0, "share", share, "> 0 and <= 1")
        super().__init__(*flower, **base)
        self.threshold = threshold
        self.share = share

    def weigh(self, updates: RoundUpdates) -> Aggregation:
        """Return the coefficients ``[m]`` of the updates that are kept, 0 for the others."""
        coefficients = align_ins_coefficients(
            updates.client_updates,
            updates.global_params,
            threshold=self.threshold,
            share=self.share,
        )
        return Aggregation(weights=coefficients.cpu())
