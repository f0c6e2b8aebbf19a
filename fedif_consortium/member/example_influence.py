"""The influence of single examples on a held-out loss, and how far their neighbours agree."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedif_flower.errors import ConfigError, ValuationError
from fedif_flower.tasks.rows import num_rows, take_rows
from fedif_flower.valuation.objective import Objective, PairObjective

_BLOCK = 256  # The number of examples whose similarities to all others are in memory at a time.


class ExampleInfluence(NamedTuple):
    """Losses and gradients' products of n examples, see :func:`example_influence`.

    Attributes
    ----------
    losses : Tensor
        ``[n]`` float64: each example's loss.
    products : Tensor
        ``[n]`` float64: the inner product of each example's gradient with the given one.
    """

    losses: Tensor
    products: Tensor


def example_influence(
    model: nn.Module, objective: Objective, batches: Iterable[Any], gradient: Tensor
) -> ExampleInfluence:
    r"""Return each example's loss, and the inner product of its gradient with a given gradient.

    .. math:: p_i = \langle \nabla \ell_i(w), G \rangle
              = \left. \frac{\mathrm{d}}{\mathrm{d} \epsilon} \ell_i(w + \epsilon G)
                \right|_{\epsilon = 0}

    with the parameters w, the loss :math:`\ell_i` of example i, and the gradient G of a held-out
    loss at w. A step of SGD with learning rate :math:`\eta` on example i alone changes the held-out
    loss by :math:`-\eta p_i` to first order. So if :math:`p_i < 0`, learning the example does harm.

    The right side needs one forward pass with dual numbers, and no gradient of a single example.
    If a layer does not support forward differentiation, each example gets a backward pass instead.

    Parameters
    ----------
    model : torch.nn.Module
        The model with the parameters w, in eval mode.
    objective : Objective
        Computes the loss of a batch.
    batches : iterable
        Batches of any structure whose tensors all have the examples in their first dimension.
    gradient : Tensor
        ``[d]``: G, in the order of the model's trainable parameters.

    Returns
    -------
    ExampleInfluence
        Losses and products, in the order of the examples.

    Raises
    ------
    ConfigError
        If there are no examples.
    ValuationError
        If a batch cannot be divided into examples.

    References
    ----------
    Pruthi et al., *Estimating Training Data Influence by Tracing Gradient Descent*, 2020.
    """
    weights = {}  # The trainable parameters by their names in _ExampleLosses.
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            weights[f"model.{name}"] = parameter.detach()
    pieces = torch.split(gradient, [weight.numel() for weight in weights.values()])
    direction = {}
    for (name, weight), piece in zip(weights.items(), pieces, strict=True):
        direction[name] = piece.view_as(weight).to(weight)

    example_losses = _ExampleLosses(model, objective)
    results = []
    for batch in batches:

        def losses_at(parameters: dict[str, Tensor], batch: Any = batch) -> Tensor:
            losses: Tensor = torch.func.functional_call(example_losses, parameters, (batch,))
            return losses

        try:
            losses, products, *_ = torch.func.jvp(losses_at, (weights,), (direction,))
        except NotImplementedError:  # A layer without forward differentiation.
            losses, products = _backward_by_example(losses_at, weights, direction)
        results.append(torch.stack([losses, products]).detach().double().cpu())  # [2, n]
    if not results:
        raise ConfigError("there are no examples of this member's: nothing to judge")
    return ExampleInfluence(*torch.cat(results, dim=1))


def _backward_by_example(
    losses_at: Callable[[dict[str, Tensor]], Tensor],
    weights: dict[str, Tensor],
    direction: dict[str, Tensor],
) -> tuple[Tensor, Tensor]:
    """Return losses ``[n]`` and products ``[n]``, with one backward pass for each example."""
    parameters = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
    losses = losses_at(parameters)
    products = []
    for loss in losses:
        gradients = torch.autograd.grad(
            loss, list(parameters.values()), retain_graph=True, materialize_grads=True
        )
        pairs = zip(gradients, direction.values(), strict=True)
        inner = [(gradient * piece).sum() for gradient, piece in pairs]
        products.append(torch.stack(inner).sum())
    return losses, torch.stack(products)


class _ExampleLosses(nn.Module):
    """A model whose output is the loss ``[n]`` of each example of a batch."""

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model = model
        self._objective = objective

    def forward(self, batch: Any) -> Tensor:
        count = num_rows(batch)
        objective = self._objective
        if count is None:
            raise ValuationError(
                "a batch's tensors differ in length: its examples cannot be told apart"
            )
        if isinstance(objective, PairObjective):
            # One forward pass for the whole batch, and a loss for each row of its outputs.
            *inputs, targets = batch
            pair = (self.model(*inputs), targets)
            losses = [objective.loss_fn(*_row(pair, i)) for i in range(count)]
        else:
            losses = [objective.loss(self.model, _row(batch, i)) for i in range(count)]
        return torch.stack(losses)


def _row(batch: Any, row: int) -> Any:
    """Return a batch with the example at ``row`` alone."""
    return take_rows(batch, torch.tensor([row]))


def neighbour_agreement(features: Tensor, labels: Tensor, k: int) -> Tensor:
    r"""Return, for each example, the share of its k nearest neighbours that have its label.

    .. math:: a_i = \frac{1}{k} \left| \{ j \in N_k(i) : y_j = y_i \} \right|

    with the labels :math:`y_i`, and :math:`N_k(i)` the k other examples of greatest cosine
    similarity to example i.

    Parameters
    ----------
    features : Tensor
        ``[n, f]``: the examples' features.
    labels : Tensor
        ``[n]``: their class labels.
    k : int
        The number of neighbours >= 1. If there are fewer other examples, all of them count.

    Returns
    -------
    Tensor
        ``[n]`` float64 in [0, 1]; NaN if there is only one example.
    """
    count = len(features)
    k = min(k, count - 1)
    unit = functional.normalize(features, dim=1)
    agreements = []
    for start in range(0, count, _BLOCK):
        similarities = unit[start : start + _BLOCK] @ unit.T  # [b, n]
        rows = torch.arange(len(similarities))
        similarities[rows, start + rows] = -torch.inf  # No example is its own neighbour.
        nearest = similarities.topk(k, dim=1).indices  # [b, k]
        block_labels = labels[start : start + len(similarities)]  # [b]
        has_same_label = labels[nearest] == block_labels[:, None]  # [b, k]
        agreements.append(has_same_label.double().mean(dim=1))
    return torch.cat(agreements)
