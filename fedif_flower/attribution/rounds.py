"""Attribution of one round: slopes along each update, integrated over the round's step."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from fedif_flower.attribution.carried import CarriedUpdates, MemberKey
from fedif_flower.attribution.credit import credited
from fedif_flower.attribution.descent_bound import StepDescent, descent_of
from fedif_flower.attribution.figures import Figures, FiguresByLoss
from fedif_flower.attribution.noise_ends import NoiseEnds
from fedif_flower.attribution.path import (
    Quadrature,
    block_contributions,
    contributions,
    is_settled,
    slopes,
)
from fedif_flower.attribution.records import (
    ClientAttribution,
    MemberCredit,
    NoiseEnd,
    RoundAttribution,
)
from fedif_flower.errors import FedIFError, with_place
from fedif_flower.messages.text import printable
from fedif_flower.round import BufferNames, ModelVectors, UnseenUpdates
from fedif_flower.valuation.parallel import LossAndGradient
from fedif_flower.valuation.subsets import block_weights
from fedif_flower.valuation.validation import Validation

_MIDDLE = 0.5  # The node of a quadrature rule in the middle of the step.
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PendingRound:
    """A round that is still to be attributed.

    Attributes
    ----------
    server_round : int
        The round's number.
    before, after : ModelVectors
        The model before and after the round.
    names : BufferNames
        Knows the names of the model's buffers.
    at_models : tuple of Future
        Loss and gradient at the model before and after the round.
    in_step : tuple of CarriedUpdates
        The updates in the round's step, the newest first; empty: the round took no step.
    unseen : UnseenUpdates, optional
        The updates, where they are masked.
    undone : tuple of ClientAttribution
        The contributions that a round without a step takes back, if it undid an earlier step.
    """

    server_round: int
    before: ModelVectors
    after: ModelVectors
    names: BufferNames
    at_models: tuple[Future[LossAndGradient], Future[LossAndGradient]]
    in_step: tuple[CarriedUpdates, ...] = ()
    unseen: UnseenUpdates | None = None
    undone: tuple[ClientAttribution, ...] = ()

    def model_at(self, node: float) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return parameters ``[d]`` and buffers at a point of the step: 0 before it, 1 after it."""
        if node == 0.0:
            vectors = self.before
        elif node == 1.0:
            vectors = self.after
        else:
            vectors = ModelVectors(
                torch.lerp(self.before.params, self.after.params, node),
                torch.lerp(self.before.buffers, self.after.buffers, node),
                self.after.counters,  # Integers are not interpolated.
            )
        return vectors.params, self.names.named_buffers(vectors)


class _MiddleOfStep(NamedTuple):
    """Gradients and slopes in the middle of a step, from one pass over the examples.

    Attributes
    ----------
    gradients : list of Tensor
        ``[d]`` each: the gradient of the loss itself, then the gradient for each end of the share
        of wrong labels.
    slopes_by_block : list of Tensor
        One tensor for each round in the step, ``[b, 1 + ends, m]``: the slopes along its m updates,
        for each block of examples, by the same losses as in ``gradients``.
    """

    gradients: list[Tensor]
    slopes_by_block: list[Tensor]


