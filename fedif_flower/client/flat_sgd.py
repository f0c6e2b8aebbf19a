"""SGD with momentum on all parameters as one vector: three passes over memory per step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional

_ALIGNMENT = 16  # Elements: every parameter starts on a cache line of its own.
_LARGE_LAYER = 100_000  # Weights: from here on the saved pass pays for the Python it takes.


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
        if len({(p.dtype, p.device) for p in self._parameters}) != 1:
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
        start = first = 0
        correction = None if self._correction is None else torch.zeros_like(self._weights)
        for parameter, owned in zip(self._parameters, self._owned, strict=True):
            part = slice(start, start + parameter.numel())
            parameter.data = self._weights[part].view(parameter.shape).copy_(owned)
            parameter.grad = self._velocity[part].view(parameter.shape)
            if correction is not None and self._correction is not None:
                correction[part] = self._correction[first : first + parameter.numel()]
            start += _padded(parameter.numel())
            first += parameter.numel()
        self._correction = correction  # [d, padded]
        if self._proximal_mu:
            self._received = self._weights.clone()
        return self

    def __exit__(self, *_: object) -> None:
        for parameter, owned in zip(self._parameters, self._owned, strict=True):
            owned.copy_(parameter.data)
            parameter.data = owned
            parameter.grad = None

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


@contextmanager
def accumulating_linear_layers(model: nn.Module) -> Iterator[None]:
    """Let large linear layers add their gradients to ``grad`` within the matrix product.

    Autograd would write each weight's gradient to new memory and add it from there: for a layer
    of a million parameters that costs as much as a third of the product, and more where fresh
    pages have to be faulted in. Needs every ``grad`` to exist, as in :class:`FlatSGD`.
    """
    layers = [layer for layer in model.modules() if _accumulates(layer)]
    for layer in layers:
        layer.forward = _forward_of(layer)  # type: ignore[assignment]
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _accumulates(layer: nn.Module) -> TypeGuard[nn.Linear]:
    return (
        type(layer) is nn.Linear
        and layer.weight.numel() >= _LARGE_LAYER
        and all(parameter.requires_grad for parameter in layer.parameters())
    )


def _forward_of(layer: nn.Linear) -> Callable[[Tensor], Tensor]:
    def forward(inputs: Tensor) -> Tensor:
        if inputs.dim() != 2:
            return functional.linear(inputs, layer.weight, layer.bias)
        output: Tensor = _AccumulatingLinear.apply(inputs, layer.weight, layer.bias)
        return output

    return forward


class _AccumulatingLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(inputs)  # [n, i]
        ctx.weight, ctx.bias = weight, bias  # [o, i], [o]; the leaves themselves, for their grad
        return functional.linear(inputs, weight, bias)  # [n, o]

    @staticmethod
    def backward(ctx: Any, *output_gradients: Tensor) -> tuple[Tensor | None, None, None]:
        (gradient,) = output_gradients  # [n, o]
        (inputs,) = ctx.saved_tensors
        ctx.weight.grad.addmm_(gradient.t(), inputs)
        if ctx.bias is not None:
            ctx.bias.grad.add_(gradient.sum(0))
        return gradient.mm(ctx.weight) if ctx.needs_input_grad[0] else None, None, None


def _padded(length: int) -> int:
    return -(-length // _ALIGNMENT) * _ALIGNMENT
