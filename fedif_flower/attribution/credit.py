"""Credit: how much of each update counts towards what its sender is credited with."""

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

REMEMBERED = 3  # Steps; further back, a step says little about where the loss falls.
PARAMETERS_PER_STEP = 4  # At least, for each step that is remembered.
_NEW = 1e-3  # Of a step's length: what is left of it beside newer ones and counts as a direction.
ENOUGH_MEMBERS = 8  # With fewer, nobody's update can be explained by others'.
COALITION = 0.2  # Of the round: so many, the most alike, are not asked who explains an update.
LEAST_FOR_SLOPE = 5  # Members; fewer do not show how lengths grow with examples.
MOST_COMPARED = 1000  # Members, two by two: half a million pairs.
_RIDGE = 1e-3
_ROUNDING = 1e-6  # Of an update's square: coordinates in the basis are float32's.
_LEAST_USUAL = 0.05  # Late steps may be nobody's direction any more: the median is about 0 then.
_MOST = 99.0  # What ratios without a limit are told as.


class PastSteps:
    """The last global steps, the newest first, and a basis of their span.

    Their number k is three, and at most a quarter of d: with few parameters the last steps span
    most of what there is, and nothing would be anybody's own.

    Parameters
    ----------
    steps : sequence of Tensor
        ``[d]`` each, the newest first; those of length 0 are left out.
    """

    def __init__(self, steps: Sequence[Tensor] = ()) -> None:
        most = REMEMBERED
        if steps:
            most = min(REMEMBERED, len(steps[0]) // PARAMETERS_PER_STEP)
        self.steps = tuple(steps)[:most]
        self.basis = orthonormal(self.steps, _NEW)
        if self.steps:
            self.basis = self.basis.to(self.steps[0])
        elif steps:
            self.basis = steps[0].new_zeros(0, len(steps[0]))

    def after(self, step: Tensor) -> PastSteps:
        """Return the last steps after one more ``[d]``; one of length 0 changes nothing."""
        if not bool(step.any()):
            return self
        return PastSteps((step, *self.steps))

    def shares(self, updates: Tensor) -> Tensor:
        """Return the coordinates of updates ``[m, d]`` in the basis: ``[m, k]``, float64, CPU."""
        if not len(self.basis):
            return torch.zeros(len(updates), 0, dtype=torch.float64)
        coordinates = [
            -project_updates(updates, unit.to(updates.device)).inner for unit in self.basis
        ]
        return torch.stack(coordinates, dim=1).cpu()


@dataclass(frozen=True)
class Credit:
    r"""How much of each update of a round is credited, ``[m]`` each, float64.

    Member i is credited with no more than its part in which
    :math:`\kappa_i (u_i - \sum_k \rho_{ik} e_k)` stands for :math:`u_i`, with :math:`e_k` the
    basis of the last global steps.

    Attributes
    ----------
    kept : Tensor
        :math:`\kappa_i` in (0, 1].
    returned : Tensor
        ``[m, k]``: :math:`\rho_{ik}`.
    length, weight, borrowed : Tensor
        Length, mean weight and share of the last steps, in multiples of what is usual.
    opposed : Tensor
        How far it is turned against another one, from 0 to 1 (:func:`opposition`).
    """

    kept: Tensor
    returned: Tensor
    length: Tensor
    weight: Tensor
    borrowed: Tensor
    opposed: Tensor


class _Borrowed(NamedTuple):
    """How much of each update of a round is along the last steps.

    Attributes
    ----------
    multiples : Tensor
        ``[m]``: in multiples of what is usual.
    beyond : Tensor
        ``[m]``, in [0, 1]: the share of that which lies beyond the bound.
    """

    multiples: Tensor
    beyond: Tensor


class CreditBounds:
    r"""Bounds what is credited by what is usual among the members.

    An update of member i counts, with :math:`\lambda_L, \lambda_W, \lambda_B` the three settings,

    - for :math:`\kappa_i = \min(1, \lambda_L \ell_i / |u_i|) \min(1, \lambda_W / \bar p_i)` of
      itself: :math:`\ell_i` is the usual length of an update from :math:`n_i` examples (see
      :func:`usual_lengths`), :math:`\bar p_i` the mean over its rounds of its share of the weights
      over the share of the examples that the median member has;
    - without what it has of the last global steps beyond :math:`\lambda_B` times what is usual:
      :math:`\rho_i = \max(0, 1 - \lambda_B \tau o_i / |q_i|) q_i`, with :math:`q_i` the
      coordinates of :math:`u_i` in an orthonormal basis of these steps, :math:`o_i` the length of
      what is member i's own (see :func:`own_lengths`), and :math:`\tau` the round's median of
      :math:`|q_j| / o_j`, at least 0.05.

    Lengths are those that the round used: shortened ones count as shortened, by stages or by the
    strategy's own rule. Bounds need the Gram matrix of the updates, their inner products with the
    last steps, and the coefficients.

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
        # Of a member: the sum of the logarithms of its relative lengths, in how many rounds it
        # moved, its examples; the sum of its relative weights, in how many rounds.
        self._clients = ClientTable(logarithms=0, moved=0, examples=0, weights=0, rounds=0)

    def bound(
        self,
        client_ids: Sequence[int],
        examples: Tensor,
        gram: Tensor,
        weights: Tensor,
        shares: Tensor,
        length_factors: Tensor | None = None,
    ) -> Credit:
        """Return how much of each of the round's updates counts, and remember their lengths.

        Parameters
        ----------
        client_ids : sequence of int
            The m participants.
        examples : Tensor
            ``[m]``: n_i > 0, as they count.
        gram : Tensor
            ``[m, m]``: inner products of the updates.
        weights : Tensor
            ``[m]``: those of the round's step, whatever is done to lengths.
        shares : Tensor
            ``[m, k]``: the updates' coordinates in an orthonormal basis of the last global steps'
            span (see :class:`PastSteps`); k = 0: there was none yet.
        length_factors : Tensor, optional
            ``[m]``, >= 0: by how much the round shortened or lengthened the updates; ``None``: by
            nothing.
        """
        gram = gram.double()
        weights = weights.double()
        shares = shares.double()
        lengths = gram.diagonal().clamp_min(0.0).sqrt()  # [m]
        if length_factors is not None:
            lengths = lengths * length_factors.double()
        usual_length = self._usual(client_ids, examples, lengths)
        length = torch.where(lengths > 0, lengths / usual_length, 0.0)
        weight = self._mean_weights(client_ids, examples, weights)
        borrowed = self._compare_with_past(gram, shares)
        return Credit(
            kept=_kept(length, self.length) * _kept(weight, self.weight),
            returned=borrowed.beyond.unsqueeze(1) * shares,
            length=length,
            weight=weight,
            borrowed=borrowed.multiples.clamp_max(_MOST),
            opposed=opposition(gram),
        )

    def _compare_with_past(self, gram: Tensor, shares: Tensor) -> _Borrowed:
        """Return how much updates have of the last steps, from what :meth:`bound` is given."""
        borrowed = torch.linalg.vector_norm(shares, dim=1)  # [m]
        own_length = own_lengths(gram, shares)
        # Infinite where nothing is a member's own.
        ratios = torch.where(borrowed > 0, borrowed / own_length, 0.0)
        usual_ratio = max(_median(ratios), _LEAST_USUAL)
        nothing = torch.zeros_like(own_length)
        if math.isinf(usual_ratio):
            # Where most have nothing of their own, that says nothing of anybody.
            return _Borrowed(multiples=torch.ones_like(ratios), beyond=nothing)
        multiples = ratios / usual_ratio
        if not self.borrowed:
            return _Borrowed(multiples, beyond=nothing)
        allowed = self.borrowed * usual_ratio * own_length
        beyond = (1 - allowed / borrowed.clamp_min(1e-300)).clamp_min(0.0)
        return _Borrowed(multiples, beyond)

    def _usual(self, client_ids: Sequence[int], examples: Tensor, lengths: Tensor) -> Tensor:
        """Return the usual length of each participant's update, ``[m]``."""
        moving = lengths > 0
        if not bool(moving.any()):
            return torch.ones_like(lengths)
        table = self._clients
        scale = float(lengths[moving].median())
        ids = [i for i, moves in zip(client_ids, moving.tolist(), strict=True) if moves]
        logarithms = np.array([math.log(length / scale) for length in lengths[moving].tolist()])
        table.write(
            ids,
            logarithms=table.read(ids, "logarithms") + logarithms,
            moved=table.read(ids, "moved") + 1,
            examples=examples[moving].cpu(),
        )
        rounds_moved = torch.tensor(table.column("moved"))
        has_moved = rounds_moved > 0
        means = torch.tensor(table.column("logarithms"))[has_moved] / rounds_moved[has_moved]
        their_examples = torch.tensor(table.column("examples"))[has_moved]
        return scale * usual_lengths(their_examples, means.exp(), examples)

    def _mean_weights(self, client_ids: Sequence[int], examples: Tensor, weights: Tensor) -> Tensor:
        """Return each participant's mean weight so far, in shares of the median member: ``[m]``."""
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

    By Theil and Sen: :math:`\alpha` is the median slope between two members in logarithms, held
    within [0, 1], and c the median that is left. It stands as long as those who send other lengths
    are fewer than 29 % of the members. With fewer than five members :math:`\alpha = 0`. Of more
    than a thousand, a thousand drawn at random say the slope: pairs grow with their square.

    Parameters
    ----------
    examples, lengths : Tensor
        ``[k]``, > 0: of the members.
    asked : Tensor
        ``[m]``, > 0: numbers of examples.

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
    """Return the median slope between two of ``[k]`` members, within [0, 1]; of few, 0."""
    shuffled = torch.randperm(len(log_examples), generator=torch.Generator().manual_seed(0))
    compared = shuffled[:MOST_COMPARED]
    first, second = compared[torch.triu_indices(len(compared), len(compared), 1)]  # The pairs.
    more_examples = log_examples[second] - log_examples[first]
    longer = log_lengths[second] - log_lengths[first]
    slopes = (longer / more_examples)[more_examples.abs() > 1e-9]
    if len(log_examples) < LEAST_FOR_SLOPE or not len(slopes):
        return 0.0
    return min(max(_median(slopes), 0.0), 1.0)


def own_lengths(gram: Tensor, shares: Tensor) -> Tensor:
    r"""Return the length of what in each update is its sender's own and comes from data.

    .. math:: o_i^2 = R_i^2 |r_i|^2, \qquad r_i = u_i - \sum_k q_{ik} e_k

    :math:`R_i^2` is the share of :math:`r_i` that others' :math:`r_j` explain (least squares). What
    is trained on data of one task has directions in common with others' updates; noise that is
    added to borrowed steps has not. The fifth of the round that is most like member i is not
    asked, so that accomplices do not explain each other's noise. With fewer than eight members
    :math:`R_i = 1`.

    Parameters
    ----------
    gram : Tensor
        ``[m, m]``: inner products of the updates.
    shares : Tensor
        ``[m, k]``: q_i, the coordinates in a basis of the last steps.
    """
    residual = gram.double() - shares @ shares.T  # [m, m]
    squared = residual.diagonal().clamp_min(0.0)
    m = len(squared)
    # What is left of borrowed steps alone is rounding, whose coordinates are float32's.
    is_nothing = squared <= _ROUNDING * gram.diagonal()
    if m < ENOUGH_MEMBERS:
        return torch.where(is_nothing, 0.0, squared.sqrt())
    likeness = cosines(residual)
    likeness[is_nothing] = 0.0
    likeness[:, is_nothing] = 0.0
    lengths = torch.zeros(m, dtype=torch.float64)
    for i in (~is_nothing).nonzero().squeeze(1).tolist():
        alike = likeness[i].abs()
        alike[i] = math.inf
        others = alike.argsort(stable=True)[: m - 1 - int(COALITION * m)]
        matrix = likeness[others][:, others] + _RIDGE * torch.eye(len(others)).double()
        target = likeness[others, i]
        explained = float(target @ torch.linalg.solve(matrix, target))
        lengths[i] = squared[i].sqrt() * math.sqrt(min(max(explained, 0.0), 1.0))
    return lengths


def opposition(gram: Tensor) -> Tensor:
    r"""Return how far each update is turned against another one in particular, ``[m]``.

    .. math:: o_i = \max_{j \ne i} \big( -\cos(u_i, u_j)
              - \max(0, \operatorname{median}_{k \ne i, j} -\cos(u_j, u_k)) \big)

    and 0 at least. Who is turned against everybody, as a member with inverted labels is, is so by
    its own doing: the median takes that away from the others, not from itself.

    Parameters
    ----------
    gram : Tensor
        ``[m, m]``: the updates' products with each other.
    """
    against = -cosines(gram.double())  # [m, m]
    excess = torch.zeros_like(against)
    for j in range(len(gram)):
        others = [i for i in range(len(gram)) if i != j]
        # How far j is turned against those beside each other one, [m - 1].
        usual = medians_without_each(against[j, others]).clamp_min(0.0)
        excess[others, j] = against[others, j] - usual
    return excess.amax(dim=1).clamp(0.0, 1.0)


def medians_without_each(values: Tensor) -> Tensor:
    """Return the median of the other values, for each of ``[n]``: ``[n]``; 0 where there are none.

    Of an even number it is the mean of the two in the middle.
    """
    num_others = len(values) - 1
    if num_others < 1:
        return torch.zeros_like(values)
    ordered = values.sort().values
    rank = values.argsort().argsort()  # [n]: of each value in that order.

    def of_others(place: int) -> Tensor:
        """Return what stands at a place of the order, once each value is taken out of it."""
        return torch.where(rank > place, ordered[place], ordered[place + 1])

    return (of_others((num_others - 1) // 2) + of_others(num_others // 2)) / 2


def credited(contributions: Tensor, kept: Tensor, borrowed: Tensor) -> Tensor:
    r"""Return what members are credited with, ``[m]``.

    .. math:: \hat c_i = \min(c_i, \kappa_i (c_i - \max(b_i, 0)))

    What is negative counts whole, and nobody gains by a bound.

    Parameters
    ----------
    contributions : Tensor
        ``[m]``: c_i.
    kept : Tensor
        ``[m]``: kappa_i.
    borrowed : Tensor
        ``[m]``: b_i, what of it comes from the part of the last steps that is returned.
    """
    return torch.minimum(contributions, kept * (contributions - borrowed.clamp_min(0.0)))


def _kept(ratios: Tensor, bound: float) -> Tensor:
    """Return the factors ``[m]`` that bring ratios down to a bound; 0: there is none."""
    if not bound:
        return torch.ones_like(ratios)
    return torch.where(ratios > bound, bound / ratios, 1.0)


def _median(values: Tensor) -> float:
    """Return the median; of an even number, the mean of the two in the middle; of none, 0."""
    if not len(values):
        return 0.0
    return float(np.median(values.numpy()))
