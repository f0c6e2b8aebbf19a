"""How a strategy's weight scores come about: what records keep, and what pages say of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import TypeAdapter

from fedif_flower.valuation.ledger import ScoreLedger


@dataclass(frozen=True)
class Scoring:
    r"""How weight scores :math:`\Omega` come about.

    .. math:: \Omega_i \leftarrow (1 - \gamma) \Omega_i + \gamma \Psi_i

    Attributes
    ----------
    gamma : float
        The rate, in (0, 1]; 1: nothing is smoothed.
    initial : float
        :math:`\Omega_i` before a member's first round.
    bias_correction : bool
        Whether what is left of ``initial`` is taken out.
    min_max : bool
        Whether :math:`\Psi` is the round's scores mapped to [0, 1].
    """

    gamma: float
    initial: float
    bias_correction: bool
    min_max: bool

    @classmethod
    def of(cls, ledger: ScoreLedger, *, min_max: bool = False) -> Scoring:
        """Return how a ledger smooths."""
        gamma = ledger.gamma if ledger.smooth_update else 1.0
        return cls(gamma, ledger.initial, ledger.bias_correction, min_max)

    @classmethod
    def from_record(cls, record: Mapping[str, Any] | None) -> Scoring | None:
        """Return what :meth:`to_record` was made of; ``None`` where nothing was recorded.

        Raises
        ------
        ValueError
            If it is something else.
        """
        return None if record is None else TypeAdapter(cls).validate_python(record)

    def to_record(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return asdict(self)

    def words(self) -> str:
        """Return what a reader of the scores has to know, in one to two sentences."""
        if self.gamma == 1:
            words = "It is that of the round alone: nothing is smoothed."
        elif self.bias_correction:
            words = (
                "It is the mean of the member's scores in its rounds, in which later ones count "
                f"more (gamma = {self.gamma:g})."
            )
        else:
            words = (
                f"It begins at {self.initial:.3g}, and each of the member's rounds moves it by "
                f"gamma = {self.gamma:g} of the way to its score in that round: after few rounds "
                "it says little, whatever was sent."
            )
        if self.min_max:
            words += (
                " In a round of two members one gets 1 and the other 0, however close they are; "
                "both get 1 where rounding alone parts them."
            )
        return words
