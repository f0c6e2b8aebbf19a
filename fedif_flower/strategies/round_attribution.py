"""What each client contributed to one round: the loss along the step, cut by quadrature."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from fedif_flower.messages.text import printable
from fedif_flower.round import BufferNames, HiddenUpdates, ModelVectors
from fedif_flower.strategies.attributed import ClientAttribution, MemberCredit, RoundAttribution
from fedif_flower.strategies.carried import Member, Part
from fedif_flower.valuation.blocks import block_weights
from fedif_flower.valuation.credit import Credit, credited
from fedif_flower.valuation.gradients import LossAndGradient
from fedif_flower.valuation.path import (
    Quadrature,
    block_contributions,
    contributions,
    is_settled,
    slopes,
)
from fedif_flower.valuation.validation import Validation

_MIDDLE = 0.5

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TakenRound:
    """A round that is still to be attributed; without parts, it failed."""

    server_round: int
    before: ModelVectors
    after: ModelVectors
    parts: tuple[Part, ...]
    credit: Credit | None
    names: BufferNames
    ends: tuple[Future[LossAndGradient], Future[LossAndGradient]]  # At the two models.
    hidden: HiddenUpdates | None = None


class _Slopes(NamedTuple):
    """How fast the loss falls along a part's updates ``[1 + c, m]``, and earlier steps ``[k]``."""

    updates: Tensor
    basis: Tensor


class _Middle(NamedTuple):
    """In the middle of the step: the gradient ``[d]``, and each part's slopes by block ``[b, m]``.

    One pass over the examples gives both.
    """

    gradient: Tensor
    slopes: list[Tensor]