@dataclass(frozen=True)
class RoundAttributor:
    """Attributes rounds, by quadrature along the line from the old model to the new one.

    Attributes
    ----------
    validation : Validation
        The server's held-out set.
    quadratures : sequence of Quadrature
        The quadrature rules to try, each finer than the one before
        (:func:`~fedif_flower.attribution.path.find_refinements`).
    noise_ends : NoiseEnds
        The ends of the share of wrong labels, for which contributions are measured as well; there
        may be none.
    classes : sequence of Validation
        The held-out examples of each class; empty: contributions are not split by classes.
    blocks : sequence of Validation
        The blocks of the held-out examples; empty: contributions are not split by blocks.
    """

    validation: Validation
    quadratures: Sequence[Quadrature]
    noise_ends: NoiseEnds
    classes: Sequence[Validation] = ()
    blocks: Sequence[Validation] = ()

    @property
    def block_weights(self) -> Tensor:
        """Each block's share of the examples' weight ``[b]``, float64."""
        return block_weights(self.blocks)

    def evaluate(self, pending: PendingRound) -> RoundAttribution:
        """Return a round's attribution, without clients where the step cannot be attributed."""
        loss_before, loss_after = (_loss(at_model) for at_model in pending.at_models)
        clients = pending.undone
        descent: StepDescent | None = None
        if pending.in_step:
            clients = self._attribute(pending, loss_before, loss_after)
            # A user's loss may be NaN where its gradient is finite.
            if math.isfinite(loss_before) and math.isfinite(loss_after):
                descent = _descent(pending)
        return RoundAttribution(pending.server_round, loss_before, loss_after, clients, descent)

    def _attribute(
        self, pending: PendingRound, loss_before: float, loss_after: float
    ) -> tuple[ClientAttribution, ...]:
        """Return what each client contributed; if that fails, log the error and return nothing."""
        if not (math.isfinite(loss_before) and math.isfinite(loss_after)):
            logger.error("round %d cannot be attributed: no finite loss", pending.server_round)
            return ()
        try:
            return self._clients(pending, loss_before - loss_after)
        except Exception as error:  # Mostly one of a user's own model or loss.
            words = str(error) if isinstance(error, FedIFError) else with_place(error)
            reason = printable(words)
            logger.error("round %d cannot be attributed: %s", pending.server_round, reason)
            return ()

    def _clients(self, pending: PendingRound, decrease: float) -> tuple[ClientAttribution, ...]:
        """Return what each client contributed to a step, the contributions of its updates summed.

        Where the server has momentum, a client may have several updates in the step.
        """
        members = _members_of(pending.in_step)
        contributed = self._contributions(pending, decrease)
        sums = _sums_by_member(pending.in_step, contributed, members)
        carried = [0.0] * len(members)
        if len(pending.in_step) > 1:
            earlier = _sums_by_member(pending.in_step[1:], contributed[1:], members)
            carried = earlier.loss.contribution.tolist()
        newest = pending.in_step[0]
        coefficients = dict(zip(newest.members, newest.applied.tolist(), strict=True))
        member_credits = _member_credits(newest, sums.loss, members)
        clients = []
        for place, member in enumerate(members):
            clients.append(
                ClientAttribution(
                    partition_id=member.partition_id,
                    client_id=member.client_id,
                    # That of this round's own update; 0 if the client sent none.
                    coefficient=coefficients.get(member, 0.0),
                    contribution=float(sums.loss.contribution[place]),
                    classes=tuple(sums.loss.classes[place].tolist()),
                    credit=member_credits[place],
                    blocks=tuple(sums.loss.blocks[place].tolist()),
                    noise_ends=tuple(_noise_end(figures, place) for figures in sums.ends),
                    carried=carried[place],
                )
            )
        return tuple(clients)

    def _contributions(self, pending: PendingRound, decrease: float) -> list[FiguresByLoss]:
        """Return what the updates of each round in the step contributed, the newest round first."""
        if pending.unseen is not None:
            return [FiguresByLoss(self._contributed_unseen(pending, pending.unseen))]
        if not self.blocks:
            return self._integrate(pending, decrease, middle=None)
        middle = self._middle(pending)
        contributed = self._integrate(pending, decrease, middle.gradients)
        split = []
        for updates, figures, block_slopes in zip(
            pending.in_step, contributed, middle.slopes_by_block, strict=True
        ):
            split.append(self._split_by_blocks(updates, figures, block_slopes))
        return split

    def _integrate(
        self, pending: PendingRound, decrease: float, middle: list[Tensor] | None
    ) -> list[FiguresByLoss]:
        """Return each round's figures by the first rule that is fine enough, or by the finest.

        ``decrease`` is the measured decrease of the loss; ``middle`` are the gradients in the
        middle of the step, where they are known.
        """
        # By node; for each round in the step [1 + c + ends, m + k]. A finer rule reuses them.
        slopes_at: dict[float, list[Tensor]] = {}
        contributed: list[FiguresByLoss] = []
        coarser: Tensor | None = None
        for rule in self.quadratures:
            for node in rule.nodes:
                if node not in slopes_at:
                    slopes_at[node] = self._slopes(pending, node, middle)
            contributed = []
            for place, updates in enumerate(pending.in_step):
                at_nodes = torch.stack([slopes_at[node][place] for node in rule.nodes])
                contributed.append(self._integrated(updates, at_nodes, rule))
            totals = torch.cat([figures.loss.contribution for figures in contributed])
            if is_settled(totals, coarser, decrease):
                break
            coarser = totals
        return contributed

    def _split_by_blocks(
        self, updates: CarriedUpdates, figures: FiguresByLoss, block_slopes: Tensor
    ) -> FiguresByLoss:
        """Return figures with contributions by block, for the loss itself and for each end.

        ``block_slopes`` are those in the middle of the step, ``[b, 1 + ends, m]``.
        """
        loss_slopes, *all_end_slopes = block_slopes.unbind(1)  # [b, m] each
        ends = []
        for end_figures, end_slopes in zip(figures.ends, all_end_slopes, strict=True):
            ends.append(self._with_blocks(updates, end_figures, end_slopes))
        return FiguresByLoss(self._with_blocks(updates, figures.loss, loss_slopes), tuple(ends))

    def _with_blocks(
        self, updates: CarriedUpdates, figures: Figures, block_slopes: Tensor
    ) -> Figures:
        """Return figures by one loss with contributions by block, from its slopes ``[b, m]``."""
        by_block = block_contributions(
            block_slopes, updates.applied, self.block_weights, figures.contribution
        )  # [b, m]
        return replace(figures, blocks=by_block.T)

    def _middle(self, pending: PendingRound) -> _MiddleOfStep:
        """Return gradients and slopes in the middle of the step.

        Block by block, so that the gradients of a single block are in memory at a time.
        """
        params, buffers = pending.model_at(_MIDDLE)
        squared_norms = [
            torch.linalg.vector_norm(updates.updates, dim=1) ** 2 for updates in pending.in_step
        ]
        # By round in the step, by block: [1 + ends, m].
        block_slopes: list[list[Tensor]] = [[] for _ in pending.in_step]
        # The gradients of all examples, [d] each, by loss: weighted means over the blocks.
        means = [torch.zeros_like(params) for _ in range(1 + len(self.noise_ends))]
        for block, weight in zip(self.blocks, self.block_weights.tolist(), strict=True):
            gradients = self.noise_ends.with_loss(block, params, buffers)
            for mean, gradient in zip(means, gradients, strict=True):
                mean.add_(gradient.to(mean), alpha=weight)
            for place, updates in enumerate(pending.in_step):
                norms = squared_norms[place]
                by_loss = [slopes(updates.updates, gradient, norms) for gradient in gradients]
                block_slopes[place].append(torch.stack(by_loss))
        return _MiddleOfStep(means, [torch.stack(by_block) for by_block in block_slopes])

    def _contributed_unseen(self, pending: PendingRound, unseen: UnseenUpdates) -> Figures:
        """Return what masked updates contributed.

        They allow one inner product a round, so it is taken with the mean gradient along the step.
        """
        (rule,) = self.quadratures  # why_updates_are_read excludes several rules, and momentum.
        (updates,) = pending.in_step
        mean = torch.zeros_like(pending.before.params, dtype=torch.float64)  # [d]
        for node, weight in zip(rule.nodes, rule.weights, strict=True):
            mean.add_(self._gradient(pending, node).cpu(), alpha=weight)
        values = -updates.applied.double() * unseen.products(mean) + 0.0  # [m]
        if len(updates.basis):
            values = torch.cat([values, -(updates.basis.cpu().double() @ mean)])  # [m + k]
        return _figures(updates, values[:, None])

    def _gradient(self, pending: PendingRound, node: float) -> Tensor:
        """Return the gradient ``[d]`` of the loss at a point of the step."""
        if node in (0.0, 1.0):
            return pending.at_models[int(node)].result().gradient
        return self.validation.gradient(*pending.model_at(node))

    def _gradients(self, pending: PendingRound, node: float) -> list[Tensor]:
        """Return the gradient ``[d]`` of the loss at a point, then the gradient for each end."""
        if node in (0.0, 1.0):
            return [
                self._gradient(pending, node),
                *self.noise_ends.at_model(*pending.model_at(node)),
            ]
        return self.noise_ends.with_loss(self.validation, *pending.model_at(node))

    def _slopes(
        self, pending: PendingRound, node: float, middle: list[Tensor] | None
    ) -> list[Tensor]:
        """Return how fast losses fall along the updates and the basis of each round in the step.

        One tensor ``[1 + c + ends, m + k]`` for each round. The losses are the loss itself, the
        part of it that comes from each of the c classes, and the loss for each end of the share of
        wrong labels. ``middle`` are the gradients in the middle of the step, where they are known.
        """
        if middle is not None and node == _MIDDLE:
            gradients = middle
        else:
            gradients = self._gradients(pending, node)
        loss_gradient, *end_gradients = gradients
        class_gradients = []
        for examples in self.classes:
            weight = examples.total_weight / self.validation.total_weight
            if weight:
                class_gradients.append(examples.gradient(*pending.model_at(node)) * weight)
            else:  # The loss gives the class the weight 0: there is no mean loss over it.
                class_gradients.append(torch.zeros_like(loss_gradient))
        all_gradients = [loss_gradient, *class_gradients, *end_gradients]
        return [_slopes_along(updates, all_gradients) for updates in pending.in_step]

    def _integrated(
        self, updates: CarriedUpdates, at_nodes: Tensor, rule: Quadrature
    ) -> FiguresByLoss:
        """Return the figures of a round's updates, integrated from slopes by a quadrature rule.

        ``at_nodes`` are the slopes ``[nodes, 1 + c + ends, m + k]``.
        """
        applied = updates.applied.double()
        num_basis = at_nodes.shape[2] - len(applied)
        # Along the basis, steps of length 1 are integrated.
        factors = torch.cat([applied, applied.new_ones(num_basis)])  # [m + k]
        values = [contributions(along, factors, rule) for along in at_nodes.unbind(1)]
        num_losses = 1 + len(self.classes)
        loss_figures = _figures(updates, torch.stack(values[:num_losses], dim=1))
        end_figures = [_figures(updates, end[:, None]) for end in values[num_losses:]]
        return FiguresByLoss(loss_figures, tuple(end_figures))


