r"""What a server takes in and computes of a round whose updates it does not see.

It asks the keeper for the same of the masks, takes that away, and believes neither members nor
keeper unchecked. Sketches, products and the sum are linear in the masks, so the keeper's answers
have to agree, up to what it rounds:
:math:`\operatorname{Sk}(M) = \sum_i W_i \operatorname{Sk}(\mathrm{mask}_i)` and
:math:`\langle M, \hat g \rangle = \sum_i W_i \langle \mathrm{mask}_i, \hat g \rangle` for its sum
M. Answers that agree but are false are as if a member had sent another update, of the length that
it stated: the server cannot tell them apart, the member itself can.

A member that found a vector whose sketch is short by chance cannot use it: a product is bounded by
:math:`\lvert \langle u_i, g \rangle \rvert \le \lVert u_i \rVert \lVert g \rVert`, and the step by
:math:`\lVert \sum_i a_i u_i \rVert \le \sum_i a_i \lVert u_i \rVert`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from flwr.app import ConfigRecord, RecordDict
from numpy.typing import NDArray
from torch import Tensor

from fedif_consortium.masking import boxes, ring
from fedif_consortium.masking.keeper import OpenedRound
from fedif_consortium.masking.keeper_client import AnyKeeper
from fedif_consortium.masking.ring import ROUNDED_BITS, UPDATE_BITS, VECTOR_BITS, Ring, SignSketch
from fedif_flower.errors import KeeperError, MaskingError, ReplyError
from fedif_flower.messages.arrays import ArraySpec, arrays_of
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.messages.layout import ParameterLayout, UnpackedUpdate
from fedif_flower.messages.screening import AcceptedReply, Arrive, Workspace, empty_rows
from fedif_flower.round import ModelVectors, RoundUpdates

logger = logging.getLogger(__name__)
STANDARD_ERRORS = 5.0  # An honest member is refused once in some million rounds.
ROUNDING = 1e-4  # Of a bound: what encoding may add to it.
# Of the sum's rounding, as its masks are random: an honest one is beyond it once in 1e31 sums.
_DEVIATIONS = 6.0 * 2.0**ROUNDED_BITS


class MaskedWorkspace(Workspace):
    """Takes in a round's masked replies, and has the keeper open their boxes.

    Parameters
    ----------
    layout : ParameterLayout
        The model's.
    keeper : AnyKeeper
        Answers for the masks.
    terms : MaskingTerms
        What members are told.
    """

    def __init__(
        self, layout: ParameterLayout, keeper: AnyKeeper, terms: boxes.MaskingTerms
    ) -> None:
        super().__init__(layout)
        self._keeper, self._terms, self._place = keeper, terms, (terms.run, 0)  # And round.
        self._spec = ArraySpec.of(boxes.VECTOR, np.empty(layout.num_params, np.uint64))
        self._vectors: Ring = np.empty((0, layout.num_params), np.uint64)  # [m, d]
        self._boxes: dict[int, bytes] = {}  # By row.
        self._kept: list[int] = []  # The rows whose boxes were opened, in this order.
        self._opened: MaskedRound | KeeperError

    def instruct(self, config: ConfigRecord, server_round: int) -> None:
        """Send the round's terms."""
        self._place = self._terms.run, server_round
        terms = self._terms.model_copy(update={"server_round": server_round})
        config[boxes.TERMS_KEY] = terms.model_dump_json()

    def reserve(self, rows: int) -> None:
        """Make room for ``rows`` clients; the last round's replies are forgotten."""
        if rows > len(self._vectors):
            # To whoever reads the disk afterwards, where they may lie, they are random numbers.
            room = empty_rows(rows, self.layout.num_params, torch.int64)
            self._vectors = room.numpy().view(np.uint64)
        self.updates = torch.empty(rows, 0, dtype=self.layout.dtype)  # There is none to be seen.
        self.buffer_updates = torch.zeros(rows, self.layout.num_buffers, dtype=self.layout.dtype)
        self._boxes, self._opened = {}, KeeperError("the keeper has opened no box")

    def compact(self, rows: Sequence[int]) -> None:
        """Let these rows alone count."""
        if isinstance(self._opened, MaskedRound):
            self._opened.count([self._kept.index(row) for row in rows])

    def unpack(
        self,
        content: RecordDict,
        node: ClientNode,
        row: int,
        received: ModelVectors,
        arrive: Arrive | None,  # noqa: ARG002 (members shorten their own)
    ) -> UnpackedUpdate:
        """Check a masked vector and its box, and keep both.

        Raises
        ------
        ReplyError
            If they are not of this run, round, node and model, or the length stated is too long.
        """
        arrays = arrays_of(content)
        if list(arrays) != [boxes.VECTOR]:
            raise ReplyError(f"its arrays are not {boxes.VECTOR!r} alone: it masked no update")
        vector = self._spec.view(arrays[boxes.VECTOR]).astype(np.uint64, copy=False)
        mask = cast(ConfigRecord, content[boxes.MASK_RECORD])
        box, length = cast(bytes, mask[boxes.BOX]), cast(float, mask[boxes.LENGTH])
        header = boxes.header_for(box, *self._place, node.node_id, self.layout.num_params)
        if header.digest != ring.digest(vector):
            raise ReplyError("its box is for another vector")
        longest = min(self._terms.max_length * (1 + ROUNDING), ring.LONGEST)
        if not 0 <= length <= longest:
            raise ReplyError(f"its update has length {length:g}; allowed: at most {longest:g}")
        self._vectors[row], self._boxes[row] = vector, box
        return UnpackedUpdate(length**2, dict(received.counters), {})

    def unfit(self, accepted: Mapping[int, AcceptedReply]) -> dict[int, str]:
        """Have the boxes opened; return whose are refused, and whose lengths are not as stated."""
        rows = {reply.node.node_id: row for row, reply in accepted.items()}
        given = {node: self._boxes[row] for node, row in rows.items()}
        try:
            answer = self._keeper.open_round(*self._place, self.layout.num_params, given)
        except KeeperError as error:
            self._opened = error
            return {}
        self._kept = [rows[node] for node in answer.nodes]
        vectors = [self._vectors[row] for row in self._kept]
        stated = np.sqrt([accepted[row].squared_norm for row in self._kept])
        opened = MaskedRound(self._keeper, self._place, answer, vectors, stated, self.layout.dtype)
        self._opened = opened
        refused = {rows[node]: f"the keeper: {reason}" for node, reason in answer.refused.items()}
        return refused | {self._kept[place]: reason for place, reason in opened.untrue().items()}

    def completed(self, updates: RoundUpdates) -> RoundUpdates:
        """Return the round with its products and its sum.

        Raises
        ------
        KeeperError
            If the keeper did not open the round.
        """
        if isinstance(self._opened, KeeperError):
            raise self._opened
        return replace(updates, unseen=self._opened)


