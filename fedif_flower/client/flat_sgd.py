"""SGD with momentum on all parameters as one vector: three passes over memory per step."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

_ALIGNMENT = 16  # Elements: every parameter starts on a cache line of its own.


class FlatSGD:
    r"""Local SGD with momentum, FedProx's proximal term and a constant correction.

    .. math::
        v \leftarrow \beta v + \nabla \ell(w) + \mu (w - w_{t-1}) + \kappa, \qquad
        w \leftarrow w - \eta v

    with w the trainable parameters, :math:`w_{t-1}` those at the start, v the momentum
    (0 at the start), :math:`\eta` the learning rate, :math:`\kappa` the correction. As
    ``torch.optim.SGD``, up to rounding.

    While the context is entered the parameters are views of one vector w and their ``grad``
    views of v, so that the backward pass itself adds the gradient to the momentum: no gradient
    is stored, cleared or read again. On leaving it the parameters own their memory as before.

    Parameters
    ----------
    parameters : iterable of Parameter
        The trainable parameters, all of one dtype and on one device.
    learning_rate : float
        > 0.
    momentum : float
        :math:`\beta`, in [0, 1].
    proximal_mu : float
        :math:`\mu`, >= 0.
    correction : Tensor, optional
        :math:`\kappa`, ``[d]``, such as SCAFFOLD's; ``None``: 0.

    Raises
    ------
    ValueError
        If there are no parameters, or their dtypes or devices differ.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        learning_rate: float,
        momentum: float,
        proximal_mu: float = 0.0,
        correction: Tensor | None = None,
    ) -> None:
        self._parameters = list(parameters)
        kinds = {(parameter.dtype, parameter.device) for parameter in self._parameters}
        if len(kinds) != 1:
            raise ValueError("local training needs parameters, all of one dtype and on one device")
        self._learning_rate = learning_rate
        self._momentum = momentum
        self._proximal_mu = proximal_mu
        self._correction = correction
        self._owned = [parameter.data for parameter in self._parameters]
        padded = sum(_padded(parameter.numel()) for parameter in self._parameters)
        self._weights = self._owned[0].new_zeros(padded)  # [d, padded]: w
        self._velocity = torch.zeros_like(self._weights)  # [d, padded]: v
        self._received = self._weights  # [d, padded]: w_{t-1}, where the proximal term needs it

    def __enter__(self) -> FlatSGD:
        start = 0
        for parameter, owned in zip(self._parameters, self._owned, strict=True):
            part = slice(start, start + parameter.numel())
            parameter.data = self._weights[part].view(parameter.shape).copy_(owned)
            parameter.grad = self._velocity[part].view(parameter.shape)
            start += _padded(parameter.numel())
        if self._correction is not None:
            self._correction = self._with_padding(self._correction)  # [d, padded]
        if self._proximal_mu:
            self._received = self._weights.clone()
        return self

    def __exit__(self, *_: object) -> None:
        for parameter, owned in zip(self._parameters, self._owned, strict=True):
            owned.copy_(parameter.data)
            parameter.data = owned
            parameter.grad = None

    def _with_padding(self, vector: Tensor) -> Tensor:
        """Return a vector ``[d]`` with the parameters' parts where the weights have theirs."""
        padded = torch.zeros_like(self._weights)
        start = 0  # In the padded vector.
        first = 0  # In the vector as it came.
        for parameter in self._parameters:
            length = parameter.numel()
            padded[start : start + length] = vector[first : first + length]
            start += _padded(length)
            first += length
        return padded

    @torch.no_grad()
    def before_backward(self) -> None:
        """Let the momentum decay, and pull towards the received parameters."""
        self._velocity.mul_(self._momentum)
        if self._proximal_mu:
            self._velocity.add_(self._weights - self._received, alpha=self._proximal_mu)
        if self._correction is not None:
            self._velocity.add_(self._correction)

    @torch.no_grad()
    def after_backward(self) -> None:
        """Move the parameters along the momentum, which holds the new gradient by now."""
        self._weights.add_(self._velocity, alpha=-self._learning_rate)


def _padded(length: int) -> int:
    """Return a length rounded up to whole alignments."""
    return math.ceil(length / _ALIGNMENT) * _ALIGNMENT