def _slopes_along(updates: CarriedUpdates, gradients: Sequence[Tensor]) -> Tensor:
    """Return the slopes along m updates and their basis of k vectors, ``[gradients, m + k]``."""
    rows = []
    for gradient in gradients:
        along = slopes(updates.updates, gradient)  # [m]
        if len(updates.basis):
            along = torch.cat([along, slopes(updates.basis, gradient)])  # [m + k]
        rows.append(along)
    return torch.stack(rows)


def _figures(updates: CarriedUpdates, values: Tensor) -> Figures:
    """Return what updates contributed by one loss, and what is credited of that.

    Parameters
    ----------
    updates : CarriedUpdates
        The m updates of a round.
    values : Tensor
        ``[m + k, 1 + c]``: the contributions of the m updates, then of a step of length 1 along
        each of the k vectors of the basis. The first column is by the loss itself, the others are
        by its c classes.
    """
    num_members = len(updates.members)
    contributed = values[:num_members]
    within_bounds = contributed[:, 0]
    credit = updates.credit
    if credit is not None:
        along_basis = values[num_members:, 0]  # [k]
        # What the excess along the last steps contributed, b_i [m].
        returned = updates.applied.double() * (credit.returned * along_basis).sum(dim=1)
        within_bounds = credited(within_bounds, credit.factor, returned)
    return Figures(
        credited=within_bounds,
        contribution=contributed[:, 0],
        classes=contributed[:, 1:],
        blocks=contributed[:, :0],  # None yet.
    )


