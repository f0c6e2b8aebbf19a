"""MOON [Li et al., 2021]: a contrastive term between the global and a client's last model.

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

_LAST = "moon-last-model"
_LAST_BUFFER = "moon-last-buffer."  # And its name.


@dataclass(frozen=True)
class Moon(CheckedFields, LocalMethod):
    r"""Local representations are drawn to the global model's, away from the last local model's.

    .. math::
        \ell + \mu \, \ell_{con}, \qquad \ell_{con} = - \log
        \frac{e^{\cos(z, z_g) / \tau}}{e^{\cos(z, z_g) / \tau} + e^{\cos(z, z_l) / \tau}}

    with z the representation of a batch's inputs by the model that is trained, :math:`z_g` by the
    one received and :math:`z_l` by the client's own of the last round that it took part in. In a
    client's first round the two are the same, and nothing is added.

    Parameters
    ----------
    mu : float
        :math:`\mu` >= 0; the paper takes the best of 0.1, 1, 5 and 10.
    temperature : float
        :math:`\tau` > 0.
    layer : str
        Name of the module whose output is the representation, such as a projection head; empty:
        what the model's last linear layer is given.
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
        """Return what a task lacks.

        Raises
        ------
        ConfigError
            If its model has no such layer.
        """
        model = task.build_model(0)
        layer = _layer(model, self.layer)
        if not self.layer and _trains_nothing_before(model, layer):
            return "a representation that is trained (moon.layer)"
        return super().misfit(task, data)

    def term(self, local: LocalRound) -> LocalTerm:
        """Return the contrastive term; nothing in a client's first round."""
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
        """Keep the local model, batch norm's statistics among it."""
        local.memory[_LAST] = sent.detach().cpu().clone()
        for name, buffer in local.model.named_buffers():
            if buffer.is_floating_point():
                local.memory[_LAST_BUFFER + name] = buffer.detach().cpu().clone()


class _Contrast(LocalTerm):
    def __init__(
        self, moon: Moon, model: nn.Module, last: Tensor, last_buffers: Mapping[str, Tensor]
    ) -> None:
        super().__init__()
        self._moon = moon
        layer = _layer(model, moon.layer)
        self._layer_name = next(name for name, module in model.named_modules() if module is layer)
        last_model = _frozen(model, last, last_buffers)
        self._models = [model, _frozen(model), last_model]  # in training, global, last
        self._features: dict[nn.Module, Tensor] = {}  # Of each model's last call.
        self._handles: list[RemovableHandle] = []

    def __enter__(self) -> Self:
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
        if self._models[0] not in self._features:
            raise ConfigError(
                f"moon.layer = {self._moon.layer!r}: the model does not call the layer "
                f"{self._layer_name} in training; name one that it calls"
            )
        # At least in float32: float16 has no number as small as what a cosine's lengths are kept
        # from 0 by, and that of a representation of zeros would be NaN.
        z, z_global, z_last = [widened(self._features[model].flatten(1)) for model in self._models]
        if not z.requires_grad:  # Else it would be added to the loss, and change no step.
            raise ConfigError(
                f"moon.layer = {self._moon.layer!r}: no parameter that is trained changes this "
                "representation; name a layer behind one that is trained"
            )
        similarities = [
            functional.cosine_similarity(z, z_global, dim=1),  # [n]
            functional.cosine_similarity(z, z_last, dim=1),  # [n]
        ]
        logits = torch.stack(similarities, dim=1) / self._moon.temperature  # [n, 2]
        # The global model's representation is the class that each is to be like.
        target = torch.zeros(len(z), dtype=torch.long, device=z.device)
        return self._moon.mu * functional.cross_entropy(logits, target)

    def _watch(self, model: nn.Module) -> RemovableHandle:
        """Note the representation, whenever a model is called."""

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
    """Return a copy of a model that is not trained, with other parameters ``[d]`` if given.

    And with other buffers, by name.
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
    """Tell whether a layer's own parameters are all that is trained, as of a head alone."""
    head = {id(parameter) for parameter in layer.parameters()}
    return all(id(parameter) in head for parameter in trainable_parameters(model))


def _layer(model: nn.Module, name: str) -> nn.Module:
    """Return the module of that name, or the last linear one."""
    modules: dict[str, nn.Module] = dict(model.named_modules())
    if name:
        # The model itself is a module too, without a name.
        names = ", ".join(other for other in modules if other)
        require(name in modules, "moon.layer", name, names)
        return modules[name]
    linear = [module for module in modules.values() if isinstance(module, nn.Linear)]
    if not linear:
        raise ConfigError("moon.layer: this model has no linear layer; name a module of it")
    return linear[-1]
