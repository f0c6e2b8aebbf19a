"""Server optimizers: the model moves by what an optimizer makes of the rounds' steps."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fedif_flower.settings import Setting
from fedif_flower.stages.stage import ServerOptimizer

LearningRate = Annotated[float, Setting("eta, of the server's steps", gt=0)]
Tau = Annotated[float, Setting("the larger, the less the steps adapt to each parameter", gt=0)]


@dataclass(eq=False)
class FedAvgM(ServerOptimizer):
    r"""SGD with momentum on the rounds' steps.

    .. math:: m_t = \beta m_{t-1} + s_t, \qquad w_t = w_{t-1} + \eta m_t, \qquad m_0 = 0

    With :math:`\eta = 1 - \beta` the model moves along a running mean of the steps. A step of
    the model is a sum of the rounds' steps, so that it can be attributed.

    Parameters
    ----------
    momentum : float
        :math:`\beta`, in [0, 1).
    learning_rate : float
        :math:`\eta` > 0.

    References
    ----------
    Hsu et al., "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
    Classification", 2019.
    """

    keeps_coefficients = True

    momentum: Annotated[float, Setting("share of the old sum of steps that stays", ge=0, lt=1)] = (
        0.9
    )
    learning_rate: LearningRate = 0.1

    def _make(self, params: list[Tensor]) -> Optimizer:
        return torch.optim.SGD(params, momentum=self.momentum, lr=self.learning_rate)

    @property
    def shares(self) -> list[float]:
        r"""What each round's step counts for, :math:`\eta \beta^{t-s}`, the newest first."""
        num_steps = self._going_on.num_steps
        if not self.momentum:
            num_steps = min(num_steps, 1)  # Earlier ones are not carried on.
        return [self.learning_rate * self.momentum**age for age in range(num_steps)]


@dataclass(eq=False)
class FedAdam(ServerOptimizer):
    r"""Steps divided, for each parameter, by the root of their mean square.

    .. math:: m_t = \beta_1 m_{t-1} + (1 - \beta_1) s_t, \qquad
              v_t = \beta_2 v_{t-1} + (1 - \beta_2) s_t^2, \qquad
              w_t = w_{t-1} + \eta \frac{m_t}{\sqrt{v_t} + \tau}

    with :math:`m_0 = 0` and :math:`v_0 = \tau^2`. No update has a coefficient in such a step: it
    cannot be attributed.

    Parameters
    ----------
    learning_rate : float
        :math:`\eta` > 0.
    beta1, beta2 : float
        :math:`\beta_1` and :math:`\beta_2`, in [0, 1).
    tau : float
        :math:`\tau` > 0.

    References
    ----------
    Reddi et al., "Adaptive Federated Optimization", 2021, algorithm 2,
    https://arxiv.org/abs/2003.00295.
    """

    learning_rate: LearningRate = 0.01
    beta1: Annotated[
        float, Setting("share of the old mean of the steps that stays", ge=0, lt=1)
    ] = 0.9
    beta2: Annotated[
        float, Setting("share of the old mean of their squares that stays", ge=0, lt=1)
    ] = 0.99
    tau: Tau = 1e-3

    def _stepped(self, before: Tensor, after: Tensor) -> tuple[Tensor, dict[str, Any]]:
        step = after - before  # [d]
        state = self._going_on.state
        mean = state.get("mean", torch.zeros_like(before))
        square = state.get("square", torch.full_like(before, self.tau**2))
        mean = self.beta1 * mean + (1 - self.beta1) * step
        square = self.squares(square, step.square(), self.beta2)
        params = before + self.learning_rate * mean / (square.sqrt() + self.tau)
        return params, {"mean": mean, "square": square}

    @staticmethod
    def squares(mean: Tensor, square: Tensor, beta2: float) -> Tensor:
        """Return the mean of the squares ``[d]`` with one step's more."""
        return beta2 * mean + (1 - beta2) * square


class FedYogi(FedAdam):
    r"""As :class:`FedAdam`, but the mean square follows a smaller one slowly.

    .. math:: v_t = v_{t-1} - (1 - \beta_2) s_t^2 \operatorname{sign}(v_{t-1} - s_t^2)
    """

    @staticmethod
    def squares(mean: Tensor, square: Tensor, beta2: float) -> Tensor:
        """Return the mean of the squares ``[d]`` with one step's more."""
        return mean - (1 - beta2) * square * (mean - square).sign()


class FedAdagrad(FedAdam):
    r"""As :class:`FedAdam`, but by the root of the sum of all squares; ``beta2`` is of no use.

    .. math:: v_t = v_{t-1} + s_t^2
    """

    made_of = MappingProxyType({"beta2": None})

    @staticmethod
    def squares(mean: Tensor, square: Tensor, beta2: float) -> Tensor:  # noqa: ARG004
        """Return the sum of the squares ``[d]`` with one step's more."""
        return mean + square
