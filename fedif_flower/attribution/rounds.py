"""What each client contributed to one round: the loss along the step, cut by quadrature."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedif_flower.attribution.credit import Credit, credited
from fedif_flower.attribution.descent import Descent, descent_of
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
from fedif_flower.messages.text import printable
from fedif_flower.round import BufferNames, ModelVectors, UnseenUpdates
from fedif_flower.valuation.parallel import LossAndGradient
from fedif_flower.valuation.parts import block_weights
from fedif_flower.valuation.validation import Validation

_MIDDLE = 0.5
# Of the newest step's share. Older steps whose share has faded below it are left out: ten rounds
# are kept where the running mean halves each round.
LEAST_SHARE = 1e-3

logger = logging.getLogger(__name__)


Member = tuple[int, int]  # A client as tables name it: partition id and lasting id.


@dataclass(frozen=True)
class CarriedUpdates:
    """One round's updates in a step: in its own, and in later ones that momentum carries them to.

    They are in it as ``share * coefficients`` [m] times ``updates`` [m, d]. In the round itself,
    share is 1, or a server optimizer's learning rate. A server with momentum carries the updates of
    ten rounds where half of the step before is carried on, of 66 where nine tenths are.

    ``basis`` [k, d] are the steps before it that its updates are compared with, where ``credit``
    is bounded; k may be 0.
    """

    members: tuple[Member, ...]
    coefficients: Tensor
    updates: Tensor
    basis: Tensor
    credit: Credit | None = None
    share: float = 1.0

    @property
    def applied(self) -> Tensor:
        """The coefficients ``[m]`` with which the updates are in the step."""
        return self.share * self.coefficients

    def state(self) -> dict[str, Any]:
        """Return everything in dicts, numbers and tensors."""
        credit = None if self.credit is None else vars(self.credit)
        return {**vars(self), "updates": self.updates.cpu(), "credit": credit}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> CarriedUpdates:
        """Return what :meth:`state` was made of."""
        members = tuple((member[0], member[1]) for member in state["members"])
        credit = None if state["credit"] is None else Credit(**state["credit"])
        return cls(**{**state, "members": members, "credit": credit})


def carry(rounds: Sequence[CarriedUpdates], shares: Sequence[float]) -> tuple[CarriedUpdates, ...]:
    """Return the rounds, the newest first, that are in a step with these shares.

    A round whose share has faded is left out, and so are the rounds before it.
    """
    least = LEAST_SHARE * shares[0]
    lasting = [share for share in shares if share >= least]
    return tuple(
        replace(updates, share=share) for updates, share in zip(rounds, lasting, strict=False)
    )


@dataclass(frozen=True)
class TakenRound:
    """A round that is still to be attributed; without updates in its step, it failed."""

    server_round: int
    before: ModelVectors
    after: ModelVectors
    in_step: tuple[CarriedUpdates, ...]  # The newest first.
    names: BufferNames
    ends: tuple[Future[LossAndGradient], Future[LossAndGradient]]  # At the two models.
    unseen: UnseenUpdates | None = None
    undone: tuple[ClientAttribution, ...] = ()  # What a failed round took from whom.

    def at(self, node: float) -> tuple[Tensor, Mapping[str, Tensor]]:
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


@dataclass(frozen=True)
class Figures:
    """What m updates contributed by one loss, in nats.

    Attributes
    ----------
    credited, contribution : Tensor
        ``[m]``: what is credited of the contribution, and all of it.
    classes : Tensor
        ``[m, c]``: the contribution by class; c = 0 where it is not split.
    blocks : Tensor
        ``[m, b]``: the contribution by block of held-out examples; b = 0 likewise.
    """

    credited: Tensor
    contribution: Tensor
    classes: Tensor
    blocks: Tensor

    def __add__(self, other: Figures) -> Figures:
        """Return the sums, update by update."""
        return Figures(
            self.credited + other.credited,
            self.contribution + other.contribution,
            self.classes + other.classes,
            self.blocks + other.blocks,
        )

    def spread(self, rows: Tensor, num_rows: int) -> Figures:
        """Return so many rows, in which the updates have those ``[m]`` and others are 0."""

        def spread(figure: Tensor) -> Tensor:
            of_all = figure.new_zeros(num_rows, *figure.shape[1:])
            return of_all.index_add(0, rows, figure)

        return Figures(
            spread(self.credited),
            spread(self.contribution),
            spread(self.classes),
            spread(self.blocks),
        )

    def credited_with(self, place: int) -> float:
        """Return what one is credited with: rounding may take a sum above the contribution."""
        return min(float(self.contribution[place]), float(self.credited[place]))


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
    ends : NoiseEnds
        Both ends of the share of wrong labels, at which contributions are measured as well; there
        may be none.
    """

    validation: Validation
    quadratures: Sequence[Quadrature]
    ends: NoiseEnds
    classes: Sequence[Validation] = ()
    blocks: Sequence[Validation] = ()

    @property
    def block_weights(self) -> Tensor:
        """Each block's part of the examples' weight ``[b]``, float64."""
        return block_weights(self.blocks)

    def evaluate(self, taken: TakenRound) -> RoundAttribution:
        """Return a round's attribution; where the path leads out of what is finite, none."""
        loss_before, loss_after = (_loss(end) for end in taken.ends)
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
            reason = printable(str(error))
            logger.error("round %d cannot be attributed: %s", taken.server_round, reason)
            return ()

    def _clients(self, taken: TakenRound, decrease: float) -> tuple[ClientAttribution, ...]:
        """Return what each client contributed; one that also sent earlier updates has one sum."""
        newest = taken.in_step[0]
        members = _members_of(taken.in_step)
        contributed = self._contributions(taken, decrease)
        of_loss, *of_ends = _sums_by_member(taken.in_step, contributed, members)
        carried = [0.0] * len(members)
        if len(taken.in_step) > 1:
            of_earlier = _sums_by_member(taken.in_step[1:], contributed[1:], members)
            carried = of_earlier[0].contribution.tolist()
        coefficients = dict(zip(newest.members, newest.applied.tolist(), strict=True))
        # How the newest update of each compares with what is usual.
        compared: dict[Member, list[float]] = {}
        if newest.credit is not None:
            credit = newest.credit
            ratios = torch.stack(
                [credit.length, credit.weight, credit.borrowed, credit.opposed], dim=1
            )  # [m, 4]
            compared = dict(zip(newest.members, ratios.tolist(), strict=True))
        clients = []
        for place, member in enumerate(members):
            member_credit = None
            if newest.credit is not None:
                ratios_of_member = compared.get(member, ())
                member_credit = MemberCredit(of_loss.credited_with(place), *ratios_of_member)
            clients.append(
                ClientAttribution(
                    *member,
                    # It is the one of this round's own update.
                    coefficient=coefficients.get(member, 0.0),
                    contribution=float(of_loss.contribution[place]),
                    classes=tuple(of_loss.classes[place].tolist()),
                    credit=member_credit,
                    blocks=tuple(of_loss.blocks[place].tolist()),
                    noise_ends=tuple(_noise_end(of_end, place) for of_end in of_ends),
                    carried=carried[place],
                )
            )
        return tuple(clients)

    def _contributions(self, taken: TakenRound, decrease: float) -> list[list[Figures]]:
        """Return what the updates of each round in the step contributed.

        First by the loss itself, then by that at each end of the share of wrong labels.
        """
        if taken.unseen is not None:
            return [[self._contributed_unseen(taken, taken.unseen)]]
        middle: list[Tensor] | None = None
        slopes_by_block: list[Tensor] = []
        if self.blocks:
            middle, slopes_by_block = self._middle(taken)
        slopes_at: dict[float, list[Tensor]] = {}  # By node of the rule, for each round.
        contributed: list[list[Figures]] = []
        coarser: Tensor | None = None
        for rule in self.quadratures:
            for node in rule.nodes:
                if node not in slopes_at:
                    slopes_at[node] = self._slopes(taken, node, middle)
            contributed = []
            for place, updates in enumerate(taken.in_step):
                at_nodes = torch.stack([slopes_at[node][place] for node in rule.nodes])
                contributed.append(self._integrated(updates, at_nodes, rule))
            totals = torch.cat([by_loss[0].contribution for by_loss in contributed])
            if is_settled(totals, coarser, decrease):
                break
            coarser = totals
        if not self.blocks:
            return contributed
        split = []
        for updates, by_loss, along in zip(
            taken.in_step, contributed, slopes_by_block, strict=True
        ):
            split.append(self._split_by_blocks(updates, by_loss, along))
        return split

    def _split_by_blocks(
        self, updates: CarriedUpdates, by_loss: Sequence[Figures], along: Tensor
    ) -> list[Figures]:
        """Return figures with contributions by block: of the loss itself, and of each end's.

        ``along`` are the slopes in the middle of the step, ``[b, 1 + ends, m]``.
        """
        weights = self.block_weights
        split = []
        for figures, of_loss in zip(by_loss, along.unbind(1), strict=True):
            by_block = block_contributions(
                of_loss, updates.applied, weights, figures.contribution
            )  # [b, m]
            split.append(replace(figures, blocks=by_block.T))
        return split

    def _middle(self, taken: TakenRound) -> tuple[list[Tensor], list[Tensor]]:
        """Return the gradients in the middle of the step, and each round's slopes by block.

        They are the loss's own ``[d]`` and those at the ends of the share of wrong labels; slopes
        are ``[b, 1 + ends, m]``. One pass over the examples gives both, block by block; one block's
        gradients are held.
        """
        params, buffers = taken.at(_MIDDLE)
        squared_norms = [
            torch.linalg.vector_norm(updates.updates, dim=1) ** 2 for updates in taken.in_step
        ]
        along: list[list[Tensor]] = [[] for _ in taken.in_step]
        wholes = [torch.zeros_like(params) for _ in range(1 + len(self.ends))]  # [d] each
        for block, weight in zip(self.blocks, self.block_weights.tolist(), strict=True):
            gradients = self.ends.with_loss(block, params, buffers)
            for whole, gradient in zip(wholes, gradients, strict=True):
                whole.add_(gradient.to(whole), alpha=weight)
            for place, updates in enumerate(taken.in_step):
                norms = squared_norms[place]
                of_block = [slopes(updates.updates, gradient, norms) for gradient in gradients]
                along[place].append(torch.stack(of_block))
        return wholes, [torch.stack(of_blocks) for of_blocks in along]

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
            return taken.ends[int(node)].result().gradient
        return self.validation.gradient(*taken.at(node))

    def _gradients(self, taken: TakenRound, node: float) -> list[Tensor]:
        """Return the gradient ``[d]`` at a point, and those at the ends of the wrong labels."""
        if node in (0.0, 1.0):
            return [self._gradient(taken, node), *self.ends.at_model(*taken.at(node))]
        return self.ends.with_loss(self.validation, *taken.at(node))

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
                of_classes.append(one_class.gradient(*taken.at(node)) * share)
            else:  # The loss gives the class weight 0: its examples have no mean.
                of_classes.append(torch.zeros_like(loss_gradient))
        all_gradients = [loss_gradient, *of_classes, *at_ends]
        return [_slopes_along(updates, all_gradients) for updates in taken.in_step]

    def _integrated(
        self, updates: CarriedUpdates, at_nodes: Tensor, rule: Quadrature
    ) -> list[Figures]:
        """Return what slopes ``[nodes, 1 + c + ends, m + k]`` come to: of the loss, of each end."""
        applied = updates.applied.double()
        num_basis = at_nodes.shape[2] - len(applied)
        factors = torch.cat([applied, applied.new_ones(num_basis)])  # [m + k]
        values = [contributions(along, factors, rule) for along in at_nodes.unbind(1)]
        num_losses = 1 + len(self.classes)
        of_loss = _figures(updates, torch.stack(values[:num_losses], dim=1))
        of_ends = [_figures(updates, of_end[:, None]) for of_end in values[num_losses:]]
        return [of_loss, *of_ends]


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