def _noise_end(figures: Figures, place: int) -> NoiseEnd:
    """Return one member's figures for one end of the share of wrong labels."""
    return NoiseEnd(
        contribution=float(figures.contribution[place]),
        credited=figures.credited_with(place),
        blocks=tuple(figures.blocks[place].tolist()),
    )


def _members_of(in_step: Sequence[CarriedUpdates]) -> list[MemberKey]:
    """Return the members whose updates are in a step, sorted by partition id.

    A member may claim another partition than in an earlier round: its latest claim counts.
    """
    last_claim: dict[int, MemberKey] = {}  # By client id; later rounds overwrite earlier ones.
    for updates in reversed(in_step):
        for member in updates.members:
            last_claim[member.client_id] = member
    return sorted(last_claim.values())


def _sums_by_member(
    in_step: Sequence[CarriedUpdates],
    contributed: Sequence[FiguresByLoss],
    members: Sequence[MemberKey],
) -> FiguresByLoss:
    """Return each member's figures, summed over one or more rounds in a step.

    Parameters
    ----------
    in_step : sequence of CarriedUpdates
        The updates of these rounds.
    contributed : sequence of FiguresByLoss
        Their figures, round by round.
    members : sequence of MemberKey
        The members, in the order of the rows that are returned.
    """
    places = {member.client_id: place for place, member in enumerate(members)}
    by_round = []
    for updates, figures in zip(in_step, contributed, strict=True):
        rows = torch.tensor([places[member.client_id] for member in updates.members])
        by_round.append(figures.spread(rows, len(members)))
    sums = by_round[0]
    for figures in by_round[1:]:
        sums = sums + figures
    return sums


