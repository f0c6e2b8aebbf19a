"""What each client contributed to one round: the loss along the step, cut by quadrature."""

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
from fedif_flower.attribution.descent import Descent, descent_of
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
from fedif_flower.valuation.parts import block_weights
from fedif_flower.valuation.validation import Validation

_MIDDLE = 0.5
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TakenRound:
    """A round that is still to be attributed; without updates in its step, it failed."""

    server_round: int
    before: ModelVectors
    after: ModelVectors
    in_step: tuple[CarriedUpdates, ...]  # The newest first.
    names: BufferNames
    at_models: tuple[Future[LossAndGradient], Future[LossAndGradient]]  # Before and after.
    unseen: UnseenUpdates | None = None
    undone: tuple[ClientAttribution, ...] = ()  # What a failed round took from whom.

    def model_at(self, node: float) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the model, ``[d]`` and buffers, from the old one, 0, to the new one, 1."""
        if node == 0.0:
            vectors = self.before
        elif node == 1.0:
            vectors = self.after
        else:
            vectors = ModelVectors(
                torch.lerp(self.before.params, self.after.params, node),
                torch.lerp(self.before.buffers, self.after.buffers, node),
                self.after.counters,
            )
        return vectors.params, self.names.named_buffers(vectors)


class _MiddleOfStep(NamedTuple):
    """What one pass over the examples in the middle of a step gives.

    Attributes
    ----------
    gradients : list of Tensor
        ``[d]`` each: of the loss itself, and at the ends of the share of wrong labels.
    slopes_by_block : list of Tensor
        ``[b, 1 + ends, m]`` for each round in the step: along its updates, block by block.
    """

    gradients: list[Tensor]
    slopes_by_block: list[Tensor]


@dataclass(frozen=True)
class RoundAttributor:
    """Attributes rounds along the way from the old model to the new one.

    Attributes
    ----------
    validation : Validation
        The server's held-out set.
    quadratures : sequence of Quadrature
        The rule, and what refines it.
    classes : sequence of Validation
        The held-out examples of each class; empty: contributions are not split by them.
    blocks : sequence of Validation
        Blocks of the held-out examples, likewise.
    noise_ends : NoiseEnds
        Both ends of the share of wrong labels, at which contributions are measured as well; there
        may be none.
    """

    validation: Validation
    quadratures: Sequence[Quadrature]
    noise_ends: NoiseEnds
    classes: Sequence[Validation] = ()
    blocks: Sequence[Validation] = ()

    @property
    def block_weights(self) -> Tensor:
        """Each block's part of the examples' weight ``[b]``, float64."""
        return block_weights(self.blocks)

    def evaluate(self, taken: TakenRound) -> RoundAttribution:
        """Return a round's attribution; where the path leads out of what is finite, none."""
        loss_before, loss_after = (_loss(at_model) for at_model in taken.at_models)
        clients = taken.undone
        descent: Descent | None = None
        if taken.in_step:
            clients = self._attribute(taken, loss_before, loss_after)
            descent = _descent(taken)
        return RoundAttribution(taken.server_round, loss_before, loss_after, clients, descent)

    def _attribute(
        self, taken: TakenRound, loss_before: float, loss_after: float
    ) -> tuple[ClientAttribution, ...]:
        """Return what each client contributed; nothing, and a line in the log, if that fails."""
        if not (math.isfinite(loss_before) and math.isfinite(loss_after)):
            logger.error("round %d cannot be attributed: no finite loss", taken.server_round)
            return ()
        try:
            return self._clients(taken, loss_before - loss_after)
        except Exception as error:  # out of a user's model or loss, as likely as not
            is_told = isinstance(error, FedIFError)
            reason = printable(str(error) if is_told else with_place(error))
            logger.error("round %d cannot be attributed: %s", taken.server_round, reason)
            return ()

    def _clients(self, taken: TakenRound, decrease: float) -> tuple[ClientAttribution, ...]:
        """Return what each client contributed; one that also sent earlier updates has one sum."""
        members = _members_of(taken.in_step)
        contributed = self._contributions(taken, decrease)
        sums = _sums_by_member(taken.in_step, contributed, members)
        carried = [0.0] * len(members)
        if len(taken.in_step) > 1:
            of_earlier = _sums_by_member(taken.in_step[1:], contributed[1:], members)
            carried = of_earlier.loss.contribution.tolist()
        newest = taken.in_step[0]
        coefficients = dict(zip(newest.members, newest.applied.tolist(), strict=True))
        member_credits = _member_credits(newest, sums.loss, members)
        clients = []
        for place, member in enumerate(members):
            clients.append(
                ClientAttribution(
                    partition_id=member.partition_id,
                    client_id=member.client_id,
                    # It is the one of this round's own update.
                    coefficient=coefficients.get(member, 0.0),
                    contribution=float(sums.loss.contribution[place]),
                    classes=tuple(sums.loss.classes[place].tolist()),
                    credit=member_credits[place],
                    blocks=tuple(sums.loss.blocks[place].tolist()),
                    noise_ends=tuple(_noise_end(of_end, place) for of_end in sums.ends),
                    carried=carried[place],
                )
            )
        return tuple(clients)

    def _contributions(self, taken: TakenRound, decrease: float) -> list[FiguresByLoss]:
        """Return what the updates of each round in the step contributed."""
        if taken.unseen is not None:
            return [FiguresByLoss(self._contributed_unseen(taken, taken.unseen))]
        if not self.blocks:
            return self._integrate(taken, decrease, middle=None)
        middle = self._middle(taken)
        contributed = self._integrate(taken, decrease, middle.gradients)
        split = []
        for updates, figures, along in zip(
            taken.in_step, contributed, middle.slopes_by_block, strict=True
        ):
            split.append(self._split_by_blocks(updates, figures, along))
        return split

    def _integrate(
        self, taken: TakenRound, decrease: float, middle: list[Tensor] | None
    ) -> list[FiguresByLoss]:
        """Return each round's figures by the first rule that is fine enough, or by the finest.

        ``middle`` are the gradients in the middle of the step, where they are known.
        """
        slopes_at: dict[float, list[Tensor]] = {}  # By node of the rule, for each round.
        contributed: list[FiguresByLoss] = []
        coarser: Tensor | None = None
        for rule in self.quadratures:
            for node in rule.nodes:
                if node not in slopes_at:
                    slopes_at[node] = self._slopes(taken, node, middle)
            contributed = []
            for place, updates in enumerate(taken.in_step):
                at_nodes = torch.stack([slopes_at[node][place] for node in rule.nodes])
                contributed.append(self._integrated(updates, at_nodes, rule))
            totals = torch.cat([figures.loss.contribution for figures in contributed])
            if is_settled(totals, coarser, decrease):
                break
            coarser = totals
        return contributed

    def _split_by_blocks(
        self, updates: CarriedUpdates, figures: FiguresByLoss, along: Tensor
    ) -> FiguresByLoss:
        """Return figures with contributions by block: of the loss itself, and of each end's.

        ``along`` are the slopes in the middle of the step, ``[b, 1 + ends, m]``.
        """
        along_loss, *along_ends = along.unbind(1)  # [b, m] each
        ends = []
        for of_end, along_end in zip(figures.ends, along_ends, strict=True):
            ends.append(self._with_blocks(updates, of_end, along_end))
        return FiguresByLoss(self._with_blocks(updates, figures.loss, along_loss), tuple(ends))

    def _with_blocks(self, updates: CarriedUpdates, figures: Figures, along: Tensor) -> Figures:
        """Return figures by one loss with contributions by block, from slopes ``[b, m]``."""
        by_block = block_contributions(
            along, updates.applied, self.block_weights, figures.contribution
        )  # [b, m]
        return replace(figures, blocks=by_block.T)

    def _middle(self, taken: TakenRound) -> _MiddleOfStep:
        """Return what is known in the middle of the step; one block's gradients are held."""
        params, buffers = taken.model_at(_MIDDLE)
        squared_norms = [
            torch.linalg.vector_norm(updates.updates, dim=1) ** 2 for updates in taken.in_step
        ]
        along: list[list[Tensor]] = [[] for _ in taken.in_step]  # By round, by block.
        wholes = [torch.zeros_like(params) for _ in range(1 + len(self.noise_ends))]  # [d] each
        for block, weight in zip(self.blocks, self.block_weights.tolist(), strict=True):
            gradients = self.noise_ends.with_loss(block, params, buffers)
            for whole, gradient in zip(wholes, gradients, strict=True):
                whole.add_(gradient.to(whole), alpha=weight)
            for place, updates in enumerate(taken.in_step):
                norms = squared_norms[place]
                of_block = [slopes(updates.updates, gradient, norms) for gradient in gradients]
                along[place].append(torch.stack(of_block))
        return _MiddleOfStep(wholes, [torch.stack(of_blocks) for of_blocks in along])

    def _contributed_unseen(self, taken: TakenRound, unseen: UnseenUpdates) -> Figures:
        """Return what updates that nobody sees contributed: one product, with the mean gradient."""
        (rule,) = self.quadratures
        (updates,) = taken.in_step
        mean = torch.zeros_like(taken.before.params, dtype=torch.float64)  # [d]
        for node, weight in zip(rule.nodes, rule.weights, strict=True):
            mean.add_(self._gradient(taken, node).cpu(), alpha=weight)
        values = -updates.applied.double() * unseen.products(mean) + 0.0  # [m]
        if len(updates.basis):
            values = torch.cat([values, -(updates.basis.cpu().double() @ mean)])  # [m + k]
        return _figures(updates, values[:, None])

    def _gradient(self, taken: TakenRound, node: float) -> Tensor:
        """Return the gradient ``[d]`` at a point of the way."""
        if node in (0.0, 1.0):
            return taken.at_models[int(node)].result().gradient
        return self.validation.gradient(*taken.model_at(node))

    def _gradients(self, taken: TakenRound, node: float) -> list[Tensor]:
        """Return the gradient ``[d]`` at a point, and those at the ends of the wrong labels."""
        if node in (0.0, 1.0):
            return [self._gradient(taken, node), *self.noise_ends.at_model(*taken.model_at(node))]
        return self.noise_ends.with_loss(self.validation, *taken.model_at(node))

    def _slopes(self, taken: TakenRound, node: float, middle: list[Tensor] | None) -> list[Tensor]:
        """Return how fast losses fall along each round's updates and basis, [1 + c + ends, m + k].

        They are the loss itself, that of each class, and those at the ends of the share of wrong
        labels. ``middle`` are the gradients in the middle of the step, where they are known.
        """
        if middle is not None and node == _MIDDLE:
            gradients = middle
        else:
            gradients = self._gradients(taken, node)
        loss_gradient, *at_ends = gradients
        of_classes = []
        for one_class in self.classes:
            share = one_class.total_weight / self.validation.total_weight
            if share:
                of_classes.append(one_class.gradient(*taken.model_at(node)) * share)
            else:  # The loss gives the class weight 0: its examples have no mean.
                of_classes.append(torch.zeros_like(loss_gradient))
        all_gradients = [loss_gradient, *of_classes, *at_ends]
        return [_slopes_along(updates, all_gradients) for updates in taken.in_step]

    def _integrated(
        self, updates: CarriedUpdates, at_nodes: Tensor, rule: Quadrature
    ) -> FiguresByLoss:
        """Return what slopes ``[nodes, 1 + c + ends, m + k]`` come to: of the loss, of each end."""
        applied = updates.applied.double()
        num_basis = at_nodes.shape[2] - len(applied)
        factors = torch.cat([applied, applied.new_ones(num_basis)])  # [m + k]
        values = [contributions(along, factors, rule) for along in at_nodes.unbind(1)]
        num_losses = 1 + len(self.classes)
        of_loss = _figures(updates, torch.stack(values[:num_losses], dim=1))
        of_ends = [_figures(updates, of_end[:, None]) for of_end in values[num_losses:]]
        return FiguresByLoss(of_loss, tuple(of_ends))


