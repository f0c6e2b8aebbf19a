"""Clipping: no update counts for more than a few times the usual length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedif_flower.aggregators.clipping import LengthMemory, clipping_factors, usual_length
from fedif_flower.errors import require
from fedif_flower.round import RoundUpdates
from fedif_flower.stages.stage import Stage


class Clip(Stage):
    r"""Shortens updates to a multiple of the usual length.

    Parameters are bounded by :class:`~fedif_flower.aggregators.clipping.LengthMemory`, the median
    of all clients' last lengths; changes of buffers by the median of the round's own. Scores see
    updates at full length: factors ``[m]`` are kept beside them and are part of the coefficients.

    Parameters
    ----------
    multiple : float
        :math:`\lambda` > 0, so many times the usual length.
    """

    def __init__(self, multiple: float) -> None:
        require(multiple > 0, "multiple", multiple, "> 0")
        self.multiple = multiple
        self.lengths = LengthMemory(multiple)

    def __repr__(self) -> str:
        """Name the stage and its setting."""
        return f"Clip({self.multiple:g})"

    def needs_sight(self) -> str:
        """Return nothing: lengths are enough."""
        return ""

    def before(self, updates: RoundUpdates) -> RoundUpdates:
        """Return the round with factors in (0, 1]."""
        factors = self.lengths.factors(
            updates.server_round, updates.client_ids, updates.squared_norms
        )
        squared_norms = updates.buffer_updates.double().square().sum(dim=1).cpu()  # [m]
        bound = self.multiple * usual_length(squared_norms.sqrt())
        return replace(
            updates,
            factors=updates.shortening * factors,
            buffer_factors=updates.buffer_shortening * clipping_factors(squared_norms, bound),
        )

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on."""
        return self.lengths.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""
        self.lengths.load_state_dict(state)
