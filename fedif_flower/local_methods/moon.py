"""MOON [Li et al., 2021]: a contrastive term between the global and a client's last model.

Paper: https://arxiv.org/abs/2103.16257
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Annotated, Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import vector_to_parameters

from fedif_flower.errors import ConfigError
from fedif_flower.local_methods.local_method import LocalMethod, LocalRound, LocalTerm
from fedif_flower.sections import require_fields
from fedif_flower.settings import Setting

_LAST = "moon-last-model"


@dataclass(frozen=True)
class Moon(LocalMethod):
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

    mu: Annotated[float, Setting("mu of the contrastive term", ge=0)] = 1.0
    temperature: Annotated[float, Setting("tau of the contrastive term", gt=0)] = 0.5
    layer: Annotated[
        str,
        Setting(
            "name of the module whose output is the representation; empty: what the last linear "
            "layer is given"
        ),
    ] = ""

    def __post_init__(self) -> None:
        """Raise ConfigError for what is out of range."""
        require_fields(self)

    def term(self, local: LocalRound) -> LocalTerm:
        """Return the contrastive term; nothing in a client's first round."""
        last = local.memory.get(_LAST)
        if last is None or not self.mu:
            return LocalTerm()
        return _Contrast(self, local.model, last)

    def finish(self, local: LocalRound, term: LocalTerm, sent: Tensor) -> None:  # noqa: ARG002
        """Keep the local model."""
        local.memory[_LAST] = sent.detach().cpu().clone()


class _Contrast(LocalTerm):
    def __init__(self, moon: Moon, model: nn.Module, last: Tensor) -> None:
        super().__init__()
        self._moon = moon
        self._model = model
        self._others = [_frozen(model), _frozen(model, last)]  # global, last
        self._inputs: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self._features: Tensor | None = None
        self._handles: list[Any] = []

    def __enter__(self) -> Self:
        def note_inputs(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._inputs = args, kwargs

        def note_features(features: Tensor) -> None:
            self._features = features

        self._handles = [
            self._model.register_forward_pre_hook(note_inputs, with_kwargs=True),
            _watch(self._model, self._moon.layer, note_features),
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def loss(self) -> Tensor:
        r"""Return :math:`\mu \ell_{con}` of the batch that the model has just seen."""
        assert self._inputs is not None  # the model has just been called
        assert self._features is not None
        z = self._features.flatten(1)  # [n, f]
        args, kwargs = self._inputs
        similar = [
            functional.cosine_similarity(z, self._represented(other, args, kwargs), dim=1)
            for other in self._others
        ]  # 2 x [n]
        logits = torch.stack(similar, dim=1) / self._moon.temperature  # [n, 2]
        target = torch.zeros(len(z), dtype=torch.long, device=z.device)
        return self._moon.mu * functional.cross_entropy(logits, target)

    @torch.no_grad()
    def _represented(self, other: nn.Module, args: Any, kwargs: Any) -> Tensor:
        found: list[Tensor] = []
        handle = _watch(other, self._moon.layer, found.append)
        other(*args, **kwargs)
        handle.remove()
        return found[-1].flatten(1)


def _frozen(model: nn.Module, params: Tensor | None = None) -> nn.Module:
    """Return a copy of a model that is not trained, with other parameters ``[d]`` if given."""
    frozen = copy.deepcopy(model)
    if params is not None:
        trained = [parameter for parameter in frozen.parameters() if parameter.requires_grad]
        vector_to_parameters(params.to(trained[0]), trained)
    return frozen.eval().requires_grad_(False)


def _watch(model: nn.Module, layer: str, note: Any) -> Any:
    """Call ``note`` with the representation, whenever the model is called."""
    if layer:
        modules = dict(model.named_modules())
        if layer not in modules:
            raise ConfigError(
                f"moon.layer = {layer!r}; allowed: {', '.join(filter(None, modules))}"
            )
        return modules[layer].register_forward_hook(lambda _m, _a, output: note(output))
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise ConfigError("moon.layer: this model has no linear layer; name a module of it")
    return linear[-1].register_forward_pre_hook(lambda _, args: note(args[0]))
