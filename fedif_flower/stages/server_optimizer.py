"""Server optimizers: an optimizer turns the rounds' steps into the steps of the model."""

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

    with :math:`s_t` round t's own step and :math:`w_t` the model after it. With
    :math:`\eta = 1 - \beta` the model moves along a running mean of the rounds' steps. Each step of
    the model is a weighted sum of the rounds' steps, so that it can be attributed to clients.

    Parameters
    ----------
    momentum : float
        The momentum :math:`\beta`, in [0, 1).
    learning_rate : float
        The server's learning rate :math:`\eta` > 0.

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
    def step_factors(self) -> list[float]:
        r"""The factor of each round's step in the model's last step, the newest first.

        It is :math:`\eta \beta^{t-s}` for the step of round s in the step of round t.
        """
        num_steps = self._active_memory.num_steps
        if not self.momentum:
            num_steps = min(num_steps, 1)  # All earlier factors are 0.
        return [self.learning_rate * self.momentum**age for age in range(num_steps)]


@dataclass(eq=False)
class FedAdam(ServerOptimizer):
    r"""Adam on the rounds' steps: for each parameter, they are divided by their root mean square.

    .. math:: m_t = \beta_1 m_{t-1} + (1 - \beta_1) s_t, \qquad
              v_t = \beta_2 v_{t-1} + (1 - \beta_2) s_t^2, \qquad
              w_t = w_{t-1} + \eta \frac{m_t}{\sqrt{v_t} + \tau}

    with :math:`s_t` round t's own step, :math:`w_t` the model after it, :math:`m_0 = 0` and
    :math:`v_0 = \tau^2`. The step is no weighted sum of updates, so that it cannot be attributed
    to clients. Unlike Adam, it has no bias correction.

    Parameters
    ----------
    learning_rate : float
        The server's learning rate :math:`\eta` > 0.
    beta1, beta2 : float
        :math:`\beta_1` and :math:`\beta_2`, the shares of the old mean of the steps, and of the old
        mean of their squares, that stay; in [0, 1).
    tau : float
        :math:`\tau` > 0: the larger, the less the steps adapt to each parameter.

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
        """Return the parameters ``[d]`` after the optimizer's step, and its state then."""
        step = after - before  # [d]
        state = self._active_memory.state
        mean = state.get("mean", torch.zeros_like(before))
        square = state.get("square", torch.full_like(before, self.tau**2))
        mean = self.beta1 * mean + (1 - self.beta1) * step
        square = self.squares(square, step.square(), self.beta2)
        params = before + self.learning_rate * mean / (square.sqrt() + self.tau)
        return params, {"mean": mean, "square": square}

    @staticmethod
    def squares(mean: Tensor, square: Tensor, beta2: float) -> Tensor:
        """Return :math:`v_t` ``[d]`` for ``mean`` = :math:`v_{t-1}`, ``square`` = :math:`s_t^2`."""
        return beta2 * mean + (1 - beta2) * square


class FedYogi(FedAdam):
    r"""As FedAdam, but the mean square shrinks slowly when steps become smaller.

    .. math:: v_t = v_{t-1} - (1 - \beta_2) s_t^2 \operatorname{sign}(v_{t-1} - s_t^2)

    The rest, and the parameters, are those of :class:`FedAdam`.
    """

    @staticmethod
    def squares(mean: Tensor, square: Tensor, beta2: float) -> Tensor:
        """Return :math:`v_t` ``[d]`` for ``mean`` = :math:`v_{t-1}`, ``square`` = :math:`s_t^2`."""
        return mean - (1 - beta2) * square * (mean - square).sign()


class FedAdagrad(FedAdam):
    r"""As FedAdam, but steps are divided by the root of the sum of all squares.

    .. math:: v_t = v_{t-1} + s_t^2

    The rest, and the parameters, are those of :class:`FedAdam`; ``beta2`` is not used.
    """

    made_of = MappingProxyType({"beta2": None})  # `beta2` is no setting of this optimizer.

    @staticmethod
    def squares(mean: Tensor, square: Tensor, beta2: float) -> Tensor:  # noqa: ARG004
        """Return :math:`v_t` ``[d]`` for ``mean`` = :math:`v_{t-1}`, ``square`` = :math:`s_t^2`."""
        return mean + square