class MaskedRound:
    """The updates of one round, of which nobody sees any.

    Implements :class:`~fedif_flower.round.UnseenUpdates`.

    Parameters
    ----------
    keeper : AnyKeeper
        Answers for the masks.
    place : (int, int)
        Run and round, as the keeper knows them.
    opened : OpenedRound
        What the keeper says of the n members whose boxes it opened.
    vectors : sequence of ndarray
        ``[d]`` each, what these sent.
    lengths : ndarray
        ``[n]``, of their updates, as they state them.
    dtype : torch.dtype
        Of steps.
    """

    def __init__(
        self,
        keeper: AnyKeeper,
        place: tuple[int, int],
        opened: OpenedRound,
        vectors: Sequence[Ring],
        lengths: NDArray[np.float64],
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self.keeper, self.place, self.dtype = keeper, place, dtype
        self.masks = opened.sketches  # [n, k]
        self.sketch = SignSketch(opened.seed, self.masks.shape[1], len(vectors[0]))
        found = np.array([self.sketch.of(vector) for vector in vectors]) - self.masks
        self.vectors, self.lengths = vectors, lengths
        self.sketches = ring.decode(found, UPDATE_BITS)  # Of the updates.
        self.places: Sequence[int] = range(len(vectors))
        # 22 % for k = 256, 11 % for k = 1,024. A member that understates its length gains at most
        # that in a score that is divided by it.
        self._tolerance = STANDARD_ERRORS / float(np.sqrt(2 * self.sketch.size))
        self._asked: list[tuple[Ring, Ring]] = []  # [d], and the answer, [n].
        self._masks: tuple[Ring, Ring] | None = None  # Their sum [d], and its weights [n].
        self._sum: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None

    def count(self, places: Sequence[int]) -> None:
        """Leave the m members at these places; the others do not count."""
        self.places, self.vectors = places, [self.vectors[place] for place in places]
        self.lengths, self.sketches = self.lengths[places], self.sketches[places]

    def untrue(self) -> dict[int, str]:
        """Return whose length, by place, is not the one that its sketch tells, and both.

        A vector that does not fit its seed, or that uses the ring's width, has some 1e11.

        Why members state lengths: FedIF divides by them, and a sketch knows them to a few percent.
        The sum of squares is not linear, so nobody can compute it on masked vectors.
        """
        told, stated = np.linalg.norm(self.sketches, axis=1), self.lengths
        is_true = np.abs(told - stated) <= self._tolerance * stated
        return {
            place: f"its update is not what it says: length {told[place]:.4g} by its sketch, "
            f"{stated[place]:.4g} stated"
            for place in np.flatnonzero(~is_true).tolist()
        }

    @property
    def _longest(self) -> NDArray[np.float64]:
        """The longest, ``[m]``, that sketches allow the updates to be."""
        return self.lengths * (1 + self._tolerance)

    def products(self, vector: Tensor) -> Tensor:
        """Return the inner products ``[m]``, float64, of the updates with a vector ``[d]``.

        Raises
        ------
        KeeperError
            If the keeper does not answer, or answers nonsense.
        MaskingError
            If a product is none that an update of its length can have.
        """
        values = vector.detach().cpu().double().numpy()
        encoded, exponent = ring.encode_vector(values)
        if not encoded.any():
            return torch.zeros(len(self.vectors), dtype=torch.float64)
        answer = self.keeper.products(*self.place, encoded)  # [n]
        own = ring.products(encoded, self.vectors)  # [m]
        found = ring.decode_products(own - answer[self.places], exponent)
        norm, bounds = np.linalg.norm(values), self._longest * np.linalg.norm(values)
        if not np.all(np.abs(found) <= bounds + ROUNDING * (bounds + norm)):
            raise MaskingError("a product is larger than the member's update allows")
        self._asked.append((encoded, answer))
        self._check()
        return torch.from_numpy(found)

    def cut(self, coefficients: Tensor) -> Tensor:
        """Return factors ``[m]`` with which the keeper's policy allows coefficients ``[m]``.

        Without, one member with a large share would end every round.
        """
        wanted = coefficients.detach().cpu().double().numpy()
        found = self.keeper.policy.capped(wanted)
        if found is not wanted:
            logger.info("round %d: weights are cut to what the keeper answers", self.place[1])
        factors = np.divide(found, wanted, out=np.ones_like(wanted), where=wanted > 0)
        return torch.from_numpy(factors)

    def summed(self, weights: Tensor) -> Tensor:
        """Return the sum ``[d]`` of the updates times weights ``[m]``.

        Raises
        ------
        KeeperError
            If the keeper does not answer, or its sum contradicts what it said before.
        MaskingError
            If these weights are no multiple of the first ones, or the sum cannot be theirs.
        """
        wanted = weights.detach().cpu().double().numpy()
        if not wanted.any():
            return torch.zeros(self.sketch.length, dtype=self.dtype)
        if self._sum is None:
            self._sum = wanted, self._take(wanted)
        first, step = self._sum
        share = float(wanted.sum() / first.sum())
        if not np.allclose(wanted, share * first, rtol=1e-9, atol=0):
            raise MaskingError("a masked round has one sum: its weights cannot be changed")
        return torch.from_numpy(share * step).to(self.dtype)

    def _take(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Ask for the round's sum, and return the step ``[d]``."""
        of_all = np.zeros(len(self.masks))  # [n]
        of_all[self.places] = weights
        shares, total = ring.encode_weights(of_all)
        masks = self.keeper.weighted_sum(*self.place, shares)
        self._masks = masks, shares
        self._check()
        masked = np.zeros_like(masks)
        for vector, share in zip(self.vectors, shares[self.places], strict=True):
            masked += vector * share
        step = ring.decode_step(masked - masks, total)
        length, bound = float(np.linalg.norm(step)), float(np.dot(weights, self._longest))
        if not length <= bound + ROUNDING * (bound + total):
            raise MaskingError(
                f"the masked sum has length {length:g}, and its updates allow {bound:g}: a "
                "member's vector is not what its sketch says"
            )
        return step

    def _check(self) -> None:
        """Raise KeeperError unless the keeper's sum agrees with what it said of each mask.

        Contributions are products that are asked for after the sum.
        """
        if self._masks is None:
            return
        total, weights = self._masks
        apart = _apart(self.sketch.of(total), ring.products(weights, self.masks.T))  # [k]
        if not np.all(apart <= _DEVIATIONS * np.sqrt(self.sketch.counts)):
            raise KeeperError("the keeper's sum contradicts its sketches")
        rounding = 2.0 ** (ROUNDED_BITS - 1) * float(np.sum(weights, dtype=np.float64))
        for vector, answer in self._asked:
            allowed = rounding + _DEVIATIONS * float(np.linalg.norm(ring.decode(vector, 0)))
            if _apart(ring.products(total, [vector]), ring.products(answer, [weights])) > allowed:
                raise KeeperError("the keeper's sum contradicts its products")
        self._asked.clear()

    def sketched(self, basis: Tensor) -> tuple[Tensor, Tensor]:
        """Return roughly the inner products ``[m, m]`` and the coordinates ``[m, k]``.

        Lengths are those stated, cosines those of the sketches, a basis that of the sketches'
        basis: what is left of an update beside its coordinates has no negative square.
        """
        sketch, sketches, bits = self.sketch, self.sketches, VECTOR_BITS
        rows = basis.cpu().double().numpy()
        theirs = [ring.decode(sketch.of(ring.encode(row, bits)), bits) for row in rows]
        k = min(len(theirs), sketch.size)
        shares = np.zeros((len(sketches), len(theirs)))  # [m, k]
        if k:
            columns, triangle = np.linalg.qr(np.array(theirs[:k]).T)
            shares[:, :k] = sketches @ (columns * np.sign(np.diag(triangle)))
        found = np.linalg.norm(sketches, axis=1)  # [m]
        scale = np.divide(self.lengths, found, out=np.zeros_like(found), where=found > 0)
        gram = sketches @ sketches.T * np.outer(scale, scale)
        return torch.from_numpy(gram), torch.from_numpy(shares * scale[:, None])


def _apart(one: Ring, other: Ring) -> NDArray[np.float64]:
    """Return how far elements of the ring are apart."""
    return np.abs((one - other).view(np.int64).astype(np.float64))
