"""Path attribution: what each client's update contributed to a step that was really taken."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from fedif_flower.combining import combine
from fedif_flower.errors import ValuationError
from fedif_flower.valuation.influence import project_updates


class Quadrature(NamedTuple):
    """A rule for integrals over [0, 1]: the sum of ``weights`` times the values at ``nodes``.

    Attributes
    ----------
    nodes : tuple of float
        In [0, 1], rising; 0 is the model before a step, 1 the one after it.
    weights : tuple of float
        They sum to 1.
    """

    nodes: tuple[float, ...]
    weights: tuple[float, ...]


def composite_simpson(parts: int) -> Quadrature:
    """Return Simpson's rule on [0, 1] with ``parts + 1`` nodes; ``parts`` is even and >= 2."""
    multiples = [1.0] * (parts + 1)  # 1, 4, 2, 4, ... 2, 4, 1
    multiples[1:-1:2] = [4.0] * (parts // 2)
    multiples[2:-1:2] = [2.0] * (parts // 2 - 1)
    nodes = tuple(k / parts for k in range(parts + 1))
    weights = tuple(multiple / (3 * parts) for multiple in multiples)
    return Quadrature(nodes, weights)


_GAUSS = math.sqrt(3.0) / 6.0  # How far the two Gauss-Legendre nodes on [0, 1] are from 1/2.
# The trapezoid is exact for polynomials of degree 1, the other two for degree 3. They integrate
# the slope of the loss, so the loss along the step may have one degree more.
QUADRATURES: Mapping[str, Quadrature] = {
    "trapezoid": Quadrature((0.0, 1.0), (0.5, 0.5)),
    "simpson": composite_simpson(2),
    "gauss2": Quadrature((0.5 - _GAUSS, 0.5 + _GAUSS), (0.5, 0.5)),
}
ADAPTIVE = "adaptive"
TOLERANCE = 0.02  # Relative to the sum of the contributions' absolute values.
# Each rule has the nodes of the rule before it, and the points halfway between them.
_REFINEMENTS = tuple(composite_simpson(parts) for parts in (2, 4, 8, 16))


def path_attribution(
    gradient: Callable[[Tensor], Tensor],
    global_params: Tensor,
    client_updates: Tensor,
    coefficients: Tensor,
    rule: str = "simpson",
) -> Tensor:
    r"""Return how much of a step's decrease of the loss each client's update brought about.

    .. math:: c_i = -a_i \int_0^1 \left\langle u_i, \nabla \ell(w_{t-1} + \tau s, D') \right\rangle
              d\tau, \qquad s = \sum_i a_i u_i, \qquad
              \sum_i c_i = \ell(w_{t-1}, D') - \ell(w_{t-1} + s, D')

    with :math:`u_i = w_i - w_{t-1}` client i's update, :math:`a_i` the coefficient that it was
    multiplied by, and :math:`\ell(\cdot, D')` the loss on the held-out set D'. This is the
    Aumann-Shapley value of the game in which each client's part of the step is put in little by
    little. The integral is computed by a quadrature rule, so that the sum holds up to that rule's
    error. It is exact where the loss along the step is a polynomial of degree 2 (trapezoid) or 4
    (Simpson, two Gauss-Legendre nodes).

    Parameters
    ----------
    gradient : callable
        ``[d] -> [d]``: :math:`\nabla \ell(\cdot, D')`; called once for each node of the rule.
    global_params : Tensor
        ``[d]``: w_{t-1}.
    client_updates : Tensor
        ``[m, d]``.
    coefficients : Tensor
        ``[m]``, finite: what the updates were really multiplied by.
    rule : str
        ``"trapezoid"``, ``"simpson"``, ``"gauss2"``, or ``"adaptive"``, which here is Simpson's
        rule in 16 parts.

    Returns
    -------
    Tensor
        ``[m]``, float64, in the unit of the loss; positive where the loss fell. A zero update, or
        a coefficient of 0, gives exactly 0.

    Raises
    ------
    ValuationError
        If the shapes do not fit together, or the rule is unknown.

    References
    ----------
    Aumann and Shapley, *Values of Non-Atomic Games*, 1974; Sundararajan et al., "Axiomatic
    Attribution for Deep Networks", 2017 (the same integral over a network's inputs).
    """
    quadrature = find_refinements(rule)[-1]
    _require_shapes(global_params, client_updates, coefficients)
    step = combine(torch.zeros_like(global_params), client_updates, coefficients)  # [d]
    at_nodes = []
    for node in quadrature.nodes:
        gradient_there = gradient(global_params + node * step)
        if gradient_there.shape != global_params.shape:
            raise ValuationError(
                f"gradient returns {list(gradient_there.shape)}; expected "
                f"{list(global_params.shape)}"
            )
        at_nodes.append(slopes(client_updates, gradient_there))
    return contributions(torch.stack(at_nodes), coefficients, quadrature)


def _require_shapes(global_params: Tensor, client_updates: Tensor, coefficients: Tensor) -> None:
    """Raise ValuationError unless the shapes are ``[d]``, ``[m, d]`` and ``[m]``."""
    are_vectors = global_params.dim() == 1 and coefficients.dim() == 1
    m_by_d = (*coefficients.shape, *global_params.shape)
    if not are_vectors or client_updates.shape != m_by_d:
        raise ValuationError(
            "expected global_params [d], client_updates [m, d] and coefficients [m], got "
            f"{list(global_params.shape)}, {list(client_updates.shape)} and "
            f"{list(coefficients.shape)}"
        )


def slopes(client_updates: Tensor, gradient: Tensor, squared_norms: Tensor | None = None) -> Tensor:
    """Return how fast the loss falls along each update at one point, ``[m]``, float64.

    Parameters
    ----------
    client_updates : Tensor
        ``[m, d]``.
    gradient : Tensor
        ``[d]``: the gradient of the loss at the point.
    squared_norms : Tensor, optional
        ``[m]``: the squared norms of the updates, where they are known already.
    """
    local_gradient = gradient.to(client_updates.device)
    return project_updates(client_updates, local_gradient, squared_norms).inner.cpu()


def block_contributions(
    slopes: Tensor, coefficients: Tensor, weights: Tensor, contributed: Tensor
) -> Tensor:
    r"""Return the part of each contribution that comes from each block of examples, ``[b, m]``.

    .. math:: c_{ki} = W_k \big( c_i + h_{ki} - \bar h_i \big), \qquad
              h_{ki} = -a_i \left\langle u_i, \nabla \ell(w_{t-1} + s / 2, D'_k) \right\rangle,
              \qquad \bar h_i = \sum_k W_k h_{ki}

    :math:`h_{ki}` is the contribution to the mean loss of block k, :math:`D'_k`, by the midpoint
    rule. It is exact where this loss is a polynomial of degree 2 along the step. The quadrature
    rule may find another contribution :math:`c_i` than the blocks' mean :math:`\bar h_i`. The
    difference is divided among the blocks by their weights :math:`W_k`, so that
    :math:`\sum_k c_{ki} = c_i`.

    Whatever the rule is, this needs one pass over the examples. The gradients at both ends of the
    step are not split by blocks, since consecutive rounds share them.

    Parameters
    ----------
    slopes : Tensor
        ``[b, m]``: what :func:`slopes` returns in the middle of the step, for each block's mean
        loss.
    coefficients : Tensor
        ``[m]``: :math:`a_i`.
    weights : Tensor
        ``[b]``: :math:`W_k`, each block's share of the examples; they sum to 1.
    contributed : Tensor
        ``[m]``: :math:`c_i`.
    """
    at_middle = slopes.double().cpu() * coefficients.double().cpu()  # h [b, m]
    column = weights.double().cpu()[:, None]  # W [b, 1]
    mean_at_middle = (column * at_middle).sum(dim=0)  # [m]
    # Adding 0 turns -0 into 0.
    return column * (contributed.double().cpu() + at_middle - mean_at_middle) + 0.0


def contributions(slopes: Tensor, coefficients: Tensor, quadrature: Quadrature) -> Tensor:
    """Return contributions ``[m]``, float64, from the slopes at the nodes of a quadrature rule.

    Parameters
    ----------
    slopes : Tensor
        ``[nodes, m]``: what :func:`slopes` returns at each node of the rule.
    coefficients : Tensor
        ``[m]``: what the updates are multiplied by in the step.
    quadrature : Quadrature
        The rule.
    """
    weights = torch.tensor(quadrature.weights, dtype=torch.float64)
    # No matrix product: it could add up the columns of two equal clients in different orders, so
    # that their contributions would differ by rounding.
    mean = (weights[:, None] * slopes.double().cpu()).sum(dim=0)
    return coefficients.double().cpu() * mean + 0.0  # Adding 0 turns -0 into 0.


def find_refinements(rule: str) -> tuple[Quadrature, ...]:
    """Return the quadrature rules to try in this order until :func:`is_settled` says yes.

    The adaptive rule has four, each finer than the one before; every other rule has one.

    Raises
    ------
    ValuationError
        If there is no rule of that name.
    """
    if rule not in (*QUADRATURES, ADAPTIVE):
        raise ValuationError(f"rule = {rule!r}; allowed: {', '.join((*QUADRATURES, ADAPTIVE))}")
    if rule == ADAPTIVE:
        return _REFINEMENTS
    return (QUADRATURES[rule],)


def is_settled(contributed: Tensor, coarser: Tensor | None, decrease: float) -> bool:
    """Tell whether contributions need no finer quadrature rule.

    They need none where they add up to the measured decrease of the loss. They need none either
    where they differ little from those of the coarser rule: the remainder then has another cause
    than quadrature, such as buffers of batch norm.

    Parameters
    ----------
    contributed : Tensor
        ``[m]``: contributions by this rule.
    coarser : Tensor, optional
        ``[m]``: contributions by the rule before; ``None``: this is the first rule.
    decrease : float
        The measured decrease of the loss over the step.
    """
    allowed = TOLERANCE * float(contributed.abs().sum())
    if abs(decrease - float(contributed.sum())) <= allowed:
        return True
    if coarser is None:
        return False
    return float((contributed - coarser).abs().sum()) <= allowed
