"""Ways to say what each client contributed to a round's step, with what each costs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn
from torch.func import functional_call, grad, jvp
from torch.nn import functional

from benchmarks.descent_judge import Judge
from fedif_flower.valuation.influence import influence_from, project_updates
from fedif_flower.valuation.path import QUADRATURES, path_attribution, slopes
from fedif_flower.valuation.shapley import (
    complementary_shapley,
    exact_shapley,
    gtg_shapley,
    owen_shapley,
    permutation_shapley,
)

SAMPLES = 50  # Per stratum, orders, or antithetic pairs.


@dataclass(frozen=True)
class Game:
    """A round's step at fixed weights: coalitions put their own parts in, others do not.

    Attributes
    ----------
    judge : Judge
        Losses and gradients on the validation set.
    params : Tensor
        ``[d]``: the model before the step.
    updates, weights : Tensor
        ``[m, d]`` and ``[m]``.
    """

    judge: Judge
    params: Tensor
    updates: Tensor
    weights: Tensor

    @property
    def step(self) -> Tensor:
        """The whole step, ``[d]``."""
        return self.weights.to(self.updates) @ self.updates

    def utility(self, masks: Tensor) -> Tensor:
        """Return by how much the loss falls by each coalition's parts, ``[c]``."""
        before = self.judge.loss(self.params)
        parts = masks.to(self.updates) * self.weights.to(self.updates)  # [c, m]
        return torch.tensor(
            [before - self.judge.loss(self.params + row @ self.updates) for row in parts],
            dtype=torch.float64,
        )


@dataclass(frozen=True)
class Found:
    """Values ``[m]``; passes over the validation set; seconds; whether the values should add up."""

    values: Tensor
    evaluations: int
    gradients: int
    seconds: float
    adds_up: bool


def hessian_product(model: nn.Module, judge: Judge, params: Tensor, vector: Tensor) -> Tensor:
    """Return the validation loss's Hessian at ``params`` [d] times ``vector`` [d]."""
    names = [name for name, _ in model.named_parameters()]
    shapes = [parameter.shape for parameter in model.parameters()]

    def named(flat: Tensor) -> dict[str, Tensor]:
        pieces = flat.split([shape.numel() for shape in shapes])
        return {n: p.view(s) for n, p, s in zip(names, pieces, shapes, strict=True)}

    def loss(flat: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(
            functional_call(model, named(flat), (inputs,)), labels, reduction="sum"
        )

    model.eval()
    total = torch.zeros_like(params)
    for inputs, labels in zip(judge.inputs.split(250), judge.labels.split(250), strict=True):

        def gradient(flat: Tensor, inputs: Tensor = inputs, labels: Tensor = labels) -> Tensor:
            return grad(loss)(flat, inputs, labels)

        total += jvp(gradient, (params,), (vector,))[1]
    return total / len(judge.labels)


def measure_all(model: nn.Module, game: Game, generator: Generator) -> dict[str, Found]:
    """Return what every method finds, the exact Shapley values first."""
    started = time.perf_counter()
    table: dict[tuple[bool, ...], float] = {}

    def remembered(masks: Tensor) -> Tensor:
        rows = [tuple(row) for row in masks.tolist()]
        missing = [row for row in dict.fromkeys(rows) if row not in table]
        if missing:
            table.update(zip(missing, game.utility(torch.tensor(missing)).tolist(), strict=True))
        return torch.tensor([table[row] for row in rows], dtype=torch.float64)

    m = len(game.weights)
    exact = exact_shapley(remembered, m)
    seconds = time.perf_counter() - started
    each = seconds / exact.evaluations
    found = {"exact Shapley": Found(exact.values, exact.asked, 0, seconds, True)}
    estimators: Mapping[str, Callable[[], object]] = {
        "complementary": lambda: complementary_shapley(
            remembered, m, num_samples=SAMPLES, generator=generator
        ),
        "permutation": lambda: permutation_shapley(
            remembered, m, num_permutations=SAMPLES, generator=generator
        ),
        "GTG": lambda: gtg_shapley(remembered, m, max_permutations=SAMPLES, generator=generator),
        "Owen": lambda: owen_shapley(remembered, m, num_samples=SAMPLES, generator=generator),
    }
    for name, estimate in estimators.items():
        # They look coalitions up that are known already: their time is that of as many passes.
        result = estimate()
        count = result.evaluations  # type: ignore[attr-defined]
        values = result.values  # type: ignore[attr-defined]
        found[name] = Found(values, count, 0, count * each, adds_up=True)
    return found | {name: _timed(method, model, game) for name, method in METHODS.items()}


def _timed(method: Method, model: nn.Module, game: Game) -> Found:
    started = time.perf_counter()
    values = method.values(model, game)
    seconds = time.perf_counter() - started
    return Found(values, method.evaluations, method.gradients, seconds, method.adds_up)


@dataclass(frozen=True)
class Method:
    """A way to value, and the passes over the validation set that it takes by itself."""

    values: Callable[[nn.Module, Game], Tensor]
    gradients: int = 0
    evaluations: int = 0
    adds_up: bool = True


def _fedif(model: nn.Module, game: Game) -> Tensor:  # noqa: ARG001
    _, gradient = game.judge.gradient(game.params)
    return influence_from(project_updates(game.updates, gradient))


def _first_order(model: nn.Module, game: Game) -> Tensor:  # noqa: ARG001
    _, gradient = game.judge.gradient(game.params)
    return game.weights.double() * slopes(game.updates, gradient)


def _second_order(model: nn.Module, game: Game) -> Tensor:
    _, gradient = game.judge.gradient(game.params)
    curved = hessian_product(model, game.judge, game.params, game.step)
    return game.weights.double() * slopes(game.updates, gradient + curved / 2)


def _own_decrease(model: nn.Module, game: Game) -> Tensor:  # noqa: ARG001
    before = game.judge.loss(game.params)
    return torch.tensor(
        [before - game.judge.loss(game.params + update) for update in game.updates],
        dtype=torch.float64,
    )


def _path(rule: str) -> Callable[[nn.Module, Game], Tensor]:
    def values(model: nn.Module, game: Game) -> Tensor:  # noqa: ARG001
        return path_attribution(
            lambda params: game.judge.gradient(params)[1],
            game.params,
            game.updates,
            game.weights,
            rule,
        )

    return values


METHODS: Mapping[str, Method] = {
    "FedIF's Phi": Method(_fedif, gradients=1, adds_up=False),
    "first order": Method(_first_order, gradients=1),
    "own loss decrease": Method(_own_decrease, evaluations=10, adds_up=False),
    "first order + Hessian product": Method(_second_order, gradients=3),
    **{
        rule: Method(_path(rule), gradients=len(quadrature.nodes))
        for rule, quadrature in QUADRATURES.items()
    },
}
