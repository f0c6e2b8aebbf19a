"""SGD with momentum on all parameters as one vector: three passes over memory per step."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

# Elements: 16 of float32 fill a cache line of 64 bytes, so that no two parameters share one.
_ALIGNMENT = 16


class FlatSGD:
    r"""Local SGD with momentum, FedProx's proximal term and a constant correction.

    .. math::
        v \leftarrow \beta v + \nabla \ell(w) + \mu (w - w_{t-1}) + \kappa, \qquad
        w \leftarrow w - \eta v

    with w the trainable parameters, :math:`w_{t-1}` their values at the start, v the momentum
    (0 at the start), :math:`\eta` the learning rate and :math:`\kappa` the correction. The steps
    are those of ``torch.optim.SGD``, up to rounding.

    Inside the context the parameters are views of one vector w, and their ``grad`` are views of v.
    The backward pass itself then adds the gradient to the momentum: no gradient is stored, cleared
    or read again. On exit each parameter gets its own memory back, with the trained values.

    For each batch call :meth:`before_backward`, then ``backward`` of the loss, then
    :meth:`after_backward`.

    Parameters
    ----------
    parameters : iterable of Parameter
        The trainable parameters, all of one dtype and on one device.
    learning_rate : float
        :math:`\eta` > 0.
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
        proximal_mu: float,
        correction: Tensor | None,
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
        # These vectors have length d and padding behind each parameter.
        self._weights = self._owned[0].new_zeros(padded)  # w
        self._velocity = torch.zeros_like(self._weights)  # v
        self._received = self._weights  # w_{t-1}; a copy only if the proximal term needs it.

    def __enter__(self) -> FlatSGD:
        start = 0
        for parameter, owned in zip(self._parameters, self._owned, strict=True):
            part = slice(start, start + parameter.numel())
            parameter.data = self._weights[part].view(parameter.shape).copy_(owned)
            parameter.grad = self._velocity[part].view(parameter.shape)
            start += _padded(parameter.numel())
        if self._correction is not None:
            self._correction = self._with_padding(self._correction)
        if self._proximal_mu:
            self._received = self._weights.clone()
        return self

    def __exit__(self, *_: object) -> None:
        for parameter, owned in zip(self._parameters, self._owned, strict=True):
            owned.copy_(parameter.data)
            parameter.data = owned
            parameter.grad = None

    def _with_padding(self, vector: Tensor) -> Tensor:
        """Return a vector ``[d]`` with the padding that the weights have behind each parameter."""
        padded = torch.zeros_like(self._weights)
        start = 0  # Position in the padded vector.
        first = 0  # Position in the vector without padding.
        for parameter in self._parameters:
            length = parameter.numel()
            padded[start : start + length] = vector[first : first + length]
            start += _padded(length)
            first += length
        return padded

    @torch.no_grad()
    def before_backward(self) -> None:
        """Let the momentum decay; add the proximal term and the correction to it."""
        self._velocity.mul_(self._momentum)
        if self._proximal_mu:
            self._velocity.add_(self._weights - self._received, alpha=self._proximal_mu)
        if self._correction is not None:
            self._velocity.add_(self._correction)

    @torch.no_grad()
    def after_backward(self) -> None:
        """Move the parameters along the momentum, to which ``backward`` has added the gradient."""
        self._weights.add_(self._velocity, alpha=-self._learning_rate)


def _padded(length: int) -> int:
    """Return a length rounded up to a multiple of the alignment."""
    return math.ceil(length / _ALIGNMENT) * _ALIGNMENT