class _Found(NamedTuple):
    """A part's contributions ``[m, 1 + c + b]``, and those of what is returned ``[m]``."""

    contributions: Tensor
    returned: Tensor


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
    """

    validation: Validation
    quadratures: Sequence[Quadrature]
    classes: Sequence[Validation] = ()
    blocks: Sequence[Validation] = ()

    @property
    def block_weights(self) -> Tensor:
        """Each block's part of the examples' weight ``[b]``, float64."""
        return block_weights(self.blocks)

    def evaluate(self, taken: TakenRound) -> RoundAttribution:
        """Return a round's attribution; where the path leads out of what is finite, none."""
        losses = [_loss(end) for end in taken.ends]
        clients: tuple[ClientAttribution, ...] = ()
        if taken.parts and all(map(math.isfinite, losses)):
            try:
                clients = self._clients(taken, losses[0] - losses[1])
            except Exception as error:  # out of a user's model or loss, as likely as not
                reason = printable(str(error))
                logger.error("round %d cannot be attributed: %s", taken.server_round, reason)
        elif taken.parts:
            logger.error("round %d cannot be attributed: no finite loss", taken.server_round)
        return RoundAttribution(taken.server_round, losses[0], losses[1], clients)

    def _clients(self, taken: TakenRound, decrease: float) -> tuple[ClientAttribution, ...]:
        """Return what each client contributed; one that also sent earlier updates has one sum."""
        coefficients: dict[Member, float] = {}
        sums: dict[Member, Tensor] = {}
        bounded: dict[Member, float] = {}
        by_part = self._of_parts(taken, decrease)
        for index, (part, found) in enumerate(zip(taken.parts, by_part, strict=True)):
            own = self._bounded(part, found).tolist()
            for member, row, applied, credit in zip(
                part.members, found.contributions, part.applied.tolist(), own, strict=True
            ):
                sums[member] = sums.get(member, torch.zeros_like(row)) + row
                bounded[member] = bounded.get(member, 0.0) + credit
                coefficients.setdefault(member, 0.0 if index else applied)
        usual = self._beside_usual(taken)
        return tuple(
            ClientAttribution(
                *member,
                coefficients[member],
                total,
                tuple(rest[: len(self.classes)]),
                blocks=tuple(rest[len(self.classes) :]),
                credit=None
                if taken.credit is None
                else replace(
                    usual.get(member, MemberCredit(0.0)), credited=min(total, bounded[member])
                ),
            )
            for member in sorted(sums)
            for total, *rest in [sums[member].tolist()]
        )

    def _bounded(self, part: Part, found: _Found) -> Tensor:
        """Return what a part's members are credited with, ``[m]``."""
        contributed = found.contributions[:, 0]
        if part.credit is None:
            return contributed
        return credited(contributed, part.credit.kept, found.returned)

    def _beside_usual(self, taken: TakenRound) -> dict[Member, MemberCredit]:
        """Return how the round's own updates compare with what is usual."""
        if taken.credit is None or not taken.parts:
            return {}
        own = taken.credit
        figures = torch.stack([own.length, own.weight, own.borrowed, own.opposed], dim=1)
        members = taken.parts[0].members
        return {
            member: MemberCredit(0.0, *row)
            for member, row in zip(members, figures.tolist(), strict=True)
        }

    def _of_parts(self, taken: TakenRound, decrease: float) -> list[_Found]:
        """Return what each part contributed."""
        if taken.hidden is not None:
            return [self._hidden(taken, taken.hidden)]
        middle = self._middle(taken) if self.blocks else None
        known: dict[float, list[_Slopes]] = {}
        found: list[_Found] = []
        coarser: Tensor | None = None
        for rule in self.quadratures:
            known |= {n: self._slopes(taken, n, middle) for n in rule.nodes if n not in known}
            found = []
            for index, part in enumerate(taken.parts):
                at_nodes = torch.stack([known[n][index].updates for n in rule.nodes])
                values = [contributions(s, part.applied, rule) for s in at_nodes.unbind(1)]
                returned = torch.zeros(len(part.members), dtype=torch.float64)
                if part.credit is not None:
                    along = torch.stack([known[n][index].basis for n in rule.nodes])  # [nodes, k]
                    unit = contributions(along, torch.ones(along.shape[1]), rule)  # [k]
                    returned = part.applied.double() * (part.credit.returned * unit).sum(dim=1)
                found.append(_Found(torch.stack(values, dim=1), returned))
            totals = torch.cat([part.contributions[:, 0] for part in found])
            if is_settled(totals, coarser, decrease):
                break
            coarser = totals
        if middle is None:
            return found
        split: list[_Found] = []
        for part, own, along in zip(taken.parts, found, middle.slopes, strict=True):
            by_block = block_contributions(
                along, part.applied, self.block_weights, own.contributions[:, 0]
            )  # [b, m]
            split.append(own._replace(contributions=torch.cat([own.contributions, by_block.T], 1)))
        return split

    def _middle(self, taken: TakenRound) -> _Middle:
        """Take the gradient in the middle of the step block by block; one is held at a time."""
        middle = _between(taken, _MIDDLE)
        buffers = taken.names.named_buffers(middle)
        norms = [torch.linalg.vector_norm(part.updates, dim=1) ** 2 for part in taken.parts]
        along: list[list[Tensor]] = [[] for _ in taken.parts]
        whole = torch.zeros_like(middle.params)
        for block, weight in zip(self.blocks, self.block_weights.tolist(), strict=True):
            gradient = block.gradient(middle.params, buffers)
            whole.add_(gradient.to(whole), alpha=weight)
            for own, part, squared in zip(along, taken.parts, norms, strict=True):
                own.append(slopes(part.updates, gradient, squared))
        return _Middle(whole, [torch.stack(own) for own in along])

    def _hidden(self, taken: TakenRound, hidden: HiddenUpdates) -> _Found:
        """Return what masked updates contributed: one product, with the mean gradient."""
        (rule,), (part,) = self.quadratures, taken.parts
        mean = torch.zeros_like(taken.before.params, dtype=torch.float64)  # [d]
        for node, weight in zip(rule.nodes, rule.weights, strict=True):
            mean.add_(self._gradient(taken, node).cpu(), alpha=weight)
        applied = part.applied.double()
        contributed = -applied * hidden.products(mean) + 0.0
        returned = torch.zeros_like(contributed)
        if part.credit is not None and len(part.credit.basis):
            along = -(part.credit.basis.cpu().double() @ mean)  # [k]
            returned = applied * (part.credit.returned @ along)
        return _Found(contributed[:, None], returned)

    def _gradient(self, taken: TakenRound, node: float) -> Tensor:
        """Return the gradient ``[d]`` at a point of the way."""
        if node in (0.0, 1.0):
            return taken.ends[int(node)].result().gradient
        vectors = _between(taken, node)
        return self.validation.gradient(vectors.params, taken.names.named_buffers(vectors))

    def _slopes(
        self, taken: TakenRound, node: float, middle: _Middle | None = None
    ) -> list[_Slopes]:
        """Return, for each part, how fast the loss falls along its updates."""
        vectors = _between(taken, node)
        buffers = taken.names.named_buffers(vectors)
        gradients = [middle.gradient if middle and node == _MIDDLE else self._gradient(taken, node)]
        for one_class in self.classes:
            share = one_class.total_weight / self.validation.total_weight
            gradients.append(one_class.gradient(vectors.params, buffers) * share)
        return [
            _Slopes(
                torch.stack([slopes(part.updates, g) for g in gradients]),
                torch.zeros(0)
                if part.credit is None or not len(part.credit.basis)
                else slopes(part.credit.basis, gradients[0].to(part.credit.basis.device)).cpu(),
            )
            for part in taken.parts
        ]


def _loss(end: Future[LossAndGradient]) -> float:
    """Return the loss at one of the two models; NaN where the model has diverged."""
    # Whatever it is that a user's loss raises, the round before was combined without it.
    return math.nan if end.exception() else end.result().loss


def _between(taken: TakenRound, node: float) -> ModelVectors:
    """Return the model at a point of the way from the old one, 0, to the new one, 1."""
    if node in (0.0, 1.0):
        return taken.after if node else taken.before
    before, after = taken.before, taken.after
    return ModelVectors(
        torch.lerp(before.params, after.params, node),
        torch.lerp(before.buffers, after.buffers, node),
        after.counters,
    )
