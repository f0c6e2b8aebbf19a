"""MOON [Li et al., 2021]: a contrastive term between the global model and a client's last one.

Paper: https://arxiv.org/abs/2103.16257
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import vector_to_parameters
from torch.utils.hooks import RemovableHandle

from fedif_flower.constructors import CheckedFields
from fedif_flower.errors import ConfigError, require
from fedif_flower.local_methods.local_method import LocalMethod, LocalRound, LocalTerm
from fedif_flower.settings import Setting
from fedif_flower.tasks.dtypes import widened
from fedif_flower.tasks.modules import trainable_parameters
from fedif_flower.tasks.task import Data, Task

_LAST = "moon-last-model"  # The memory's key of the parameters.
_LAST_BUFFER = "moon-last-buffer."  # The memory's key of a buffer, before the buffer's name.


@dataclass(frozen=True)
class Moon(CheckedFields, LocalMethod):
    r"""Local representations are drawn to the global model's, and away from the last local ones.

    .. math::
        \ell + \mu \, \ell_{con}, \qquad \ell_{con} = - \log
        \frac{e^{\cos(z, z_g) / \tau}}{e^{\cos(z, z_g) / \tau} + e^{\cos(z, z_l) / \tau}}

    Here :math:`\ell` is the loss of a batch. z is the representation of the batch's inputs by the
    model that is trained, :math:`z_g` their representation by the model received, and :math:`z_l`
    by the model that the client sent in the last round that it took part in. In a client's first
    round there is no such model, and nothing is added.

    Parameters
    ----------
    mu : float
        :math:`\mu` >= 0; the paper takes the best of 0.1, 1, 5 and 10.
    temperature : float
        :math:`\tau` > 0.
    layer : str
        Name of the module whose output is the representation, such as a projection head; empty:
        the representation is the input of the model's last linear layer.
    """

    remembers = True

    mu: Annotated[float, Setting("mu of the contrastive term", ge=0)] = 1.0
    temperature: Annotated[float, Setting("tau of the contrastive term", gt=0)] = 0.5
    layer: Annotated[
        str,
        Setting(
            "name of the module whose output is the representation; empty: what the last linear "
            "layer is given"
        ),
    ] = ""

    def misfit(self, task: Task, data: Data) -> str:
        """Return what the method needs and the task does not have; empty: nothing.

        Raises
        ------
        ConfigError
            If the task's model has no module named ``layer``, or no linear layer.
        """
        model = task.build_model(0)
        layer = _layer(model, self.layer)
        if not self.layer and _trains_nothing_before(model, layer):
            return "a representation that is trained (moon.layer)"
        return super().misfit(task, data)

    def term(self, local: LocalRound) -> LocalTerm:
        """Return the contrastive term; a term that adds nothing in a client's first round."""
        last = local.memory.get(_LAST)
        if last is None or not self.mu:
            return LocalTerm()
        buffers = {
            key.removeprefix(_LAST_BUFFER): value
            for key, value in local.memory.items()
            if key.startswith(_LAST_BUFFER)
        }
        return _Contrast(self, local.model, last, buffers)

    def finish(self, local: LocalRound, term: LocalTerm, sent: Tensor) -> None:  # noqa: ARG002
        """Remember the model that the client sends, with buffers such as batch norm's."""
        local.memory[_LAST] = sent.detach().cpu().clone()
        for name, buffer in local.model.named_buffers():
            if buffer.is_floating_point():
                local.memory[_LAST_BUFFER + name] = buffer.detach().cpu().clone()


