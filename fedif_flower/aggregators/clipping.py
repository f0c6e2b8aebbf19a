"""Norm clipping: no update counts for more than a few times the usual length."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

ROUNDS_REMEMBERED = 20


def usual_length(norms: Tensor) -> float:
    r"""Return the median of the lengths that are not 0; infinity if all are.

    Parameters
    ----------
    norms : Tensor
        ``[n]``, finite, >= 0. Of an even number the median is the lower one.
    """
    moving = norms[norms > 0]
    return float(moving.median()) if len(moving) else math.inf


def clipping_factors(squared_norms: Tensor, bound: float) -> Tensor:
    r"""Return what to multiply each update by so that none is longer than a bound.

    .. math:: c_i = \min\left(1, \frac{B}{\lVert \Delta_i \rVert}\right)

    with :math:`\Delta_i` client i's update. An update of length 0 has factor 1.

    Parameters
    ----------
    squared_norms : Tensor
        ``[m]``, finite, >= 0: :math:`\lVert \Delta_i \rVert^2`.
    bound : float
        B > 0, in the parameters' own unit; infinity shortens nothing.

    Returns
    -------
    Tensor
        ``[m]``, float64, in (0, 1].

    References
    ----------
    Sun et al., "Can You Really Backdoor Federated Learning?", 2019, section "Norm thresholding
    of updates".
    """
    norms = squared_norms.double().sqrt()  # [m]
    return torch.where(norms > bound, bound / norms, 1.0)


def bounded_mean(norms: Tensor, kept: Tensor, bound: Tensor) -> Tensor:
    r"""Return coefficients ``[m]`` of a mean of some updates, none of which is longer than S.

    .. math:: a_i = \frac{1}{|A|} \min\left(1, \frac{S}{\lVert u_i \rVert}\right)
              \text{ for } i \in A, \text{ otherwise } 0

    with A those that are ``kept`` [m] and S the ``bound``. Where A is empty, the model stays.
    """
    shortened = torch.where(norms > bound, bound / norms, 1.0)  # [m]
    return kept * shortened.double() / kept.sum().clamp_min(1)


class LengthMemory:
    r"""Bounds a round's updates by the lengths of the updates that clients sent until now.

    .. math:: B_t = \lambda \operatorname{median}_{i \in C_t} \ell_i, \qquad
              \ell_i = \lVert \Delta_i \rVert \text{ in the last round that client i took part in}

    with :math:`C_t` the clients that took part in one of the last rounds, round t included, and
    sent an update that is not 0.

    Each client counts once, however often it was drawn and whoever makes up the round: as long as
    fewer than half of these clients are malicious, the median lies within the lengths of the
    honest ones, whatever the others send. Lengths are remembered as they came, not as they were
    shortened: an attacker cannot raise the bound step by step, and a bound that was once too tight
    recovers.

    Parameters
    ----------
    multiple : float
        :math:`\lambda` > 0.
    rounds : int
        How many rounds a length is remembered, >= 1.
    """

    def __init__(self, multiple: float, rounds: int = ROUNDS_REMEMBERED) -> None:
        self.multiple = multiple
        self.rounds = rounds
        self._seen: dict[int, tuple[int, float]] = {}  # By client: last round, length.

    def factors(
        self, server_round: int, client_ids: Sequence[int], squared_norms: Tensor
    ) -> Tensor:
        """Return what to multiply each of the round's updates by, and remember their lengths.

        Parameters
        ----------
        server_round : int
            t.
        client_ids : sequence of int
            The m participants, distinct.
        squared_norms : Tensor
            ``[m]``, finite, >= 0.

        Returns
        -------
        Tensor
            ``[m]``, float64, in (0, 1].
        """
        norms: list[float] = squared_norms.double().sqrt().tolist()
        sent = {i: (server_round, norm) for i, norm in zip(client_ids, norms, strict=True)}
        oldest = server_round - self.rounds
        self._seen = {i: last for i, last in self._seen.items() if last[0] > oldest} | sent
        lengths = torch.tensor([norm for _, norm in self._seen.values()], dtype=torch.float64)
        return clipping_factors(squared_norms, self.multiple * usual_length(lengths))

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on."""
        return {"seen": {client_id: list(last) for client_id, last in self._seen.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""
        self._seen = {i: (int(t), float(norm)) for i, (t, norm) in state["seen"].items()}
