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
    """Return Simpson's rule on [0, 1] in an even number of parts, >= 2: ``parts + 1`` nodes."""
    multiples = [1.0] * (parts + 1)  # 1, 4, 2, 4, ... 2, 4, 1
    multiples[1:-1:2] = [4.0] * (parts // 2)
    multiples[2:-1:2] = [2.0] * (parts // 2 - 1)
    nodes = tuple(k / parts for k in range(parts + 1))
    weights = tuple(multiple / (3 * parts) for multiple in multiples)
    return Quadrature(nodes, weights)


_GAUSS = math.sqrt(3.0) / 6.0
# Exact for polynomials of degree 1, and 3; the loss along the step may be one of a degree more.
QUADRATURES: Mapping[str, Quadrature] = {
    "trapezoid": Quadrature((0.0, 1.0), (0.5, 0.5)),
    "simpson": composite_simpson(2),
    "gauss2": Quadrature((0.5 - _GAUSS, 0.5 + _GAUSS), (0.5, 0.5)),
}
ADAPTIVE = "adaptive"
TOLERANCE = 0.02  # Of the sum of the contributions' sizes.
# Each has the nodes of the one before, and those halfway between them.
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

    with :math:`u_i = w_i - w_{t-1}` client i's update and :math:`a_i` the coefficient that it was
    applied with. This is the Aumann-Shapley value of the game "how much of each client's part is
    put in". The integral is taken by a quadrature rule, so that the sum holds up to that rule's
    error: exactly where the loss along the step is a polynomial of degree 2 (trapezoid) or 4
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
        ``"trapezoid"``, ``"simpson"``, ``"gauss2"``, or ``"adaptive"``: Simpson's in 16 parts.

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
    step = combine(torch.zeros_like(global_params), client_updates, coefficients)  # [d]
    at_nodes = []
    for node in quadrature.nodes:
        gradient_there = gradient(global_params + node * step)
        at_nodes.append(slopes(client_updates, gradient_there))
    return contributions(torch.stack(at_nodes), coefficients, quadrature)


def slopes(client_updates: Tensor, gradient: Tensor, squared_norms: Tensor | None = None) -> Tensor:
    """Return how fast the loss falls along each update ``[m, d]`` at one point: ``[m]``, float64.

    ``gradient`` [d] is the loss's at that point; ``squared_norms`` [m] are the updates', where they
    are known.
    """
    local_gradient = gradient.to(client_updates.device)
    return project_updates(client_updates, local_gradient, squared_norms).inner.cpu()


def block_contributions(
    slopes: Tensor, coefficients: Tensor, weights: Tensor, contributed: Tensor
) -> Tensor:
    r"""Return what of each contribution comes from each block of held-out examples, ``[b, m]``.

    .. math:: c_{ki} = W_k \big( c_i + h_{ki} - \bar h_i \big), \qquad
              h_{ki} = -a_i \left\langle u_i, \nabla \ell(w_{t-1} + s / 2, D'_k) \right\rangle,
              \qquad \bar h_i = \sum_k W_k h_{ki}

    :math:`h_{ki}` is the contribution to block k's own loss by the midpoint rule, exact where that
    is of degree 2 along the step. What the rule of the sum finds beyond :math:`\bar h_i` is no
    block's own: each has its part of it, so that :math:`\sum_k c_{ki} = c_i`. This takes one pass
    over the examples, whichever the rule: the gradients at the ends of the step, which rounds
    share, are not taken apart.

    Parameters
    ----------
    slopes : Tensor
        ``[b, m]``: those of :func:`slopes` in the middle of the step, of blocks' mean losses.
    coefficients : Tensor
        ``[m]``: a_i.
    weights : Tensor
        ``[b]``: W_k, each block's part of the examples; they sum to 1.
    contributed : Tensor
        ``[m]``: c_i.
    """
    at_middle = slopes.double().cpu() * coefficients.double().cpu()  # h [b, m]
    shares = weights.double().cpu()[:, None]  # W [b, 1]
    mean_at_middle = (shares * at_middle).sum(dim=0)  # [m]
    # Adding 0 turns -0 into 0.
    return shares * (contributed.double().cpu() + at_middle - mean_at_middle) + 0.0


def contributions(slopes: Tensor, coefficients: Tensor, quadrature: Quadrature) -> Tensor:
    """Return contributions ``[m]``, float64.

    Parameters
    ----------
    slopes : Tensor
        ``[nodes, m]``: those of :func:`slopes` at each node of the rule.
    coefficients : Tensor
        ``[m]``: by which the updates are in the step.
    quadrature : Quadrature
        The rule.
    """
    weights = torch.tensor(quadrature.weights, dtype=torch.float64)
    # One node after the other: in a product of matrices, equal clients could be summed unlike.
    mean = (weights[:, None] * slopes.double().cpu()).sum(dim=0)
    return coefficients.double().cpu() * mean + 0.0  # Adding 0 turns -0 into 0.


def find_refinements(rule: str) -> tuple[Quadrature, ...]:
    """Return the rules to go through, until :func:`is_settled`: one, or four where it is adaptive.

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
    """Tell whether contributions ``[m]`` need no finer rule.

    They do not where they add up to the measured decrease of the loss, or differ little from what
    the rule before has found: then the remainder is none of the rule's, as with batch norms.

    Parameters
    ----------
    contributed, coarser : Tensor
        ``[m]``: by this rule, and by the one before, if there was one.
    decrease : float
        Of the loss, as measured.
    """
    allowed = TOLERANCE * float(contributed.abs().sum())
    if abs(decrease - float(contributed.sum())) <= allowed:
        return True
    if coarser is None:
        return False
    return float((contributed - coarser).abs().sum()) <= allowed
