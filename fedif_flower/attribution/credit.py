"""Credit: the part of a member's contribution that lies within bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedif_flower.aggregators.linear_algebra import cosines, orthonormal
from fedif_flower.client_table import ClientTable
from fedif_flower.constructors import require_settings
from fedif_flower.settings import NO_BOUND, BoundOfUsual, Setting
from fedif_flower.valuation.influence import project_updates

REMEMBERED = 3  # Global steps; older ones say little about where the loss falls now.
PARAMETERS_PER_STEP = 4  # The model has to have so many parameters for each remembered step.
# A step adds a direction to the basis if more than this part of its length is left once its parts
# along the newer steps are taken away.
_LEAST_NEW_PART = 1e-3
ENOUGH_MEMBERS = 8  # In a smaller round, the others' updates are too few to explain an update.
# The most similar members, this part of the round, do not help to explain a member's update: they
# may be its accomplices.
COALITION = 0.2
ENOUGH_FOR_SLOPE = 5  # Members; fewer do not show how lengths grow with examples.
MOST_COMPARED = 1000  # Members that are compared pair by pair: half a million pairs.
_RIDGE = 1e-3  # Added to the diagonal of a matrix of cosines, which may be singular.
# Relative to an update's squared length: coordinates in the basis have float32's rounding errors.
_ROUNDING = 1e-6
# The usual ratio is never taken to be less: late in a run the last steps may point along nobody's
# update, so that the median ratio is about 0.
_LEAST_USUAL = 0.05
_MOST_TIMES_USUAL = 99.0  # Larger multiples, which may be infinite, are reported as this one.


class PastSteps:
    """The last global steps, the newest first, and an orthonormal basis ``[k, d]`` of their span.

    At most three steps are kept, and at most d / 4. In a model with few parameters, more steps
    would span most of the parameter space, and no part of an update would count as its sender's
    own.

    Parameters
    ----------
    steps : sequence of Tensor
        ``[d]`` each, the newest first; none of length 0.
    """

    def __init__(self, steps: Sequence[Tensor] = ()) -> None:
        most = REMEMBERED
        if steps:
            most = min(REMEMBERED, len(steps[0]) // PARAMETERS_PER_STEP)
        self.steps = tuple(steps)[:most]
        self.basis = orthonormal(self.steps, _LEAST_NEW_PART)
        if self.steps:
            self.basis = self.basis.to(self.steps[0])
        elif steps:
            self.basis = steps[0].new_zeros(0, len(steps[0]))

    def after(self, step: Tensor) -> PastSteps:
        """Return the last steps after one more step ``[d]``; a step of length 0 is ignored."""
        if not bool(step.any()):
            return self
        return PastSteps((step, *self.steps))

    def coordinates(self, updates: Tensor) -> Tensor:
        """Return the coordinates of updates ``[m, d]`` in the basis: ``[m, k]``, float64, CPU."""
        if not len(self.basis):
            return torch.zeros(len(updates), 0, dtype=torch.float64)
        columns = []
        for unit in self.basis:
            # The inner products of the negative updates.
            inner = project_updates(updates, unit.to(updates.device)).inner
            columns.append(-inner)
        return torch.stack(columns, dim=1).cpu()


@dataclass(frozen=True)
class Credit:
    r"""How much of each update of a round is credited; all tensors are float64.

    Member i is credited with at most the contribution that
    :math:`\kappa_i (u_i - \sum_k \rho_{ik} e_k)` would have in the place of its update
    :math:`u_i`, with :math:`e_k` the orthonormal basis of the last global steps.

    Attributes
    ----------
    factor : Tensor
        ``[m]``: :math:`\kappa_i` in (0, 1].
    returned : Tensor
        ``[m, k]``: :math:`\rho_{ik}`, the part along the last steps for which there is no credit.
    length, weight, borrowed : Tensor
        ``[m]``: the update's length, the member's mean weight, and the ratio of the update's part
        along the last steps to its own part, in multiples of what is usual.
    opposed : Tensor
        ``[m]``: how far the update points against another one, from 0 to 1 (:func:`opposition`).
    """

    factor: Tensor
    returned: Tensor
    length: Tensor
    weight: Tensor
    borrowed: Tensor
    opposed: Tensor


class _Borrowing(NamedTuple):
    """How much of each update of a round lies along the last global steps.

    Attributes
    ----------
    multiples : Tensor
        ``[m]``: the ratio of this part to the sender's own part, in multiples of the usual ratio.
    beyond : Tensor
        ``[m]``, in [0, 1]: the share of this part that exceeds the bound.
    """

    multiples: Tensor
    beyond: Tensor


class CreditBounds:
    r"""Bounds on what members are credited with, relative to what is usual among them.

    With the three settings :math:`\lambda_L, \lambda_W, \lambda_B`, two quantities say how much of
    member i's update :math:`u_i` is credited (see :class:`Credit`).

    The factor for length and weight is

    .. math:: \kappa_i = \min(1, \lambda_L \ell_i / |u_i|) \min(1, \lambda_W / \bar p_i)

    with :math:`\ell_i` the usual length of an update from :math:`n_i` examples (see
    :func:`usual_lengths`). :math:`\bar p_i` is the member's share of the weights, divided by the
    median member's share of the examples, as a mean over the member's rounds.

    The part along the last global steps that exceeds the bound is

    .. math:: \rho_i = \max(0, 1 - \lambda_B \tau o_i / |q_i|)\, q_i

    with :math:`q_i` the coordinates of :math:`u_i` in an orthonormal basis of these steps,
    :math:`o_i` the length of the part that is member i's own (see :func:`own_lengths`), and
    :math:`\tau` the round's median of :math:`|q_j| / o_j`, at least 0.05.

    Lengths are those that the round used: an update that a stage or the strategy's own rule has
    shortened counts as shortened. The bounds need the Gram matrix of the updates, the updates'
    inner products with the last steps, and the weights.

    Parameters
    ----------
    length, borrowed, weight : float
        :math:`\lambda_L, \lambda_B, \lambda_W`, each 0 (no such bound) or >= 1.

    Raises
    ------
    ConfigError
        If one lies outside its range.
    """

    def __init__(
        self,
        length: Annotated[
            BoundOfUsual,
            Setting(
                "an update is credited for at most this many times the usual length of an update "
                "from as many examples; 0: no such bound (`docs/methods/path-attribution.md`)",
                allowed=NO_BOUND,
                changes_result=False,
            ),
        ] = 1.25,
        borrowed: Annotated[
            BoundOfUsual,
            Setting(
                "the part of an update along the last three global steps is credited for at most "
                "this many times the usual part; 0: no such bound",
                allowed=NO_BOUND,
                changes_result=False,
            ),
        ] = 1.6,
        weight: Annotated[
            BoundOfUsual,
            Setting(
                "a member is credited for at most this many times the share of the examples that "
                "the median member has; 0: no such bound",
                allowed=NO_BOUND,
                changes_result=False,
            ),
        ] = 2.0,
    ) -> None:
        require_settings(CreditBounds, {"length": length, "borrowed": borrowed, "weight": weight})
        self.length = length
        self.borrowed = borrowed
        self.weight = weight
        # For each member: the sum of the logarithms of its updates' relative lengths, the number of
        # rounds in which its update was not 0, and its latest number of examples; the sum of its
        # relative weights, and the number of its rounds.
        self._clients = ClientTable(logarithms=0, moved=0, examples=0, weights=0, rounds=0)

    def bound(
        self,
        client_ids: Sequence[int],
        examples: Tensor,
        gram: Tensor,
        weights: Tensor,
        coordinates: Tensor,
        length_factors: Tensor | None = None,
    ) -> Credit:
        """Return how much of each of the round's updates is credited; remember lengths and weights.

        Parameters
        ----------
        client_ids : sequence of int
            The m participants.
        examples : Tensor
            ``[m]``: n_i > 0, the numbers of examples with which the round counts them.
        gram : Tensor
            ``[m, m]``: inner products of the updates.
        weights : Tensor
            ``[m]``: the weights of the round's step, without the factors that shorten or lengthen
            updates.
        coordinates : Tensor
            ``[m, k]``: the updates' coordinates in an orthonormal basis of the last global steps'
            span (see :class:`PastSteps`); k = 0: there was no step yet.
        length_factors : Tensor, optional
            ``[m]``, >= 0: the factors by which the round shortened or lengthened the updates;
            ``None``: it did neither.
        """
        gram = gram.double()
        weights = weights.double()
        coordinates = coordinates.double()
        lengths = gram.diagonal().clamp_min(0.0).sqrt()  # [m]
        if length_factors is not None:
            lengths = lengths * length_factors.double()
        usual_length = self._usual(client_ids, examples, lengths)
        length = torch.where(lengths > 0, lengths / usual_length, 0.0)
        weight = self._mean_weights(client_ids, examples, weights)
        borrowing = self._compare_with_past(gram, coordinates)
        return Credit(
            factor=_factors_within(length, self.length) * _factors_within(weight, self.weight),
            returned=borrowing.beyond.unsqueeze(1) * coordinates,
            length=length,
            weight=weight,
            borrowed=borrowing.multiples.clamp_max(_MOST_TIMES_USUAL),
            opposed=opposition(gram),
        )

    def _compare_with_past(self, gram: Tensor, coordinates: Tensor) -> _Borrowing:
        """Return how much of the updates lies along the last steps; arguments as in :meth:`bound`.

        It is measured in multiples of the round's median ratio of this part to the own part.
        """
        along_past = torch.linalg.vector_norm(coordinates, dim=1)  # |q_i| [m]
        own_length = own_lengths(gram, coordinates)  # o_i [m]
        # Infinite where an update has no part of its sender's own.
        ratios = torch.where(along_past > 0, along_past / own_length, 0.0)
        usual_ratio = max(_median(ratios), _LEAST_USUAL)
        if math.isinf(usual_ratio):
            # Most members have no part of their own in this round: nobody stands out.
            return _Borrowing(torch.ones_like(ratios), beyond=torch.zeros_like(ratios))
        multiples = ratios / usual_ratio
        if not self.borrowed:
            return _Borrowing(multiples, beyond=torch.zeros_like(ratios))
        allowed = self.borrowed * usual_ratio * own_length
        beyond = (1 - allowed / along_past.clamp_min(1e-300)).clamp_min(0.0)
        return _Borrowing(multiples, beyond)

    def _usual(self, client_ids: Sequence[int], examples: Tensor, lengths: Tensor) -> Tensor:
        """Return the usual length of an update from as many examples as each participant has.

        ``[m]``. It follows from the members' mean lengths over all rounds so far.
        """
        moving = lengths > 0
        if not bool(moving.any()):
            return torch.ones_like(lengths)
        table = self._clients
        # Updates shrink over a run: lengths relative to their round's median can be averaged.
        scale = float(lengths[moving].median())
        moving_ids = []
        for client_id, moves in zip(client_ids, moving.tolist(), strict=True):
            if moves:
                moving_ids.append(client_id)
        logarithms = np.array([math.log(length / scale) for length in lengths[moving].tolist()])
        table.write(
            moving_ids,
            logarithms=table.read(moving_ids, "logarithms") + logarithms,
            moved=table.read(moving_ids, "moved") + 1,
            examples=examples[moving].cpu(),
        )
        rounds_moved = torch.tensor(table.column("moved"))
        has_moved = rounds_moved > 0
        means = torch.tensor(table.column("logarithms"))[has_moved] / rounds_moved[has_moved]
        their_examples = torch.tensor(table.column("examples"))[has_moved]
        return scale * usual_lengths(their_examples, means.exp(), examples)

    def _mean_weights(self, client_ids: Sequence[int], examples: Tensor, weights: Tensor) -> Tensor:
        """Return each participant's mean weight over its rounds so far, ``[m]``.

        Weights are in multiples of the one that the member with the median number of examples would
        have if weights were in proportion to examples.
        """
        examples = examples.double()
        usual = float(weights.sum()) * _median(examples) / float(examples.sum())
        ratios = torch.zeros_like(weights)
        if usual > 0:
            ratios = weights / usual
        total = self._clients.read(client_ids, "weights") + ratios.numpy()
        rounds = self._clients.read(client_ids, "rounds") + 1
        self._clients.write(client_ids, weights=total, rounds=rounds)
        return torch.from_numpy(total / rounds)

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on."""
        return {"clients": self._clients.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""
        self._clients.load_state_dict(state["clients"])


def usual_lengths(examples: Tensor, lengths: Tensor, asked: Tensor) -> Tensor:
    r"""Return how long an update from so many examples usually is: :math:`\ell(n) = c n^\alpha`.

    The estimate is that of Theil and Sen. In logarithms, :math:`\alpha` is the median of the slopes
    between all pairs of members, clamped to [0, 1], and :math:`\log c` the median of the residuals.
    Fewer than 29 % of the members cannot move it far, whatever lengths they send. With fewer than
    five members :math:`\alpha = 0`. With more than a thousand members, a thousand of them drawn at
    random give the slope, since the number of pairs grows with the square.

    Parameters
    ----------
    examples, lengths : Tensor
        ``[k]``, > 0: the members' numbers of examples, and the lengths of their updates.
    asked : Tensor
        ``[m]``, > 0: the numbers of examples n for which :math:`\ell(n)` is returned.

    Returns
    -------
    Tensor
        ``[m]``, float64.

    References
    ----------
    Sen, "Estimates of the regression coefficient based on Kendall's tau", 1968.
    """
    log_examples = examples.double().log()  # [k]
    log_lengths = lengths.double().log()  # [k]
    alpha = _exponent(log_examples, log_lengths)
    log_c = _median(log_lengths - alpha * log_examples)
    return (log_c + alpha * asked.double().log()).exp()


def _exponent(log_examples: Tensor, log_lengths: Tensor) -> float:
    """Return the median slope between pairs of the ``[k]`` members, in [0, 1]; 0 for too few."""
    shuffled = torch.randperm(len(log_examples), generator=torch.Generator().manual_seed(0))
    compared = shuffled[:MOST_COMPARED]
    first, second = compared[torch.triu_indices(len(compared), len(compared), 1)]  # The pairs.
    more_examples = log_examples[second] - log_examples[first]
    longer = log_lengths[second] - log_lengths[first]
    slopes = (longer / more_examples)[more_examples.abs() > 1e-9]
    if len(log_examples) < ENOUGH_FOR_SLOPE or not len(slopes):
        return 0.0
    return min(max(_median(slopes), 0.0), 1.0)


def own_lengths(gram: Tensor, coordinates: Tensor) -> Tensor:
    r"""Return the length of the part of each update that its sender learned from data, ``[m]``.

    .. math:: o_i^2 = R_i^2 |r_i|^2, \qquad r_i = u_i - \sum_k q_{ik} e_k

    :math:`r_i` is the update without its part along the last global steps, whose orthonormal basis
    is :math:`e_k`. :math:`R_i^2` is the share of :math:`|r_i|^2` that the :math:`r_j` of the other
    members explain by least squares. Updates that were trained on data of one task have directions
    in common; noise that is added to borrowed steps has none in common with them. The fifth of the
    round that is most similar to member i is left out of the least squares, so that accomplices do
    not explain each other's noise. With fewer than eight members :math:`R_i = 1`.

    Parameters
    ----------
    gram : Tensor
        ``[m, m]``: inner products of the updates :math:`u_i`.
    coordinates : Tensor
        ``[m, k]``: :math:`q_{ik}`, the updates' coordinates in the basis of the last steps.
    """
    residual = gram.double() - coordinates @ coordinates.T  # [m, m]
    squared = residual.diagonal().clamp_min(0.0)
    m = len(squared)
    # An update that consists of borrowed steps alone leaves a residual of rounding errors.
    is_nothing = squared <= _ROUNDING * gram.diagonal()
    if m < ENOUGH_MEMBERS:
        return torch.where(is_nothing, 0.0, squared.sqrt())
    likeness = cosines(residual)
    likeness[is_nothing] = 0.0
    likeness[:, is_nothing] = 0.0
    lengths = torch.zeros(m, dtype=torch.float64)
    with_own_part = (~is_nothing).nonzero().squeeze(1)
    for i in with_own_part.tolist():
        similarity = likeness[i].abs()
        similarity[i] = math.inf  # Sorted last, so that member i does not explain itself.
        others = similarity.argsort(stable=True)[: m - 1 - int(COALITION * m)]
        matrix = likeness[others][:, others] + _RIDGE * torch.eye(len(others)).double()
        target = likeness[others, i]
        explained = float(target @ torch.linalg.solve(matrix, target))
        lengths[i] = squared[i].sqrt() * math.sqrt(min(max(explained, 0.0), 1.0))
    return lengths


def opposition(gram: Tensor) -> Tensor:
    r"""Return how far each update points against one other update in particular, ``[m]``.

    .. math:: o_i = \max_{j \ne i} \big( -\cos(u_i, u_j)
              - \max(0, \operatorname{median}_{k \ne i, j} -\cos(u_j, u_k)) \big)

    clamped to [0, 1]. The update of a member with inverted labels points against most others. The
    median subtracts this from the figures of the others, who have not caused it, and not from the
    member's own figure.

    Parameters
    ----------
    gram : Tensor
        ``[m, m]``: inner products of the updates.
    """
    against = -cosines(gram.double())  # [m, m]
    excess = torch.zeros_like(against)
    for j in range(len(gram)):
        others = [i for i in range(len(gram)) if i != j]
        # For each member i other than j: how far j points against the rest, in the median, [m - 1].
        usual = medians_without_each(against[j, others]).clamp_min(0.0)
        excess[others, j] = against[others, j] - usual
    return excess.amax(dim=1).clamp(0.0, 1.0)


def medians_without_each(values: Tensor) -> Tensor:
    """Return, for each of the values ``[n]``, the median of all others, ``[n]``; 0 if n = 1.

    The median of an even number of values is the mean of the two in the middle.
    """
    num_others = len(values) - 1
    if num_others < 1:
        return torch.zeros_like(values)
    ordered = values.sort().values
    rank = values.argsort().argsort()  # [n]: each value's place in that order.

    def other_at(place: int) -> Tensor:
        """Return, for each value, what stands at ``place`` in the order of the others, ``[n]``."""
        # Where a value is left out, all that follow it in the order move up by one place.
        return torch.where(rank > place, ordered[place], ordered[place + 1])

    return (other_at((num_others - 1) // 2) + other_at(num_others // 2)) / 2


def credited(contributions: Tensor, factor: Tensor, returned: Tensor) -> Tensor:
    r"""Return what members are credited with, ``[m]``.

    .. math:: \hat c_i = \min(c_i, \kappa_i (c_i - \max(b_i, 0)))

    A credit never exceeds the contribution: a negative contribution counts in full.

    Parameters
    ----------
    contributions : Tensor
        ``[m]``: c_i.
    factor : Tensor
        ``[m]``: kappa_i.
    returned : Tensor
        ``[m]``: b_i, the part of c_i that comes from the excess along the last steps
        (:attr:`Credit.returned`).
    """
    return torch.minimum(contributions, factor * (contributions - returned.clamp_min(0.0)))


def _factors_within(ratios: Tensor, bound: float) -> Tensor:
    """Return the factors ``[m]``, at most 1, that bring ratios down to a bound; 0: no bound."""
    if not bound:
        return torch.ones_like(ratios)
    return torch.where(ratios > bound, bound / ratios, 1.0)


def _median(values: Tensor) -> float:
    """Return the median, the mean of the middle two for an even number; 0 without values."""
    if not len(values):
        return 0.0
    return float(np.median(values.numpy()))