class _Contrast(LocalTerm):
    """MOON's term: it calls the global and the last local model on the inputs of every batch.

    Parameters
    ----------
    moon : Moon
        The settings.
    model : torch.nn.Module
        The model received, which is going to be trained.
    last : Tensor
        ``[d]``: the trainable parameters of the client's last model.
    last_buffers : mapping of str to Tensor
        The last model's floating-point buffers, by name.
    """

    def __init__(
        self, moon: Moon, model: nn.Module, last: Tensor, last_buffers: Mapping[str, Tensor]
    ) -> None:
        super().__init__()
        self._moon = moon
        layer = _layer(model, moon.layer)
        self._layer_name = next(name for name, module in model.named_modules() if module is layer)
        last_model = _frozen(model, last, last_buffers)
        self._models = [model, _frozen(model), last_model]  # In training, global, last local.
        # Representations in each model's last call, until the loss takes them.
        self._features: dict[nn.Module, Tensor] = {}
        self._handles: list[RemovableHandle] = []

    def __enter__(self) -> Self:
        # The other two models get the inputs of every call of the model that is trained.
        @torch.no_grad()
        def follow(_: nn.Module, args: Any, kwargs: Any, _output: object) -> None:
            for other in self._models[1:]:
                other(*args, **kwargs)

        follows = self._models[0].register_forward_hook(follow, with_kwargs=True)
        self._handles = [follows, *map(self._watch, self._models)]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def loss(self) -> Tensor:
        r"""Return :math:`\mu \ell_{con}` of the batch that the model has just seen."""
        if len(self._features) < len(self._models):
            raise ConfigError(
                f"moon.layer = {self._moon.layer!r}: the model does not call the layer "
                f"{self._layer_name} for every batch; name one that it always calls"
            )
        # In float32 at least. cosine_similarity keeps lengths from 0 by an epsilon that is 0 in
        # float16, and a representation of zeros would give NaN.
        z, z_global, z_last = [
            widened(self._features.pop(model).flatten(1)) for model in self._models
        ]
        if not z.requires_grad:  # The term would be added to the loss, but change no step.
            raise ConfigError(
                f"moon.layer = {self._moon.layer!r}: no parameter that is trained changes this "
                "representation; name a layer behind one that is trained"
            )
        similarities = [
            functional.cosine_similarity(z, z_global, dim=1),  # [n]
            functional.cosine_similarity(z, z_last, dim=1),  # [n]
        ]
        logits = torch.stack(similarities, dim=1) / self._moon.temperature  # [n, 2]
        # The loss is a cross-entropy in which each example's right class is 0, the global model.
        target = torch.zeros(len(z), dtype=torch.long, device=z.device)
        return self._moon.mu * functional.cross_entropy(logits, target)

    def _watch(self, model: nn.Module) -> RemovableHandle:
        """Keep the representation whenever a model is called; return the hook's handle."""

        def note(features: Tensor) -> None:
            self._features[model] = features

        layer = _layer(model, self._moon.layer)
        if self._moon.layer:
            return layer.register_forward_hook(lambda _m, _a, output: note(output))

        def note_input(_: nn.Module, args: Any, kwargs: Any) -> None:
            note([*args, *kwargs.values()][0])

        return layer.register_forward_pre_hook(note_input, with_kwargs=True)


def _frozen(
    model: nn.Module,
    params: Tensor | None = None,
    buffers: Mapping[str, Tensor] = MappingProxyType({}),
) -> nn.Module:
    """Return a copy of a model in eval mode and without gradients.

    Parameters
    ----------
    model : torch.nn.Module
        The model.
    params : Tensor, optional
        ``[d]``: trainable parameters that replace the model's.
    buffers : mapping of str to Tensor
        Buffers that replace the model's, by name.
    """
    frozen = copy.deepcopy(model)
    if params is not None:
        trained = trainable_parameters(frozen)
        vector_to_parameters(params.to(trained[0]), trained)
    for name, buffer in frozen.named_buffers():
        if name in buffers:
            buffer.copy_(buffers[name])
    return frozen.eval().requires_grad_(False)


def _trains_nothing_before(model: nn.Module, layer: nn.Module) -> bool:
    """Return whether only the layer's own parameters are trained, as when a head alone is."""
    head = {id(parameter) for parameter in layer.parameters()}
    return all(id(parameter) in head for parameter in trainable_parameters(model))


def _layer(model: nn.Module, name: str) -> nn.Module:
    """Return the module of that name; for an empty name, the last linear layer.

    Raises
    ------
    ConfigError
        If the model has no such module.
    """
    modules: dict[str, nn.Module] = dict(model.named_modules())
    if name:
        # The empty name is the model itself, and is no choice.
        names = ", ".join(other for other in modules if other)
        require(name in modules, "moon.layer", name, names)
        return modules[name]
    linear = [module for module in modules.values() if isinstance(module, nn.Linear)]
    if not linear:
        raise ConfigError("moon.layer: this model has no linear layer; name a module of it")
    return linear[-1]
