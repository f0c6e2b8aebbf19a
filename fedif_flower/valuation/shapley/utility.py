"""What coalitions are worth: the function that every estimator evaluates."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from fedif_flower.errors import ValuationError

Utility: TypeAlias = Callable[[Tensor], Tensor]
"""Maps coalitions ``[c, m]`` (bool, on the CPU; a row marks the members) to utilities ``[c]``.

The empty coalition is a row of zeros. Utilities may have any real dtype.
"""


class CoalitionMemo:
    """A utility that evaluates each distinct coalition once.

    Rows not seen before are passed to ``utility`` in one batch, in order of first appearance.

    Parameters
    ----------
    utility : callable
        ``[c, m]`` (bool) -> ``[c]``, deterministic.
    """

    def __init__(self, utility: Utility) -> None:
        self._utility = utility
        self._values: dict[bytes, float] = {}

    @property
    def evaluations(self) -> int:
        """How many distinct coalitions were evaluated so far; the empty one counts, too."""
        return len(self._values)

    def __call__(self, masks: Tensor) -> Tensor:
        """Return the utilities of ``masks`` [c, m] as ``[c]``, float64, on the CPU.

        Raises
        ------
        ValuationError
            If a utility is NaN or infinite.
        """
        keys = [row.tobytes() for row in np.packbits(masks.numpy(), axis=1)]
        first_rows: dict[bytes, int] = {}
        for row, key in enumerate(keys):
            if key not in self._values:
                first_rows.setdefault(key, row)
        if first_rows:
            unseen = masks[list(first_rows.values())]
            values = self._utility(unseen).cpu().double()
            _require_finite(values, unseen)
            self._values.update(zip(first_rows, values.tolist(), strict=True))
        return torch.tensor([self._values[key] for key in keys], dtype=torch.float64)


def _require_finite(utilities: Tensor, masks: Tensor) -> None:
    """Raise ValuationError naming the first coalition ``[c, m]`` whose utility is not finite."""
    rows = (~utilities.isfinite()).nonzero().flatten().tolist()
    if not rows:
        return
    first = rows[0]
    places = masks[first].nonzero().flatten().tolist()
    raise ValuationError(
        f"the utility returned {float(utilities[first])} for the coalition of the round's clients "
        f"at places {places}; allowed: finite numbers"
    )
