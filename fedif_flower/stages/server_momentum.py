"""Server momentum: the model moves along a running mean of the rounds' steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from fedif_flower.errors import require
from fedif_flower.stages.stage import Stage


class _Mean(NamedTuple):
    """A running mean ``[d]`` of steps, and how many it holds; ``None``: of none."""

    value: Tensor | None = None
    num_steps: int = 0


class ServerMomentum(Stage):
    r"""Moves the model along a running mean of the steps that the rounds' updates lead to.

    .. math:: m_t = \beta m_{t-1} + (1 - \beta) s_t, \qquad w_t = w_{t-1} + m_t, \qquad m_0 = 0

    with :math:`s_t` the step that round t leads to without momentum. So the model moves by

    .. math:: w_t - w_{t-1} = (1 - \beta) \sum_{s \le t} \beta^{t-s} s_s

    over the rounds that made a step; a failed round is none of them. Where a model is taken back,
    its mean goes with it. Buffers have no momentum: statistics are averaged as ever.

    Parameters
    ----------
    beta : float
        :math:`\beta`, in (0, 1).

    Raises
    ------
    ConfigError
        If beta lies outside its range.

    References
    ----------
    Hsu et al., "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
    Classification", 2019 (FedAvgM), with a mean in place of the sum.
    """

    def __init__(self, beta: float) -> None:
        require(0.0 < beta < 1.0, "beta", beta, "> 0 and < 1")
        self.beta = beta
        self._mean = _Mean()
        self._before = _Mean()  # The mean that belongs to the model before this one.

    def __repr__(self) -> str:
        """Name the stage and its setting."""
        return f"ServerMomentum({self.beta:g})"

    @property
    def mean(self) -> Tensor | None:
        r""":math:`m_t`, ``[d]``; ``None`` before the first step."""
        return self._mean.value

    @property
    def shares(self) -> list[float]:
        r"""What each step counts for in the mean, :math:`(1 - \beta) \beta^{t-s}`, newest first."""
        return [(1 - self.beta) * self.beta**age for age in range(self._mean.num_steps)]

    def lead(self, before: Tensor, after: Tensor) -> Tensor:
        """Return the parameters ``[d]`` that a step from ``before`` to ``after`` leads to."""
        return before + self._next(before, after)

    def advance(self, before: Tensor, after: Tensor) -> Tensor:
        """Return what :meth:`lead` does, and take the step into the mean."""
        mean = self._next(before, after)
        self._before, self._mean = self._mean, _Mean(mean, self._mean.num_steps + 1)
        return before + mean

    def restart(self) -> None:
        """Forget all steps."""
        self._mean = _Mean()

    def take_back(self) -> None:
        """Return to the mean before the last step: the model it made is taken back."""
        self._mean = self._before

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on."""
        return {"mean": self._mean.value, "num_steps": self._mean.num_steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""
        self._mean = _Mean(state["mean"], int(state["num_steps"]))

    def _next(self, before: Tensor, after: Tensor) -> Tensor:
        step = (1 - self.beta) * (after - before)  # [d]
        return step if self.mean is None else step.add_(self.mean, alpha=self.beta)