def _slopes_along(updates: CarriedUpdates, gradients: Sequence[Tensor]) -> Tensor:
    """Return the slopes ``[g, m + k]`` along updates and their basis, for each gradient."""
    rows = []
    for gradient in gradients:
        along = slopes(updates.updates, gradient)  # [m]
        if len(updates.basis):
            along = torch.cat([along, slopes(updates.basis, gradient)])  # [m + k]
        rows.append(along)
    return torch.stack(rows)


def _figures(updates: CarriedUpdates, values: Tensor) -> Figures:
    """Return what updates contributed ``[m + k, 1 + c]``, and what of it is credited.

    ``values`` are those of the m updates, then of a step along each of the basis; first by the loss
    itself, then by each of its classes.
    """
    num_members = len(updates.members)
    contributed = values[:num_members]
    within_bounds = contributed[:, 0]
    credit = updates.credit
    if credit is not None:
        along_basis = values[num_members:, 0]  # [k]
        returned = updates.applied.double() * (credit.returned * along_basis).sum(dim=1)
        within_bounds = credited(within_bounds, credit.kept, returned)
    return Figures(
        credited=within_bounds,
        contribution=contributed[:, 0],
        classes=contributed[:, 1:],
        blocks=contributed[:, :0],
    )


def _noise_end(figures: Figures, place: int) -> NoiseEnd:
    """Return a member's figures at one end of the share of wrong labels."""
    return NoiseEnd(
        contribution=float(figures.contribution[place]),
        credited=figures.credited_with(place),
        blocks=tuple(figures.blocks[place].tolist()),
    )