def _members_of(in_step: Sequence[CarriedUpdates]) -> list[Member]:
    """Return whose updates are in a step, in order.

    A member counts under the partition that it claimed last: a claim may change.
    """
    last_claim: dict[int, Member] = {}
    for updates in reversed(in_step):
        for partition_id, client_id in updates.members:
            last_claim[client_id] = (partition_id, client_id)
    return sorted(last_claim.values())


def _sums_by_member(
    in_step: Sequence[CarriedUpdates],
    contributed: Sequence[Sequence[Figures]],
    members: Sequence[Member],
) -> list[Figures]:
    """Return each member's sums over the rounds in a step, by the loss itself and at each end.

    ``contributed`` are the figures of each round in the step.
    """
    place = {client_id: row for row, (_, client_id) in enumerate(members)}
    sums: list[Figures] = []
    for updates, by_loss in zip(in_step, contributed, strict=True):
        rows = torch.tensor([place[client_id] for _, client_id in updates.members])
        of_round = [figures.spread(rows, len(members)) for figures in by_loss]
        if sums:
            sums = [total + more for total, more in zip(sums, of_round, strict=True)]
        else:
            sums = of_round
    return sums


def _descent(taken: TakenRound) -> Descent | None:
    """Return what the gradients at both ends say of a round's step, where both are there."""
    before, after = taken.ends
    if before.exception() or after.exception():
        return None
    step = taken.after.params - taken.before.params  # [d]
    return descent_of(before.result().gradient, after.result().gradient, step)


def _loss(end: Future[LossAndGradient]) -> float:
    """Return the loss at one of the two models; NaN where the model has diverged."""
    # Whatever it is that a user's loss raises, the round before was combined without it.
    return math.nan if end.exception() else end.result().loss
