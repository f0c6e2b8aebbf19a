r"""Clients that agree on what they send: k accomplices who see each other's updates ``[k, d]``.

:math:`\mu` and :math:`\sigma` are mean and standard deviation, by coordinate, of what the
accomplices trained honestly.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from statistics import NormalDist
from typing import Annotated

import torch
from torch import Tensor

from fedif_flower.attacks.behaviour import Colluder
from fedif_flower.settings import Setting

_MANY = 10_000  # Clients of a federation so large that only the share of malicious ones counts.


class ShiftedMean(Colluder):
    r"""All send :math:`\mu - \gamma \sigma`."""

    @abstractmethod
    def shift(self, updates: Tensor, mean: Tensor, std: Tensor) -> Tensor | float:
        r"""Return :math:`\gamma` for updates ``[k, d]`` of this mean and deviation ``[d]``."""

    def collude(self, received: Tensor, updates: Tensor, generator: torch.Generator) -> Tensor:
        """Return the shifted mean ``[k, d]``, the same for all."""
        mean, std = updates.mean(dim=0), updates.std(dim=0, correction=0)  # [d], [d]
        return (mean - self.shift(updates, mean, std) * std).expand_as(updates)


def largest_shift(num_clients: int, num_malicious: int) -> float:
    r"""Return the largest z at which enough honest clients lie further out than the attackers.

    .. math::
        z = \Phi^{-1}\!\left(\frac{n - m - s}{n - m}\right), \quad
        s = \lfloor n / 2 + 1 \rfloor - m

    with :math:`\Phi` the normal distribution's cumulative function. s honest supporters make a
    majority; where the attackers are one already (s < 1) one supporter is asked for.

    Parameters
    ----------
    num_clients : int
        n > m.
    num_malicious : int
        m >= 0.

    References
    ----------
    Baruch et al., 2019, section 3.2.
    """
    honest = num_clients - num_malicious
    supporters = max(num_clients // 2 + 1 - num_malicious, 1)
    share = (honest - supporters) / honest
    return NormalDist().inv_cdf(share) if share > 0 else 0.0


@dataclass
class Alie(ShiftedMean):
    r"""A little is enough: all send :math:`\mu - z \sigma`, within the clients' own spread.

    One that is alone in its round sends its honest update.

    Parameters
    ----------
    malicious_fraction : float
        Their share of a large federation, in [0, 1), from which z follows (:func:`largest_shift`).
    z : float, optional
        In place of the one that follows.

    References
    ----------
    Baruch et al., 2019 (A little is enough), algorithm 3.
    """

    malicious_fraction: float
    z: Annotated[
        float | None, Setting("deviations from the mean", gt=0, auto="as its paper computes it")
    ] = None

    def shift(self, updates: Tensor, mean: Tensor, std: Tensor) -> float:
        """Return z."""
        malicious = min(round(self.malicious_fraction * _MANY), _MANY - 1)
        return largest_shift(_MANY, malicious) if self.z is None else self.z


class MinMax(ShiftedMean):
    r"""All send :math:`\mu - \gamma \sigma`, as far out as the largest honest distance allows.

    .. math::
        \max \gamma: \quad \max_i \lVert \mu - \gamma \sigma - u_i \rVert
        \le \max_{i, j} \lVert u_i - u_j \rVert

    Each i gives a quadratic inequality in :math:`\gamma`; the smallest of their roots is what the
    paper approaches by halving steps.

    References
    ----------
    Shejwalkar & Houmansadr, 2021 (Manipulating the Byzantine), equation 6, with the inverse
    standard deviation as the direction.
    """

    def shift(self, updates: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        """Return the smallest root of the k inequalities."""
        away = (mean - updates).double()  # [k, d]
        constant = away.square().sum(dim=1) - _squared_distances(updates).max()  # [k]
        square = std.double().square().sum().expand(len(updates))
        return _largest_root(square, -away @ std.double(), constant).min().to(mean.dtype)


class MinSum(ShiftedMean):
    r"""All send :math:`\mu - \gamma \sigma`, as far out as the largest sum of distances allows.

    .. math::
        \max \gamma: \quad \sum_i \lVert \mu - \gamma \sigma - u_i \rVert^2
        \le \max_i \sum_j \lVert u_i - u_j \rVert^2

    References
    ----------
    Shejwalkar & Houmansadr, 2021 (Manipulating the Byzantine), equation 7.
    """

    def shift(self, updates: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        """Return the root of the inequality, whose linear term vanishes."""
        square = len(updates) * std.double().square().sum()
        farthest = _squared_distances(updates).sum(dim=1).max()
        constant = (mean - updates).double().square().sum() - farthest
        return _largest_root(square, torch.zeros_like(square), constant).to(mean.dtype)


def _squared_distances(updates: Tensor) -> Tensor:
    """Return the squared distances ``[k, k]`` between updates ``[k, d]``, float64."""
    return torch.cdist(updates.double(), updates.double()).square()


def _largest_root(square: Tensor, linear: Tensor, constant: Tensor) -> Tensor:
    r"""Return the largest :math:`\gamma \ge 0` with :math:`a \gamma^2 + 2 b \gamma + c \le 0`.

    ``square`` is a >= 0, the others b and c <= 0. Where a is 0, so is the answer.
    """
    root = (linear.square() - square * constant.clamp(max=0)).sqrt() - linear
    return torch.where(square > 0, root / square.clamp_min(torch.finfo(root.dtype).tiny), 0.0)


@dataclass
class InnerProductManipulation(Colluder):
    r"""All send :math:`-\epsilon \mu`: the mean, turned around.

    A short one lies among the honest updates, and still gives the mean a negative inner product
    with the honest direction where attackers are many enough.

    Parameters
    ----------
    epsilon : float
        :math:`\epsilon` > 0.

    References
    ----------
    Xie et al., 2020 (Fall of empires), definition 5.
    """

    epsilon: Annotated[float, Setting("how many times the mean is sent, turned around", gt=0)] = 0.5

    def collude(self, received: Tensor, updates: Tensor, generator: torch.Generator) -> Tensor:
        """Return the mean times minus epsilon, ``[k, d]``, the same for all."""
        return (-self.epsilon * updates.mean(dim=0)).expand_as(updates)


@dataclass
class Fang(Colluder):
    r"""Each sends, for every coordinate, a value beyond the honest ones on the wrong side.

    .. math::
        v_j \sim U[\mu_j + c \sigma_j, \mu_j + (c + 1) \sigma_j] \text{ if } \mu_j < 0, \quad
        v_j \sim U[\mu_j - (c + 1) \sigma_j, \mu_j - c \sigma_j] \text{ otherwise}

    The honest model moves along :math:`\mu_j`, and they pull against it.

    Parameters
    ----------
    distance : float
        c > 0, in standard deviations; the paper's 3.

    References
    ----------
    Fang et al., 2020 (Local model poisoning attacks), section 4.3, partial knowledge.
    """

    distance: Annotated[float, Setting("c: from the mean, in standard deviations", gt=0)] = 3.0

    def collude(self, received: Tensor, updates: Tensor, generator: torch.Generator) -> Tensor:
        """Return updates ``[k, d]``, each with draws of its own."""
        mean, std = updates.mean(dim=0), updates.std(dim=0, correction=0)  # [d], [d]
        draws = torch.rand(updates.shape, generator=generator, dtype=updates.dtype)
        against = torch.where(mean < 0, 1.0, -1.0).to(updates)  # [d]
        return mean + against * std * (self.distance + draws.to(updates.device))


class Mimic(Colluder):
    r"""All send the one of their honest updates that differs most along the main direction.

    .. math::
        i^* = \arg\max_i |\langle z, u_i - \mu \rangle|, \quad
        z = \arg\max_{\lVert z \rVert = 1} \sum_i \langle z, u_i - \mu \rangle^2

    No update is malicious on its own. Where clients' data differ, the others are outvoted. The
    paper's attackers copy an honest client that they choose in the first rounds; these know each
    other's updates alone and choose anew in every round, as others take part in it.

    References
    ----------
    Karimireddy et al., 2022 (Byzantine-robust learning on heterogeneous datasets via bucketing),
    section 4.3.
    """

    def collude(self, received: Tensor, updates: Tensor, generator: torch.Generator) -> Tensor:
        """Return the chosen update ``[k, d]``, the same for all."""
        centred = (updates - updates.mean(dim=0)).double()  # [k, d]
        # The projections on z are an eigenvector of the small matrix, times a constant.
        _, vectors = torch.linalg.eigh(centred @ centred.T)  # ascending
        chosen = int(vectors[:, -1].abs().argmax())
        return updates[chosen].expand_as(updates)


@dataclass
class Sybils(Colluder):
    r"""All identities of one owner send the first's honest update, to gain weight and reward.

    .. math:: u_i \leftarrow u_1 + c \lVert u_1 \rVert z_i / \lVert z_i \rVert,
        \quad z_i \sim N(0, I)

    Parameters
    ----------
    noise : float
        c >= 0: the length of noise that hides the copies, in lengths of the update.
    """

    noise: Annotated[
        float,
        Setting("c: length of the noise that hides the copies, in lengths of the update", ge=0),
    ] = 0.0

    def collude(self, received: Tensor, updates: Tensor, generator: torch.Generator) -> Tensor:
        """Return the owner's update ``[k, d]``, once per identity."""
        own = updates[0]  # [d]
        noise = torch.randn(updates.shape, generator=generator, dtype=updates.dtype)
        noise *= self.noise * own.norm().cpu() / noise.norm(dim=1, keepdim=True)
        return own + noise.to(own.device)