def _members_of(in_step: Sequence[CarriedUpdates]) -> list[MemberKey]:
    """Return whose updates are in a step, in order.

    A member counts under the partition that it claimed last: a claim may change.
    """
    last_claim: dict[int, MemberKey] = {}
    for updates in reversed(in_step):
        for member in updates.members:
            last_claim[member.client_id] = member
    return sorted(last_claim.values())


def _sums_by_member(
    in_step: Sequence[CarriedUpdates],
    contributed: Sequence[FiguresByLoss],
    members: Sequence[MemberKey],
) -> FiguresByLoss:
    """Return each member's sums over the rounds in a step, one or more.

    ``contributed`` are the figures of each round in the step.
    """
    places = {member.client_id: place for place, member in enumerate(members)}
    of_rounds = []
    for updates, figures in zip(in_step, contributed, strict=True):
        rows = torch.tensor([places[member.client_id] for member in updates.members])
        of_rounds.append(figures.spread(rows, len(members)))
    sums, *others = of_rounds
    for figures in others:
        sums = sums + figures
    return sums


def _member_credits(
    newest: CarriedUpdates, sums: Figures, members: Sequence[MemberKey]
) -> list[MemberCredit | None]:
    """Return what each member is credited with, where that is bounded.

    A member that sent no update in this round has none that compares with what is usual.
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


def _descent(taken: TakenRound) -> Descent | None:
    """Return what the gradients at both ends say of a round's step, where both are there."""
    before, after = taken.at_models
    if before.exception() or after.exception():
        return None
    step = taken.after.params - taken.before.params  # [d]
    return descent_of(before.result().gradient, after.result().gradient, step)


def _loss(at_model: Future[LossAndGradient]) -> float:
    """Return the loss at one of the two models; NaN where the model has diverged."""
    # Whatever it is that a user's loss raises, the round before was combined without it.
    if at_model.exception():
        return math.nan
    return at_model.result().loss
