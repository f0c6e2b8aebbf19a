"""What every estimator shares: the utility, its memo, the estimate, random orders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Generator, Tensor

from fedif_flower.errors import ValuationError

Utility: TypeAlias = Callable[[Tensor], Tensor]
"""Maps coalitions ``[c, m]`` (bool, on the CPU; row = members) to their utilities ``[c]``.

The empty coalition is a row of zeros. Answers may have any real dtype and device.
"""


@dataclass(frozen=True, eq=False)
class ShapleyEstimate:
    """What an estimator found, and at what cost.

    Attributes
    ----------
    values : Tensor
        ``[m]``, float64, on the CPU: each client's value, in units of the utility.
    evaluations : int
        Distinct coalitions that were evaluated, the empty one included.
    asked : int
        Non-empty coalitions that the estimator asked for, repeats included: what a loop
        without a memo evaluates when u(empty) is known already, as the papers count.
    """

    values: Tensor
    evaluations: int
    asked: int


class CoalitionMemo:
    """A utility that evaluates each distinct coalition once.

    Rows not seen before are passed on in one batch, in order of their first appearance.

    Parameters
    ----------
    utility : callable
        ``[c, m]`` (bool) -> ``[c]``, deterministic.

    Attributes
    ----------
    evaluations : int
        Distinct coalitions evaluated so far, the empty one included.
    asked : int
        Non-empty coalitions asked for so far, repeats included.
    """

    def __init__(self, utility: Utility) -> None:
        self._utility = utility
        self._values: dict[bytes, float] = {}
        self.asked = 0

    @property
    def evaluations(self) -> int:
        """Distinct coalitions evaluated so far, the empty one included."""
        return len(self._values)

    def __call__(self, masks: Tensor) -> Tensor:
        """Return the utilities of ``masks`` [c, m] as ``[c]``, float64, on the CPU.

        Raises
        ------
        ValuationError
            If the utility answers anything but c finite numbers.
        """
        packed = np.packbits(masks.numpy(), axis=1)  # [c, ceil(m / 8)]
        keys = [row.tobytes() for row in packed]
        first_rows: dict[bytes, int] = {}
        for row, key in enumerate(keys):
            if key not in self._values:
                first_rows.setdefault(key, row)
        if first_rows:
            values = evaluate(self._utility, masks[list(first_rows.values())])
            self._values.update(zip(first_rows, values.tolist(), strict=True))
        self.asked += int(masks.any(dim=1).sum())
        return torch.tensor([self._values[key] for key in keys], dtype=torch.float64)

    def estimate(self, values: Tensor) -> ShapleyEstimate:
        """Put ``values`` [m] together with the counts so far."""
        return ShapleyEstimate(values, self.evaluations, self.asked)


def evaluate(utility: Utility, masks: Tensor) -> Tensor:
    """Return the utilities of ``masks`` [c, m] as ``[c]``, float64, on the CPU, checked.

    Raises
    ------
    ValuationError
        If the utility answers anything but c finite numbers.
    """
    answer = utility(masks)
    if not isinstance(answer, Tensor):
        raise ValuationError(f"the utility returned {type(answer).__name__}, not a Tensor")
    if answer.shape != (masks.shape[0],):
        raise ValuationError(
            f"the utility returned shape {list(answer.shape)} for {masks.shape[0]} coalitions, "
            f"not [{masks.shape[0]}]"
        )
    if answer.is_complex():
        raise ValuationError(f"the utility returned {answer.dtype}; allowed: real numbers")
    values = answer.detach().cpu().to(torch.float64)
    finite = torch.isfinite(values)
    if not bool(finite.all()):
        row = int(finite.logical_not().nonzero()[0])
        members = masks[row].nonzero().flatten().tolist()
        raise ValuationError(
            f"the utility returned {float(values[row])} for the coalition of clients {members}; "
            "allowed: finite numbers"
        )
    return values


def require_clients(num_clients: int) -> None:
    """Raise ValuationError unless there is at least one client."""
    require_positive("num_clients", num_clients)


def require_positive(name: str, value: int) -> None:
    """Raise ValuationError unless ``value`` is at least 1."""
    if value < 1:
        raise ValuationError(f"{name} is {value}; allowed: >= 1")


def require_not_negative(name: str, value: float) -> None:
    """Raise ValuationError unless ``value`` is a number >= 0 (infinity included)."""
    if not value >= 0.0:
        raise ValuationError(f"{name} is {value}; allowed: >= 0")


def empty_and_grand(num_clients: int) -> Tensor:
    """Return the masks of the empty and of the grand coalition, ``[2, m]``."""
    return torch.tensor([False, True])[:, None].repeat(1, num_clients)


def random_permutations(count: int, num_clients: int, generator: Generator) -> Tensor:
    """Return ``count`` uniformly random orders of the clients, ``[count, m]``, int64."""
    keys = torch.rand(count, num_clients, generator=generator, dtype=torch.float64)
    return keys.argsort(dim=1)
