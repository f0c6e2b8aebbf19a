"""Clipping: no update counts for more than a few times the usual length, or a fixed one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import torch
from torch import Tensor

from fedif_flower.aggregators.clipping import clipping_factors, usual_length
from fedif_flower.round import RoundUpdates
from fedif_flower.settings import Setting
from fedif_flower.stages.stage import Stage

ROUNDS_REMEMBERED = 20


class RecentLengths:
    """The lengths of what clients sent in the last round that each of them took part in.

    Those of the last 20 rounds count, each client once. They are lengths as they came: an attacker
    cannot raise a bound that follows from them step by step.
    """

    def __init__(self) -> None:
        # By client: last round, length.
        self._seen: dict[int, tuple[int, float]] = {}

    def usual(self, server_round: int, client_ids: Sequence[int], norms: Tensor) -> float:
        """Remember a round's lengths ``[m]``, and return the usual one; infinity if all are 0."""
        oldest = server_round - ROUNDS_REMEMBERED
        self._seen = {
            client_id: (last_round, length)
            for client_id, (last_round, length) in self._seen.items()
            if last_round > oldest
        }
        for client_id, norm in zip(client_ids, norms.double().tolist(), strict=True):
            self._seen[client_id] = (server_round, norm)
        lengths = torch.tensor([length for _, length in self._seen.values()], dtype=torch.float64)
        return usual_length(lengths)

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on."""
        return {"seen": {client_id: list(last) for client_id, last in self._seen.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""
        self._seen = {
            client_id: (int(last_round), float(length))
            for client_id, (last_round, length) in state["seen"].items()
        }


@dataclass(eq=False)
class Clip(Stage):
    r"""Shortens updates to a multiple of the usual length.

    .. math:: B_t = \lambda \operatorname{median}_{i \in C_t} \ell_i, \qquad
              \ell_i = \lVert \Delta_i \rVert \text{ in the last round that client i took part in}

    with :math:`C_t` the clients that took part in one of the last 20 rounds, round t included, and
    sent an update that is not 0; rounds that an error failed are none of them. Of an even number of
    lengths the median is the lower one of the two in the middle. Changes of buffers are bounded by
    the median of the round's own. Behind :class:`~fedif_flower.stages.bucketing.Bucketing` a group
    counts as its first client.

    Each client counts once, however often it was drawn and whoever makes up the round: as long as
    fewer than half of these clients are malicious, the median lies within the lengths of the
    honest ones, whatever the others send. Lengths are remembered as they came, not as they were
    shortened: an attacker cannot raise the bound step by step, and a bound that was once too tight
    recovers. Scores see updates at full length: factors ``[m]`` are kept beside them and are part
    of the coefficients.

    Parameters
    ----------
    multiple : float
        :math:`\lambda` > 0: the bound is this many times the usual length.
    """

    needs_lengths_alone = True

    multiple: Annotated[float, Setting("how many times the usual length the bound is", gt=0)]
    _lengths: RecentLengths = field(default_factory=RecentLengths, init=False, repr=False)

    def before(self, updates: RoundUpdates) -> RoundUpdates:
        """Return the round with factors in (0, 1]."""
        factors = self.factors(updates.server_round, updates.client_ids, updates.squared_norms)
        squared_norms = updates.buffer_updates.double().square().sum(dim=1).cpu()  # [m]
        bound = self.multiple * usual_length(squared_norms.sqrt())
        return replace(
            updates,
            factors=updates.shortening * factors,
            buffer_factors=updates.buffer_shortening * clipping_factors(squared_norms, bound),
        )

    def factors(
        self, server_round: int, client_ids: Sequence[int], squared_norms: Tensor
    ) -> Tensor:
        """Return what to multiply updates of squared lengths ``[m]`` by, and remember these."""
        norms = squared_norms.double().sqrt()  # [m]
        usual = self._lengths.usual(server_round, client_ids, norms)
        return clipping_factors(squared_norms, self.multiple * usual)

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on."""
        return self._lengths.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""
        self._lengths.load_state_dict(state)


@dataclass(eq=False)
class MaxLength(Stage):
    r"""Shortens longer updates to a fixed length, each as it arrives.

    .. math:: \Delta_i \leftarrow \min\left(1, \frac{L}{\lVert \Delta_i \rVert}\right) \Delta_i

    Parameters
    ----------
    max_length : float
        L > 0, in the parameters' own unit.
    """

    needs_lengths_alone = True  # Where nobody sees updates, members shorten their own.

    max_length: Annotated[float, Setting("longer updates are shortened to it", gt=0)]

    def arrive(self, update: Tensor, squared_norm: float) -> float:
        """Shorten an update ``[d]`` in place; return its squared norm."""
        if squared_norm <= self.max_length**2:
            return squared_norm
        update.mul_(self.max_length / math.sqrt(squared_norm))
        return self.max_length**2