def _member_credits(
    newest: CarriedUpdates, sums: Figures, members: Sequence[MemberKey]
) -> list[MemberCredit | None]:
    """Return what each member is credited with; ``None`` for each if credit is not bounded.

    A member that sent no update in this round has a credit for its earlier updates, and 0 for the
    figures that compare its update with what is usual.
    """
    credit = newest.credit
    if credit is None:
        return [None] * len(members)
    rows = {member: row for row, member in enumerate(newest.members)}
    lengths = credit.length.tolist()
    weights = credit.weight.tolist()
    borrowed = credit.borrowed.tolist()
    opposed = credit.opposed.tolist()
    member_credits: list[MemberCredit | None] = []
    for place, member in enumerate(members):
        member_credit = MemberCredit(sums.credited_with(place))
        row = rows.get(member)
        if row is not None:
            member_credit = replace(
                member_credit,
                length=lengths[row],
                weight=weights[row],
                borrowed=borrowed[row],
                opposed=opposed[row],
            )
        member_credits.append(member_credit)
    return member_credits


def _descent(pending: PendingRound) -> StepDescent | None:
    """Return what the gradients at both ends say about a step; ``None``: one is missing."""
    before, after = pending.at_models
    if before.exception() or after.exception():
        return None
    step = pending.after.params - pending.before.params  # [d]
    return descent_of(before.result().gradient, after.result().gradient, step)


def _loss(at_model: Future[LossAndGradient]) -> float:
    """Return the loss at one of the two models; NaN if computing it raised an error."""
    # An error, of a user's own loss say, must not end the run: attribution only observes it.
    if at_model.exception():
        return math.nan
    return at_model.result().loss
