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
from fedif_flower.attribution.path import (
    Quadrature,
    block_contributions,
    contributions,
    is_settled,
    slopes,
)
from fedif_flower.attribution.records import ClientAttribution, MemberCredit, RoundAttribution
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
class Part:
    """What one round's updates are of a step.

    It is ``share * coefficients`` [m] times ``updates`` [m, d]; in the round itself, share is 1. A
    server with momentum carries parts on, ``[m, d]`` each: ten rounds where half of the step before
    is carried on, 66 where nine tenths are.

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
        credit = self.credit and vars(self.credit)
        return {**vars(self), "updates": self.updates.cpu(), "credit": credit}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Part:
        """Return what :meth:`state` was made of."""
        members = tuple((member[0], member[1]) for member in state["members"])
        credit = state["credit"] and Credit(**state["credit"])
        return cls(**{**state, "members": members, "credit": credit})


def joined(parts: Sequence[Part], shares: Sequence[float]) -> tuple[Part, ...]:
    """Return those rounds, the newest first, that are in a step in which they count for shares."""
    kept = [share for share in shares if share >= LEAST_SHARE * shares[0]]
    return tuple(replace(p, share=share) for p, share in zip(parts, kept, strict=False))


@dataclass(frozen=True)
class TakenRound:
    """A round that is still to be attributed; without parts, it failed."""

    server_round: int
    before: ModelVectors
    after: ModelVectors
    parts: tuple[Part, ...]
    names: BufferNames
    ends: tuple[Future[LossAndGradient], Future[LossAndGradient]]  # At the two models.
    unseen: UnseenUpdates | None = None
    undone: tuple[ClientAttribution, ...] = ()  # What a failed round took from whom.

    def at(self, node: float) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the model, ``[d]`` and buffers, from the old one, 0, to the new one, 1."""
        before, after = self.before, self.after
        vectors = after if node else before
        if 0.0 < node < 1.0:
            vectors = ModelVectors(
                torch.lerp(before.params, after.params, node),
                torch.lerp(before.buffers, after.buffers, node),
                after.counters,
            )
        return vectors.params, self.names.named_buffers(vectors)


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
        clients = taken.undone
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
        # Under the partition that it claimed last: a claim may change.
        claimed = {member[1]: member for part in taken.parts[::-1] for member in part.members}
        sums: dict[Member, Tensor] = {}  # Coefficient, credited, contribution, and its splits.
        for part, rows in zip(taken.parts, self._of_parts(taken, decrease), strict=True):
            applied = part.applied if part is taken.parts[0] else torch.zeros(len(rows))
            columns = torch.column_stack([applied, rows])
            for (_, client_id), row in zip(part.members, columns, strict=True):
                member = claimed[client_id]
                sums[member] = sums[member] + row if member in sums else row
        usual: dict[Member, list[float]] = {}
        newest, clients, c = taken.parts[0], [], len(self.classes)
        if (own := newest.credit) is not None:
            figures = torch.stack([own.length, own.weight, own.borrowed, own.opposed], dim=1)
            usual = dict(zip(newest.members, figures.tolist(), strict=True))
        for member in sorted(sums):
            coefficient, within, total, *rest = sums[member].tolist()
            credit = None
            if own is not None:
                credit = MemberCredit(min(total, within), *usual.get(member, ()))
            classes, blocks = tuple(rest[:c]), tuple(rest[c:])
            clients.append(ClientAttribution(*member, coefficient, total, classes, credit, blocks))
        return tuple(clients)

    def _of_parts(self, taken: TakenRound, decrease: float) -> list[Tensor]:
        """Return of each part ``[m, 2 + c + b]``: credited, contributed, and how that splits."""
        if taken.unseen is not None:
            return [self._contributed_unseen(taken, taken.unseen)]
        middle, by_block = self._middle(taken) if self.blocks else (None, None)
        known: dict[float, list[Tensor]] = {}
        found: list[Tensor] = []
        coarser: Tensor | None = None
        for rule in self.quadratures:
            known |= {n: self._slopes(taken, n, middle) for n in rule.nodes if n not in known}
            found = [
                _integrated(part, torch.stack([known[n][index] for n in rule.nodes]), rule)
                for index, part in enumerate(taken.parts)
            ]
            totals = torch.cat([rows[:, 1] for rows in found])
            if is_settled(totals, coarser, decrease):
                break
            coarser = totals
        if by_block is None:
            return found
        weights = self.block_weights
        return [
            torch.cat([rows, block_contributions(along, part.applied, weights, rows[:, 1]).T], 1)
            for part, rows, along in zip(taken.parts, found, by_block, strict=True)
        ]

    def _middle(self, taken: TakenRound) -> tuple[Tensor, list[Tensor]]:
        """Return the gradient ``[d]`` in the middle of the step, and each part's slopes [b, m].

        One pass over the examples gives both, block by block; one block's gradient is held.
        """
        params, buffers = taken.at(_MIDDLE)
        norms = [torch.linalg.vector_norm(part.updates, dim=1) ** 2 for part in taken.parts]
        along: list[list[Tensor]] = [[] for _ in taken.parts]
        whole = torch.zeros_like(params)
        for block, weight in zip(self.blocks, self.block_weights.tolist(), strict=True):
            gradient = block.gradient(params, buffers)
            whole.add_(gradient.to(whole), alpha=weight)
            for own, part, squared in zip(along, taken.parts, norms, strict=True):
                own.append(slopes(part.updates, gradient, squared))
        return whole, [torch.stack(own) for own in along]

    def _contributed_unseen(self, taken: TakenRound, unseen: UnseenUpdates) -> Tensor:
        """Return what masked updates contributed: one product, with the mean gradient."""
        (rule,), (part,) = self.quadratures, taken.parts
        mean = torch.zeros_like(taken.before.params, dtype=torch.float64)  # [d]
        for node, weight in zip(rule.nodes, rule.weights, strict=True):
            mean.add_(self._gradient(taken, node).cpu(), alpha=weight)
        values = -part.applied.double() * unseen.products(mean) + 0.0  # [m]
        if len(part.basis):
            values = torch.cat([values, -(part.basis.cpu().double() @ mean)])  # [m + k]
        return _credited(part, values[:, None])

    def _gradient(self, taken: TakenRound, node: float) -> Tensor:
        """Return the gradient ``[d]`` at a point of the way."""
        if node in (0.0, 1.0):
            return taken.ends[int(node)].result().gradient
        return self.validation.gradient(*taken.at(node))

    def _slopes(self, taken: TakenRound, node: float, middle: Tensor | None) -> list[Tensor]:
        """Return how fast the loss falls along each part's updates and basis, [1 + c, m + k].

        ``middle`` is the gradient in the middle of the step, where it is known.
        """
        known = middle if node == _MIDDLE else None
        gradients = [self._gradient(taken, node) if known is None else known]
        for one_class in self.classes:
            share = one_class.total_weight / self.validation.total_weight
            gradients.append(one_class.gradient(*taken.at(node)) * share)
        found = []
        for part in taken.parts:
            along = [part.updates, part.basis] if len(part.basis) else [part.updates]
            found.append(torch.stack([torch.cat([slopes(v, g) for v in along]) for g in gradients]))
        return found


def _integrated(part: Part, at_nodes: Tensor, rule: Quadrature) -> Tensor:
    """Return what :func:`_credited` does, of slopes ``[nodes, 1 + c, m + k]`` along the step."""
    applied = part.applied.double()
    factors = torch.cat([applied, applied.new_ones(at_nodes.shape[2] - len(applied))])  # [m + k]
    values = [contributions(along, factors, rule) for along in at_nodes.unbind(1)]
    return _credited(part, torch.stack(values, dim=1))


def _credited(part: Part, values: Tensor) -> Tensor:
    """Return the contributions ``[m, 1 + c]`` behind what of them is credited.

    They are the first m of ``values``; the other k are those of a step along each of the basis.
    """
    m = len(part.members)
    contributed, within = values[:m], values[:m, 0]
    if part.credit is not None:
        returned = part.applied.double() * (part.credit.returned * values[m:, 0]).sum(dim=1)
        within = credited(within, part.credit.kept, returned)
    return torch.column_stack([within, contributed])


def _loss(end: Future[LossAndGradient]) -> float:
    """Return the loss at one of the two models; NaN where the model has diverged."""
    # Whatever it is that a user's loss raises, the round before was combined without it.
    return math.nan if end.exception() else end.result().loss
