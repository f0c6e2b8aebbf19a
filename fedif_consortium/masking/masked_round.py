r"""What a server takes in and computes of a round whose updates it does not see.

It asks the keeper for the same of the masks, takes that away, and believes neither members nor
keeper unchecked. Sketches, products and the sum are linear in the masks, so the keeper's answers
have to agree, up to what it rounds:
:math:`\operatorname{Sk}(M) = \sum_i W_i \operatorname{Sk}(\mathrm{mask}_i)` and
:math:`\langle M, \hat g \rangle = \sum_i W_i \langle \mathrm{mask}_i, \hat g \rangle` for its sum
M. False answers that agree are as if a member had sent another update, of the length that it
stated: the server cannot tell them apart, the member itself can.

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
from fedif_flower.messages.workspace import AcceptedReply, Arrive, Workspace, empty_rows
from fedif_flower.round import ModelVectors, RoundUpdates
from fedif_flower.words import enumerated

logger = logging.getLogger(__name__)
# An honest member whose update is spread over many entries is refused once in some million rounds;
# of updates that lie in a few entries, one in some hundred.
STANDARD_ERRORS = 5.0
ROUNDING = 1e-4  # Of a bound: what encoding may add to it.
# Of the sum's rounding, as its masks are random: an honest one is beyond it once in 1e31 sums.
_DEVIATIONS = 6.0 * 2.0**ROUNDED_BITS
_PRODUCT_DEVIATIONS = 8.0  # As those of a product in floating point are bounded by.
# A step's rounding, in parts of the updates' length, above which a run is warned.
_MUCH_ROUNDING = 1e-3
# A keeper's answer says nothing of less than this, of a product with a vector of length 1/2 to 1.
_LEAST_PRODUCT = 2.0 ** (ROUNDED_BITS - UPDATE_BITS - VECTOR_BITS)


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
        self._keeper = keeper
        self._terms = terms
        self._place = (terms.run, 0)  # Run and round.
        self._spec = ArraySpec.of(boxes.VECTOR, np.empty(layout.num_params, np.uint64))
        self._vectors: Ring = np.empty((0, layout.num_params), np.uint64)  # [m, d]
        self._boxes: dict[int, bytes] = {}  # By row.
        self._opened_rows: list[int] = []  # In the order of the keeper's answers.
        self._opened: MaskedRound | KeeperError

    def instruct(self, config: ConfigRecord, server_round: int) -> None:
        """Send the round's terms."""
        self._place = (self._terms.run, server_round)
        terms = self._terms.model_copy(update={"server_round": server_round})
        config[boxes.TERMS_KEY] = terms.model_dump_json()

    def reserve(self, rows: int) -> None:
        """Make room for ``rows`` clients; the last round's replies are forgotten."""
        if rows > len(self._vectors):
            # They may lie on the disk: to whoever reads it afterwards, they are random numbers.
            room = empty_rows(rows, self.layout.num_params, torch.int64)
            self._vectors = room.numpy().view(np.uint64)
        self.updates = torch.empty(rows, 0, dtype=self.layout.dtype)  # There is none to be seen.
        self.buffer_updates = torch.zeros(rows, self.layout.num_buffers, dtype=self.layout.dtype)
        self._boxes = {}
        self._opened = KeeperError("the keeper has opened no box")

    def compact(self, rows: Sequence[int]) -> None:
        """Let these rows alone count."""
        if isinstance(self._opened, MaskedRound):
            self._opened.count([self._opened_rows.index(row) for row in rows])

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
        box = cast(bytes, mask[boxes.BOX])
        length = cast(float, mask[boxes.LENGTH])
        header = boxes.header_for(box, *self._place, node.node_id, self.layout.num_params)
        if header.digest != ring.digest(vector):
            raise ReplyError("its box is for another vector")
        longest = min(self._terms.max_length * (1 + ROUNDING), ring.LONGEST)
        if not 0 <= length <= longest:
            raise ReplyError(f"its update has length {length:g}; allowed: at most {longest:g}")
        self._vectors[row] = vector
        self._boxes[row] = box
        return UnpackedUpdate(length**2, dict(received.counters), {})

    def unfit(self, accepted: Mapping[int, AcceptedReply]) -> dict[int, str]:
        """Have the boxes opened; return whose are refused, and whose lengths are not as stated."""
        rows = {reply.node.node_id: row for row, reply in accepted.items()}
        round_boxes = {node_id: self._boxes[row] for node_id, row in rows.items()}
        try:
            answer = self._keeper.open_round(*self._place, self.layout.num_params, round_boxes)
        except KeeperError as error:
            self._opened = error
            return {}
        self._opened_rows = [rows[node_id] for node_id in answer.nodes]
        opened = self._masked_round(answer, [accepted[row] for row in self._opened_rows])
        self._opened = opened
        reasons = {}
        for node_id, reason in answer.refused.items():
            reasons[rows[node_id]] = f"the keeper: {reason}"
        for position, reason in opened.untrue().items():
            reasons[self._opened_rows[position]] = reason
        return reasons

    def _masked_round(self, answer: OpenedRound, replies: Sequence[AcceptedReply]) -> MaskedRound:
        """Return the updates whose boxes were opened; ``replies`` in the order of the answers."""
        return MaskedRound(
            self._keeper,
            self._place,
            answer,
            vectors=[self._vectors[row] for row in self._opened_rows],
            lengths=np.sqrt([reply.squared_norm for reply in replies]),
            labels=[reply.node.label for reply in replies],
            dtype=self.layout.dtype,
        )

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
    """The updates of one round, none of which anybody sees.

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
        ``[n]``, the lengths of their updates, as they state them.
    labels : sequence of str
        What they are called in errors.
    dtype : torch.dtype
        The type of a step's entries.
    """

    def __init__(
        self,
        keeper: AnyKeeper,
        place: tuple[int, int],
        opened: OpenedRound,
        vectors: Sequence[Ring],
        lengths: NDArray[np.float64],
        labels: Sequence[str],
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self.keeper = keeper
        self.place = place
        self.dtype = dtype
        self.vectors = vectors
        self.lengths = lengths
        self.labels = labels
        self.mask_sketches = opened.sketches  # [n, k]
        self.sketch = SignSketch(opened.seed, self.mask_sketches.shape[1], len(vectors[0]))
        # Sketches are linear: an update's is its masked vector's without its mask's.
        masked_sketches = np.array([self.sketch.of(vector) for vector in vectors])  # [n, k]
        self.sketches = ring.decode(masked_sketches - self.mask_sketches, UPDATE_BITS)
        # Where the m members that count stand among the n, in the order of all that is [m].
        self.positions: Sequence[int] = range(len(vectors))
        # 22 % for k = 256, 11 % for k = 1,024. A member that understates its length gains at most
        # that in a score that is divided by it.
        self._tolerance = STANDARD_ERRORS / float(np.sqrt(2 * self.sketch.size))
        self._unchecked_products: list[tuple[Ring, Ring]] = []  # A vector [d], its answer [n].
        self._mask_sum: tuple[Ring, Ring] | None = None  # The masks' sum [d], its weights [n].
        # The weights [m] of the round's one sum, and the step [d] that it makes.
        self._step: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None

    def count(self, positions: Sequence[int]) -> None:
        """Leave the m members at these positions; the others do not count."""
        self.positions = positions
        self.vectors = [self.vectors[position] for position in positions]
        self.lengths = self.lengths[positions]
        self.labels = [self.labels[position] for position in positions]
        self.sketches = self.sketches[positions]

    def untrue(self) -> dict[int, str]:
        """Return, by position, whose length is not the one that its sketch tells, and both lengths.

        A vector that does not fit its seed, or that uses the ring's width, has some 1e11.

        Why members state lengths: FedIF divides by them, and a sketch knows them to a few percent.
        The sum of squares is not linear, so nobody can compute it on masked vectors.
        """
        sketched = np.linalg.norm(self.sketches, axis=1)  # [m]
        is_true = np.abs(sketched - self.lengths) <= self._tolerance * self.lengths
        reasons = {}
        for position in np.flatnonzero(~is_true).tolist():
            reasons[position] = (
                f"its update is not what it says: length {sketched[position]:.4g} by its sketch, "
                f"{self.lengths[position]:.4g} stated"
            )
        return reasons

    @property
    def _longest(self) -> NDArray[np.float64]:
        """How long, ``[m]``, the updates can be at most by their sketches."""
        return self.lengths * (1 + self._tolerance)

    def products(self, vector: Tensor) -> Tensor:
        """Return the inner products ``[m]``, float64, of the updates with a vector ``[d]``.

        One that is no larger than what the keeper rounds is 0.

        Raises
        ------
        KeeperError
            If the keeper does not answer, or answers nonsense.
        MaskingError
            If a product is none that an update of its length can have; it names the member.
        """
        values = vector.detach().cpu().double().numpy()
        encoded, exponent = ring.encode_vector(values)
        if not encoded.any():
            return torch.zeros(len(self.vectors), dtype=torch.float64)
        of_masks = self.keeper.products(*self.place, encoded)  # [n]
        of_masked = ring.products(encoded, self.vectors)  # [m]
        products = ring.decode_products(of_masked - of_masks[self.positions], exponent)
        norm = np.linalg.norm(values)
        bounds = self._longest * norm
        # NaN is refused too, since it compares as false.
        is_possible = np.abs(products) <= bounds + ROUNDING * (bounds + norm)
        if not is_possible.all():
            places = np.flatnonzero(~is_possible).tolist()
            labels = [self.labels[place] for place in places]
            raise MaskingError(
                f"a product is larger than the update allows of {enumerated(labels)}: its vector "
                "is not what its sketch says, or the keeper's answer is false"
            )
        # Else an update as short as that would have a direction, and a score, by rounding alone.
        products[np.abs(products) <= np.ldexp(_LEAST_PRODUCT, exponent)] = 0.0
        self._unchecked_products.append((encoded, of_masks))
        self._check_keeper()
        return torch.from_numpy(products)

    def product_errors(self, vector: Tensor) -> Tensor:
        """Return how far, ``[m]`` of float64, the fixed point may move the products with a vector.

        It rounds each entry of an update, each entry of the vector, and the keeper's answer.
        """
        length = float(torch.linalg.vector_norm(vector, dtype=torch.float64))
        _, exponent = np.frexp(length)
        scaled_length = np.ldexp(length, -exponent)  # In [1/2, 1).
        of_updates = scaled_length * 2.0**-UPDATE_BITS
        of_vector = self.lengths * 2.0**-VECTOR_BITS  # [m]
        of_answers = _LEAST_PRODUCT
        deviation = np.sqrt((of_updates**2 + of_vector**2 + of_answers**2) / 12)  # Of uniform ones.
        return torch.from_numpy(np.ldexp(_PRODUCT_DEVIATIONS * deviation, exponent))

    def cut(self, coefficients: Tensor) -> Tensor:
        """Return factors ``[m]`` with which the keeper's policy allows coefficients ``[m]``.

        Without these factors, one member with a large share would end every round.
        """
        weights = coefficients.detach().cpu().double().numpy()
        capped = self.keeper.policy.capped(weights)
        if capped is not weights:
            _, server_round = self.place
            logger.info("round %d: weights are cut to what the keeper answers", server_round)
        factors = np.divide(capped, weights, out=np.ones_like(weights), where=weights > 0)
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
        new_weights = weights.detach().cpu().double().numpy()
        if not new_weights.any():
            return torch.zeros(self.sketch.length, dtype=self.dtype)
        if self._step is None:
            self._step = (new_weights, self._ask_for_step(new_weights))
        first_weights, step = self._step
        factor = float(new_weights.sum() / first_weights.sum())
        if not np.allclose(new_weights, factor * first_weights, rtol=1e-9, atol=0):
            raise MaskingError("a masked round has one sum: its weights cannot be changed")
        return torch.from_numpy(factor * step).to(self.dtype)

    def _ask_for_step(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Ask for the round's sum, and return the step ``[d]``."""
        # The keeper's answers are about all n whose boxes it opened: the others weigh nothing.
        weights_of_all = np.zeros(len(self.mask_sketches))  # [n]
        weights_of_all[self.positions] = weights
        shares, total = ring.encode_weights(weights_of_all)
        sum_of_masks = self.keeper.weighted_sum(*self.place, shares)
        self._mask_sum = (sum_of_masks, shares)
        self._check_keeper()
        sum_of_masked = np.zeros_like(sum_of_masks)
        for vector, share in zip(self.vectors, shares[self.positions], strict=True):
            sum_of_masked += vector * share
        step = ring.decode_step(sum_of_masked - sum_of_masks, total)
        self._warn_of_rounding()
        length = float(np.linalg.norm(step))
        bound = float(np.dot(weights, self._longest))
        if not length <= bound + ROUNDING * (bound + total):
            raise MaskingError(
                f"the masked sum has length {length:g}, and its updates allow {bound:g}: a "
                "member's vector is not what its sketch says"
            )
        return step

    def _warn_of_rounding(self) -> None:
        """Say where updates are so short that the fixed point moves the step by much."""
        # Of the updates' mean, and of the keeper's sum: each entry by 2**-28 at most.
        rounding = 2.0**-UPDATE_BITS * float(np.sqrt(self.sketch.length / 6))
        typical_length = float(np.median(self.lengths))
        if rounding > _MUCH_ROUNDING * typical_length:
            _, server_round = self.place
            logger.warning(
                "round %d: updates are so short (%.2g in the middle) that masking rounds the step "
                "by %.2g: a larger learning rate or more local epochs make them longer",
                server_round,
                typical_length,
                rounding,
            )

    def _check_keeper(self) -> None:
        """Raise KeeperError unless the keeper's sum agrees with what it said of each mask.

        This follows each product, too: contributions are products that are asked for after the sum.
        """
        if self._mask_sum is None:
            return
        total, weights = self._mask_sum
        sketch_of_sum = self.sketch.of(total)  # [k]
        sum_of_sketches = ring.products(weights, self.mask_sketches.T)  # [k]
        distances = _distance(sketch_of_sum, sum_of_sketches)
        if not np.all(distances <= _DEVIATIONS * np.sqrt(self.sketch.counts)):
            raise KeeperError("the keeper's sum contradicts its sketches")
        rounding = 2.0 ** (ROUNDED_BITS - 1) * float(np.sum(weights, dtype=np.float64))
        for vector, answer in self._unchecked_products:
            product_of_sum = ring.products(total, [vector])
            sum_of_products = ring.products(answer, [weights])
            norm = float(np.linalg.norm(ring.decode(vector, 0)))
            if _distance(product_of_sum, sum_of_products) > rounding + _DEVIATIONS * norm:
                raise KeeperError("the keeper's sum contradicts its products")
        self._unchecked_products.clear()

    def sketched(self, basis: Tensor) -> tuple[Tensor, Tensor]:
        """Return roughly the inner products ``[m, m]`` and the coordinates ``[m, k]``.

        Lengths are those that members state, cosines those of the sketches. Coordinates are in an
        orthonormal basis of the basis' sketches, so that the square of what is left of an update
        beside its coordinates is never negative.
        """
        basis_sketches = [self._sketch_vector(row) for row in basis.cpu().double().numpy()]
        num_members = len(self.sketches)
        # Sketches span no more directions than they have sums.
        rank = min(len(basis_sketches), self.sketch.size)
        coordinates = np.zeros((num_members, len(basis_sketches)))  # [m, k]
        if rank:
            columns, triangle = np.linalg.qr(np.array(basis_sketches[:rank]).T)
            # QR leaves each column's sign open: a column is to point where its sketch does.
            signs = np.sign(np.diag(triangle))
            coordinates[:, :rank] = self.sketches @ (columns * signs)
        norms = np.linalg.norm(self.sketches, axis=1)  # [m]
        scale = np.divide(self.lengths, norms, out=np.zeros_like(norms), where=norms > 0)
        gram = self.sketches @ self.sketches.T * np.outer(scale, scale)
        return torch.from_numpy(gram), torch.from_numpy(coordinates * scale[:, None])

    def _sketch_vector(self, vector: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the sketch ``[k]`` of a vector ``[d]``, as numbers."""
        encoded = ring.encode(vector, VECTOR_BITS)
        return ring.decode(self.sketch.of(encoded), VECTOR_BITS)


def _distance(left: Ring, right: Ring) -> NDArray[np.float64]:
    """Return how far elements of the ring are apart."""
    return np.abs((left - right).view(np.int64).astype(np.float64))
