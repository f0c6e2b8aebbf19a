r"""The server's side of masked rounds: it scores and sums updates that it does not see.

The server computes sketches, products and the sum on the masked updates. The keeper computes the
same on the masks, and the server subtracts the keeper's answers. It checks both members and keeper.

**The keeper.** Its answers about the masks :math:`\mathrm{mask}_i` are linear in them: sketches
(Sk), products with a vector :math:`\hat g`, and the sum :math:`M = \sum_i W_i \mathrm{mask}_i` with
weights :math:`W_i`. So the answers have to agree, up to the keeper's rounding:
:math:`\operatorname{Sk}(M) = \sum_i W_i \operatorname{Sk}(\mathrm{mask}_i)` and
:math:`\langle M, \hat g \rangle = \sum_i W_i \langle \mathrm{mask}_i, \hat g \rangle`. False
answers that agree look as if a member had sent another update of the stated length. The server
cannot notice these, only the member itself can.

**Members.** A member may find a long vector :math:`u_i` whose sketch is short by chance. It gains
nothing, since products and step are bounded by the stated lengths:
:math:`\lvert \langle u_i, g \rangle \rvert \le \lVert u_i \rVert \lVert g \rVert`, and
:math:`\lVert \sum_i a_i u_i \rVert \le \sum_i a_i \lVert u_i \rVert` for coefficients :math:`a_i`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
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
from fedif_flower.round import ModelVectors
from fedif_flower.words import enumerated

logger = logging.getLogger(__name__)
# How far a stated length may be from that of its sketch, in standard errors of the sketch. An
# honest member is refused once in some million rounds if its update is spread over many entries,
# and once in some hundred if it lies in few entries.
STANDARD_ERRORS = 5.0
ROUNDING = 1e-4  # Encoding may exceed a bound by this part of it.
# The bound for the rounding of the keeper's sum. In a sketch it is multiplied by the root of the
# number of entries in a bucket, and in a product by the vector's length. Masks are random, so an
# honest sum exceeds the bound once in 1e31 sums.
_DEVIATIONS = 6.0 * 2.0**ROUNDED_BITS
# The bound of a product's rounding, in standard deviations; the same as in floating point.
_PRODUCT_DEVIATIONS = 8.0
# A warning is logged if a step's rounding is larger than this part of the updates' length.
_MUCH_ROUNDING = 1e-3
# The unit to which the keeper rounds products with a vector of length 1/2 to 1.
_LEAST_PRODUCT = 2.0 ** (ROUNDED_BITS - UPDATE_BITS - VECTOR_BITS)


class MaskedWorkspace(Workspace):
    """Takes in a round's masked replies, and has the keeper open their boxes.

    Parameters
    ----------
    layout : ParameterLayout
        The layout of the model's arrays.
    keeper : Keeper or HttpKeeper
        The keeper of the masks.
    terms : MaskingTerms
        The run's terms, which members are told with each round's number.
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
        self._boxes: dict[int, bytes] = {}  # The boxes by row.
        # The rows of the members whose boxes were opened, in the order of the keeper's answers.
        self._opened_rows: list[int] = []
        self._opened: MaskedRound | KeeperError

    def tell_terms(self, config: ConfigRecord, server_round: int) -> None:
        """Begin a round: add its terms of masking to the config that members are sent."""
        self._place = (self._terms.run, server_round)
        terms = self._terms.model_copy(update={"server_round": server_round})
        config[boxes.TERMS_KEY] = terms.model_dump_json()

    def reserve(self, rows: int) -> None:
        """Make room for ``rows`` clients; the last round's replies are forgotten."""
        if rows > len(self._vectors):
            # Rows may lie in a file on the disk. They are masked, so they give nothing away there.
            room = empty_rows(rows, self.layout.num_params, torch.int64)
            self._vectors = room.numpy().view(np.uint64)
        self.updates = torch.empty(rows, 0, dtype=self.layout.dtype)  # No update is seen.
        self.buffer_updates = torch.zeros(rows, self.layout.num_buffers, dtype=self.layout.dtype)
        self._boxes = {}
        self._opened = KeeperError("the keeper has opened no box")

    def compact(self, rows: Sequence[int]) -> None:
        """Keep the updates in these rows, which count; drop the others."""
        if isinstance(self._opened, MaskedRound):
            self._opened.keep_counted([self._opened_rows.index(row) for row in rows])

    def unpack(
        self,
        content: RecordDict,
        node: ClientNode,
        row: int,
        received: ModelVectors,
        arrive: Arrive | None,  # noqa: ARG002 (members shorten their own)
    ) -> UnpackedUpdate:
        """Check a masked vector and its box, and keep both.

        See :meth:`~fedif_flower.messages.workspace.Workspace.unpack` for the parameters.

        Raises
        ------
        ReplyError
            If they do not belong to this run, round, node and model, or the stated length is not
            allowed.
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
        """Have the keeper open the boxes; return, by row, why members are refused.

        A member is refused if the keeper does not open its box, or its length is not as stated.
        If the keeper opens no round, nobody is refused here; :meth:`opened_round` raises its error.
        """
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
        """Return the updates whose boxes were opened.

        ``replies`` are theirs, in the order of the keeper's answers.
        """
        return MaskedRound(
            self._keeper,
            self._place,
            answer,
            vectors=[self._vectors[row] for row in self._opened_rows],
            lengths=np.sqrt([reply.squared_norm for reply in replies]),
            labels=[reply.node.label for reply in replies],
            dtype=self.layout.dtype,
        )

    def opened_round(self) -> MaskedRound:
        """Return the masked updates that count, with their products and sum.

        Raises
        ------
        KeeperError
            If the keeper did not open the round.
        """
        if isinstance(self._opened, KeeperError):
            raise self._opened
        return self._opened


class MaskedRound:
    """The masked updates of one round, which nobody sees.

    Implements :class:`~fedif_flower.round.UnseenUpdates`.

    Parameters
    ----------
    keeper : Keeper or HttpKeeper
        The keeper of the masks.
    place : (int, int)
        The run's id at the keeper, and the round.
    opened : OpenedRound
        The keeper's answer about the n members whose boxes it opened.
    vectors : sequence of ndarray
        ``[d]`` of uint64 each: the masked updates of these members.
    lengths : ndarray
        ``[n]``: the lengths of their updates, as they state them.
    labels : sequence of str
        Their names in error messages.
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
        # Sketches are linear: the sketch of an update is that of its masked vector, minus that of
        # its mask.
        masked_sketches = np.array([self.sketch.of(vector) for vector in vectors])  # [n, k]
        self.sketches = ring.decode(masked_sketches - self.mask_sketches, UPDATE_BITS)
        # The positions among the n of the m members that count; all arrays [m] have this order.
        self.positions: Sequence[int] = range(len(vectors))
        # The tolerance of stated lengths: 22 % for k = 256, 11 % for k = 1,024. A member that
        # understates its length gains about as much in a score that is divided by the length.
        self._tolerance = STANDARD_ERRORS / float(np.sqrt(2 * self.sketch.size))
        # Vectors [d] with the keeper's answers [n], until these are compared with its sum.
        self._unchecked_products: list[tuple[Ring, Ring]] = []
        # The keeper's sum of the masks [d], and its weights [n].
        self._mask_sum: tuple[Ring, Ring] | None = None
        # The weights [m] of the round's one sum, and the step [d] that it makes.
        self._step: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None

    def keep_counted(self, positions: Sequence[int]) -> None:
        """Keep the m members at these positions among the n; drop the others."""
        self.positions = positions
        self.vectors = [self.vectors[position] for position in positions]
        self.lengths = self.lengths[positions]
        self.labels = [self.labels[position] for position in positions]
        self.sketches = self.sketches[positions]

    def untrue(self) -> dict[int, str]:
        """Return, by position, why an update is refused whose sketch contradicts its stated length.

        A vector that does not fit its seed, or that uses the ring's width, has a sketch of length
        1e11 or so.

        Members state lengths because FedIF divides by them, and a sketch tells a length only to a
        few percent. Nobody can compute it on masked vectors, since a sum of squares is not linear.
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
        """The largest lengths ``[m]`` that the updates can have by their sketches."""
        return self.lengths * (1 + self._tolerance)

    def products(self, vector: Tensor) -> Tensor:
        """Return the inner products ``[m]``, float64, of the updates with a vector ``[d]``.

        A product that is no larger than the keeper's rounding is 0.

        Raises
        ------
        KeeperError
            If the keeper does not answer, or its answer contradicts its sum.
        MaskingError
            If a product is larger than the member's length allows; the message names the member.
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
        # A comparison with NaN is false, so NaN is refused too.
        is_possible = np.abs(products) <= bounds + ROUNDING * (bounds + norm)
        if not is_possible.all():
            places = np.flatnonzero(~is_possible).tolist()
            labels = [self.labels[place] for place in places]
            raise MaskingError(
                f"a product is larger than the update allows of {enumerated(labels)}: its vector "
                "is not what its sketch says, or the keeper's answer is false"
            )
        # Otherwise a very short update would get a score from rounding alone.
        products[np.abs(products) <= np.ldexp(_LEAST_PRODUCT, exponent)] = 0.0
        self._unchecked_products.append((encoded, of_masks))
        self._check_keeper()
        return torch.from_numpy(products)

    def product_errors(self, vector: Tensor) -> Tensor:
        """Return bounds ``[m]``, float64, of the products' errors by rounding to fixed point.

        Each entry of an update, each entry of the vector and the keeper's answer are rounded.
        """
        length = float(torch.linalg.vector_norm(vector, dtype=torch.float64))
        _, exponent = np.frexp(length)
        scaled_length = np.ldexp(length, -exponent)  # In [1/2, 1).
        of_updates = scaled_length * 2.0**-UPDATE_BITS
        of_vector = self.lengths * 2.0**-VECTOR_BITS  # [m]
        of_answers = _LEAST_PRODUCT
        # The variance of a uniformly distributed rounding error is unit**2 / 12.
        deviation = np.sqrt((of_updates**2 + of_vector**2 + of_answers**2) / 12)
        return torch.from_numpy(np.ldexp(_PRODUCT_DEVIATIONS * deviation, exponent))

    def cut(self, coefficients: Tensor) -> Tensor:
        """Return factors ``[m]`` that make coefficients ``[m]`` fit the keeper's policy.

        Without these factors, one member with a large share would make every round fail.
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

        The keeper is asked for one sum a round. Later calls need a multiple of the first weights.

        Raises
        ------
        KeeperError
            If the keeper does not answer, or its sum contradicts its earlier answers.
        MaskingError
            If the weights are no multiple of the first ones, or the sum is longer than the updates'
            lengths allow.
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
        # The keeper needs weights for all n members whose boxes it opened; those of members that do
        # not count are 0.
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
        """Warn if updates are so short that rounding to fixed point changes the step by much."""
        # Both the weighted mean of the updates and the keeper's sum are rounded, each entry by at
        # most 2**-28 in units of the update.
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
        """Raise KeeperError unless the keeper's sum agrees with its sketches and products.

        It is called after the sum, and after each product, since contributions are products that
        are asked for after the sum.
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
        """Return estimates of the updates' inner products, and of their coordinates in a basis.

        Lengths are those that members state, and cosines are those of the sketches. Coordinates are
        taken in an orthonormal basis of the sketches of ``basis``. So the squares of an update's
        coordinates never add up to more than the square of its length.

        Parameters
        ----------
        basis : Tensor
            ``[k, d]``: orthonormal vectors.

        Returns
        -------
        Tensor, Tensor
            ``[m, m]`` and ``[m, k]``, float64.
        """
        basis_sketches = [self._sketch_vector(row) for row in basis.cpu().double().numpy()]
        num_members = len(self.sketches)
        # Sketches span no more dimensions than they have sums; further coordinates stay 0.
        rank = min(len(basis_sketches), self.sketch.size)
        coordinates = np.zeros((num_members, len(basis_sketches)))  # [m, k]
        if rank:
            columns, triangle = np.linalg.qr(np.array(basis_sketches[:rank]).T)
            # QR leaves the sign of each column open. Here a column points where its sketch points.
            signs = np.sign(np.diag(triangle))
            coordinates[:, :rank] = self.sketches @ (columns * signs)
        norms = np.linalg.norm(self.sketches, axis=1)  # [m]
        scale = np.divide(self.lengths, norms, out=np.zeros_like(norms), where=norms > 0)
        gram = self.sketches @ self.sketches.T * np.outer(scale, scale)
        return torch.from_numpy(gram), torch.from_numpy(coordinates * scale[:, None])

    def _sketch_vector(self, vector: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the sketch of a vector ``[d]``, decoded to numbers."""
        encoded = ring.encode(vector, VECTOR_BITS)
        return ring.decode(self.sketch.of(encoded), VECTOR_BITS)


def _distance(left: Ring, right: Ring) -> NDArray[np.float64]:
    """Return the distances between elements of the ring, entry by entry."""
    return np.abs((left - right).view(np.int64).astype(np.float64))
