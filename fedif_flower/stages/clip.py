"""Clipping: updates are shortened to a few times the usual length, or to a fixed length."""

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

ROUNDS_REMEMBERED = 20  # A client that took part in none of the last 20 rounds is forgotten.


class RecentLengths:
    """The length of each client's latest update (or other vector) in the last 20 rounds.

    Each client counts once. Lengths are those before any shortening, so that the median does not
    depend on earlier bounds: an attacker cannot raise the bound round by round.
    """

    def __init__(self) -> None:
        # By client id: the last round that it took part in, and the length there.
        self._seen: dict[int, tuple[int, float]] = {}

    def usual(self, server_round: int, client_ids: Sequence[int], norms: Tensor) -> float:
        """Remember a round's lengths, and return the median of all that are remembered.

        Parameters
        ----------
        server_round : int
            The round.
        client_ids : sequence of int
            The m clients.
        norms : Tensor
            ``[m]``: the lengths of their vectors.

        Returns
        -------
        float
            The median of the lengths that are not 0; infinity if all are 0.
        """
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
        """Return the state that a checkpoint keeps."""
        return {"seen": {client_id: list(last) for client_id, last in self._seen.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
        self._seen = {
            client_id: (int(last_round), float(length))
            for client_id, (last_round, length) in state["seen"].items()
        }


@dataclass(eq=False)
class Clip(Stage):
    r"""Shortens updates to a multiple of the usual length.

    In round t updates are shortened to the length :math:`B_t`:

    .. math:: B_t = \lambda \operatorname{median}_{i \in C_t} \ell_i, \qquad
              \ell_i = \lVert \Delta_i \rVert \text{ in the last round that client i took part in}

    with :math:`\Delta_i` client i's update, and :math:`C_t` the clients that took part in one of
    the last 20 rounds, round t included, and sent an update that is not 0. Rounds that failed by an
    error do not count. For an even number of lengths the median is the lower one of the two in the
    middle. A client's change of the buffers is shortened as well, to :math:`\lambda` times the
    median length of these changes in round t. Behind
    :class:`~fedif_flower.stages.bucketing.Bucketing` a group counts as its first client.

    Each client counts once in the median, however often it was drawn. So if fewer than half of
    these clients are malicious, the median lies within the lengths of the honest ones, whatever the
    others send. Lengths are remembered as they came, not as they were shortened. So an attacker
    cannot raise the bound round by round, and a bound that was once too tight recovers. Scores see
    updates at full length: the factors ``[m]`` that shorten the updates are kept beside them, and
    are multiplied with the weights.

    Parameters
    ----------
    multiple : float
        :math:`\lambda` > 0: the bound is this many times the usual length.
    """

    needs_lengths_alone = True  # It does not look at the updates themselves.

    multiple: Annotated[float, Setting("how many times the usual length the bound is", gt=0)]
    _lengths: RecentLengths = field(default_factory=RecentLengths, init=False, repr=False)

    def before(self, updates: RoundUpdates) -> RoundUpdates:
        """Return the round with ``factors`` and ``buffer_factors``, in (0, 1]."""
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
        """Return the factors that shorten updates to the bound, and remember their lengths.

        Parameters
        ----------
        server_round : int
            The round.
        client_ids : sequence of int
            The m clients.
        squared_norms : Tensor
            ``[m]``: the squared lengths of their updates.

        Returns
        -------
        Tensor
            ``[m]``, float64, in (0, 1].
        """
        norms = squared_norms.double().sqrt()  # [m]
        usual = self._lengths.usual(server_round, client_ids, norms)
        return clipping_factors(squared_norms, self.multiple * usual)

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a checkpoint keeps."""
        return self._lengths.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
        self._lengths.load_state_dict(state)


@dataclass(eq=False)
class MaxLength(Stage):
    r"""Shortens each update that is longer than a fixed length, as it arrives.

    .. math:: \Delta_i \leftarrow \min\left(1, \frac{L}{\lVert \Delta_i \rVert}\right) \Delta_i

    with :math:`\Delta_i` client i's update.

    Parameters
    ----------
    max_length : float
        L > 0, in the unit of the parameters.
    """

    needs_lengths_alone = True  # If updates are hidden from the server, members shorten their own.

    max_length: Annotated[float, Setting("longer updates are shortened to it", gt=0)]

    def arrive(self, update: Tensor, squared_norm: float) -> float:
        """Shorten an update ``[d]`` in place; return its squared norm."""
        if squared_norm <= self.max_length**2:
            return squared_norm
        update.mul_(self.max_length / math.sqrt(squared_norm))
        return self.max_length**2
