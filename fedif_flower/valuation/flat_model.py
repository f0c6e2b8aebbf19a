"""A private copy of a model whose trainable parameters are one vector."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedif_flower.errors import ValuationError
from fedif_flower.tasks.modules import copy_module, evaluation_mode, tied_names, trainable_names

_RECURRENT = (nn.RNN, nn.LSTM, nn.GRU)


class FlatModel:
    """A copy of a model on one device, in eval mode, into which other parameters are loaded.

    Parameters
    ----------
    model : torch.nn.Module
        The model to copy, which is left alone.
    device : torch.device
        The copy's device.

    Attributes
    ----------
    module : torch.nn.Module
        The copy; loading changes it in place.
    parameter_names : list of str
        The trainable parameters, in the order of the vector.
    tied_names : dict of str to str
        Other names of arrays that the model has under several names.
    params : Tensor
        ``[d]``: the vector itself; the module's trainable parameters are views of it.
    parameters : list of torch.nn.Parameter
        The trainable parameters, in the order of the vector.
    state : dict of str to Tensor
        All parameters and buffers, by every name that they have.
    evaluation_mode : callable
        Returns a context in which the module is only evaluated, without gradients. As a rule it is
        the fastest one, inference mode; :meth:`allow_own_gradients` changes it.

    Raises
    ------
    ValuationError
        If ``model`` is no module or cannot be copied, or if its trainable parameters do not make
        one floating-point vector.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        _require_module(model)
        self.parameter_names = trainable_names(model)
        self.tied_names = tied_names(model)
        _require_vector(model)
        try:
            self.module = _copy(model, device)
            named = dict(self.module.named_parameters(remove_duplicate=False))
            self.parameters = [named[name] for name in self.parameter_names]
            # Parameters and their gradients are views of two flat vectors: loading a model is one
            # copy, and a backward pass leaves the gradient [d] ready.
            self.params = torch.cat([value.detach().reshape(-1) for value in self.parameters])
        except Exception as error:
            raise ValuationError(f"the model cannot be copied: {error}") from error
        _let_cudnn_go_backward(self.module)
        self.state = named | dict(self.module.named_buffers(remove_duplicate=False))
        for parameter, piece in _pieces(self.params, self.parameters):
            parameter.data = piece
        self._gradient: Tensor | None = None
        self.evaluation_mode = evaluation_mode(self.module)

    def replica(self) -> FlatModel:
        """Return a copy on the same device, which is evaluated in the same mode."""
        copied = FlatModel(self.module, self.params.device)
        copied.evaluation_mode = self.evaluation_mode
        return copied

    def allow_own_gradients(self) -> None:
        """Evaluate in a mode in which a model may differentiate by itself, as an energy's does.

        Inference mode does not allow that, even within ``torch.enable_grad()``.
        """
        self.evaluation_mode = torch.no_grad

    @property
    def others(self) -> dict[str, Tensor]:
        """Buffers and frozen parameters by name: the arrays of the model beside ``params``."""
        trained = set(self.parameter_names) | set(self.tied_names)
        return {name: value for name, value in self.state.items() if name not in trained}

    @torch.no_grad()
    def load(self, params: Tensor, others: Mapping[str, Tensor]) -> None:
        """Overwrite the parameters by ``params`` [d], and buffers and frozen parameters by name."""
        self.params.copy_(params)
        for name, value in others.items():
            self.state[name].copy_(value)
        # A caller's torch.autocast keeps copies of the parameters, which are the old ones now.
        torch.clear_autocast_cache()

    def zero_gradient(self) -> Tensor:
        """Return the vector ``[d]``, all zeros, into which a backward pass adds its gradient."""
        if self._gradient is None:
            self._gradient = torch.zeros_like(self.params)
            for parameter, piece in _pieces(self._gradient, self.parameters):
                parameter.grad = piece
        return self._gradient.zero_()


def _copy(model: nn.Module, device: torch.device) -> nn.Module:
    """Copy a model to a device, in eval mode.

    Frozen parameters that its ``state_dict`` leaves out are shared with the copy if they are on the
    device already: nothing loads other values into them, and the base model below an adapter may
    take gigabytes.
    """
    loaded = {id(value) for value in model.state_dict(keep_vars=True).values()}
    shared: dict[int, Any] = {}
    for parameter in model.parameters():
        is_loaded = parameter.requires_grad or id(parameter) in loaded
        if not is_loaded and parameter.device == device:
            shared[id(parameter)] = parameter
    return copy_module(model, shared).to(device).eval()


def _require_module(model: object) -> None:
    """Raise ValuationError unless ``model`` is a torch module, and no class of modules."""
    if isinstance(model, nn.Module):
        return
    if isinstance(model, type):
        raise ValuationError(f"model is the class {model.__name__}; allowed: {model.__name__}(...)")
    kind = type(model)
    raise ValuationError(
        f"model is a {kind.__module__.partition('.')[0]} {kind.__name__}; allowed: a "
        "torch.nn.Module with the arrays that travel, as nn.Linear(features, classes) for a "
        "logistic regression; Setup(names=...) says which array is which"
    )


def _require_vector(model: nn.Module) -> None:
    """Raise ValuationError unless the trainable parameters make one floating-point vector."""
    dtypes = {parameter.dtype for parameter in model.parameters() if parameter.requires_grad}
    if not dtypes:
        raise ValuationError("the model has no parameter with requires_grad: nothing to train")
    if len(dtypes) > 1 or not all(dtype.is_floating_point for dtype in dtypes):
        names = sorted(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise ValuationError(
            f"the trainable parameters are {' and '.join(names)}; allowed: one floating-point dtype"
        )


def _let_cudnn_go_backward(model: nn.Module) -> None:
    """Put recurrent layers into train mode with dropout off: cuDNN has no backward in eval mode."""
    # Without dropout both modes compute the same.
    for module in model.modules():
        if isinstance(module, nn.RNNBase) and type(module) in _RECURRENT:
            module.dropout = 0.0
            module.train()


def _pieces(
    flat: Tensor, parameters: Sequence[nn.Parameter]
) -> Iterator[tuple[nn.Parameter, Tensor]]:
    """Yield each parameter with its own part of ``flat`` [d], in its own shape."""
    start = 0
    for parameter in parameters:
        end = start + parameter.numel()
        yield parameter, flat[start:end].view(parameter.shape)
        start = end
