"""Masked rounds: replies are vectors of a ring, of which the server sees products and one sum.

What a strategy computes of a round goes through :class:`MaskedRound`. It asks the keeper for the
same of the masks, takes that away, and believes neither members nor keeper unchecked.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray
from torch import Tensor

from fedif_consortium.masking.boxes import header_for, vector_digest
from fedif_consortium.masking.checks import (
    are_lengths_true,
    are_possible,
    check_step,
    check_sum,
    length_tolerance,
)
from fedif_consortium.masking.interface import MaskKeeper
from fedif_consortium.masking.products import (
    decode_products,
    decode_step,
    encode_vectors,
    encode_weights,
    products,
)
from fedif_consortium.masking.ring import LONGEST, UPDATE_BITS, VECTOR_BITS, Ring, decode, encode
from fedif_consortium.masking.sketches import SignSketch, estimated_lengths
from fedif_consortium.masking.terms import BOX, LENGTH, MASK_RECORD, VECTOR, MaskingTerms
from fedif_flower.errors import BoxError, ConfigError, KeeperError, MaskingError, ReplyError
from fedif_flower.local_methods import LocalMethod
from fedif_flower.messages.arrays import ArraySpec, arrays_of
from fedif_flower.messages.buffers import is_statistic
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.messages.layout import ParameterLayout, UnpackedUpdate
from fedif_flower.messages.screening import AcceptedReply, Arrive, Workspace, empty_rows
from fedif_flower.round import ModelVectors, RoundUpdates
from fedif_flower.strategies.base import ScreenedStrategy

logger = logging.getLogger(__name__)
_ROUNDING = 1e-6  # Of a length, by which the ring may make it longer.
# Of a trained parameter: its masked reply, 8 bytes each, must not be taken for a flood.
_LEAST_BYTES = 4


@dataclass(frozen=True)
class Masking:
    """Who keeps the masks of a run: the ``intake`` of a strategy that sees no update.

    Attributes
    ----------
    keeper : MaskKeeper
        Answers for the masks.
    trial_keeper, trial_secret : str
        See :class:`~fedif_consortium.masking.terms.MaskingTerms`.
    run : int
        What the keeper knows the run by.
    """

    keeper: MaskKeeper
    trial_keeper: str = ""
    trial_secret: str = field(default="", repr=False)
    run: int = field(default_factory=lambda: secrets.randbits(63))

    def __repr__(self) -> str:
        """Name who keeps the masks."""
        return f"Masking({'trial' if self.trial_keeper else self.keeper!r})"

    def require(self, strategy: ScreenedStrategy, initial_arrays: ArrayRecord) -> None:
        """Raise ConfigError where updates, or more than parameters, would have to be seen."""
        method = type(strategy.setup.local_method)
        obstacles = [
            strategy.stages.needs_sight(),
            *(callback.needs_sight(strategy) for callback in strategy.callbacks),
        ]
        if not strategy.can_mask:
            obstacles.insert(0, f"{type(strategy).__name__} weighs by the updates themselves")
        if method is not LocalMethod:
            obstacles.append(f"members train by SGD alone, not by {method.__name__}")
        if strategy.setup.pace.late_rounds:
            obstacles.append("late replies cannot be discounted; late_rounds = 0 is needed")
        for key, array in initial_arrays.items():
            if is_statistic(key):
                obstacles.append(f"{key!r} is a statistic, which no mask covers")
            elif array.dtype.startswith("float") and np.dtype(array.dtype).itemsize < _LEAST_BYTES:
                obstacles.append(f"{key!r} is of {array.dtype}: masked replies need float32")
        if any(obstacles):
            raise ConfigError(f"masking: {next(filter(None, obstacles))}")

    def workspace(self, layout: ParameterLayout, max_length: float) -> MaskedWorkspace:
        """Return what takes in a round's masked replies."""
        return MaskedWorkspace(layout, self, max_length)


class MaskedWorkspace(Workspace):
    """Takes in a round's masked replies, and has the keeper open their boxes.

    Parameters
    ----------
    layout : ParameterLayout
        The model's.
    masking : Masking
        Who keeps the masks.
    max_length : float
        No update may be longer; infinite: only what the ring can hold counts.
    """

    def __init__(self, layout: ParameterLayout, masking: Masking, max_length: float) -> None:
        super().__init__(layout)
        self._masking, self._max_length = masking, max_length
        self._spec = ArraySpec.of(VECTOR, np.empty(layout.num_params, np.uint64))
        self._vectors: Ring = np.empty((0, layout.num_params), np.uint64)  # [m, d]
        self._boxes: dict[int, bytes] = {}  # By row.
        self._round = 0
        self._rows: Sequence[int] = ()
        self._error = KeeperError("the keeper has opened no box")
        self._opened: tuple[SignSketch, Ring, Ring, list[int]] | None = None

    def instruct(self, config: ConfigRecord, server_round: int) -> None:
        """Send the round's terms."""
        self._round = server_round
        MaskingTerms(
            run=self._masking.run,
            keys=[spec.name for spec in self.layout.trainable],
            max_length=self._max_length,
            trial_keeper=self._masking.trial_keeper,
            trial_secret=self._masking.trial_secret,
        ).write(config)

    def reserve(self, rows: int) -> None:
        """Make room for ``rows`` clients; the last round's replies are forgotten."""
        if rows > len(self._vectors):
            # To whoever reads the disk afterwards, where they may lie, they are random numbers.
            room = empty_rows(rows, self.layout.num_params, torch.int64)
            self._vectors = room.numpy().view(np.uint64)
        self.updates = torch.empty(rows, 0, dtype=self.layout.dtype)  # There is none to be seen.
        self.buffer_updates = torch.zeros(rows, self.layout.num_buffers, dtype=self.layout.dtype)
        self._boxes, self._rows, self._opened = {}, (), None

    def compact(self, rows: Sequence[int]) -> None:
        """Remember which rows count."""
        self._rows = rows

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
        if list(arrays) != [VECTOR]:
            raise ReplyError(f"its arrays are not {VECTOR!r} alone: it did not mask its update")
        vector = self._spec.view(arrays[VECTOR]).astype(np.uint64, copy=False)
        record = content.config_records.get(MASK_RECORD, ConfigRecord())
        box, length = record.get(BOX), record.get(LENGTH)
        if not isinstance(box, bytes) or not isinstance(length, float):
            raise ReplyError(f"{MASK_RECORD!r} has no box, or no length")
        place = self._masking.run, self._round, node.node_id, self.layout.num_params
        try:
            header = header_for(box, *place)
        except BoxError as error:
            raise ReplyError(str(error)) from error
        if header.digest != vector_digest(vector):
            raise ReplyError("its box is for another vector")
        longest = min(self._max_length * (1 + _ROUNDING), LONGEST)
        if not 0 <= length <= longest:
            raise ReplyError(f"its update has length {length:g}; allowed: at most {longest:g}")
        self._vectors[row], self._boxes[row] = vector, box
        return UnpackedUpdate(length**2, dict(received.counters), {})

    def unfit(self, accepted: Mapping[int, AcceptedReply]) -> dict[int, str]:
        """Have the boxes opened; return whose are refused, and whose lengths are not as stated."""
        if not accepted:
            return {}
        rows = {reply.node.node_id: row for row, reply in accepted.items()}
        boxes = {node: self._boxes[row] for node, row in rows.items()}
        try:
            run, d = self._masking.run, self.layout.num_params
            answer = self._masking.keeper.open_round(run, self._round, d, boxes)
        except KeeperError as error:
            self._error = error
            return {}
        kept = [rows[node] for node in answer.nodes]
        sketch = SignSketch(answer.seed, answer.sketches.shape[1], d)
        sketches = np.array([sketch.of(self._vectors[row]) for row in kept]) - answer.sketches
        self._opened = sketch, answer.sketches, sketches, kept
        refused = {rows[node]: f"the keeper: {reason}" for node, reason in answer.refused.items()}
        estimated = estimated_lengths(sketches)
        stated = np.array([math.sqrt(accepted[row].squared_norm) for row in kept])
        is_true = are_lengths_true(stated, estimated, sketch.size)
        for place in np.flatnonzero(~is_true):
            refused[kept[place]] = (
                f"its update is not what it says: length {estimated[place]:.4g} by its sketch, "
                f"{stated[place]:.4g} stated"
            )
        return refused

    def completed(self, updates: RoundUpdates) -> RoundUpdates:
        """Return the round with its products and its sum.

        Raises
        ------
        KeeperError
            If the keeper did not open the round.
        """
        if self._opened is None:
            raise self._error
        sketch, masks, sketches, kept = self._opened
        places = [kept.index(row) for row in self._rows]
        hidden = MaskedRound(
            self._masking,
            self._round,
            sketch,
            masks,
            places,
            [self._vectors[row] for row in self._rows],
            decode(sketches[places], UPDATE_BITS),
            updates.squared_norms.sqrt().numpy(),
            self.layout.dtype,
        )
        return replace(updates, hidden=hidden)


@dataclass
class MaskedRound:
    """The updates of one round, of which nobody sees any.

    Implements :class:`~fedif_flower.round.HiddenUpdates`.

    Attributes
    ----------
    masking, server_round : Masking, int
        Who keeps the masks, and of which round.
    sketch : SignSketch
        The keeper's.
    masks : ndarray
        ``[n, k]``, the sketches of the n masks that the keeper holds.
    places : list of int
        Of the m members that count, among those n.
    vectors : list of ndarray
        ``[d]`` each, what these m sent.
    sketches : ndarray
        ``[m, k]``, of their updates.
    lengths : ndarray
        ``[m]``, as they state them.
    dtype : torch.dtype
        Of steps.
    """

    masking: Masking
    server_round: int
    sketch: SignSketch
    masks: Ring
    places: list[int]
    vectors: list[Ring]
    sketches: NDArray[np.float64]
    lengths: NDArray[np.float64]
    dtype: torch.dtype
    _asked: list[tuple[Ring, Ring]] = field(default_factory=list)  # [d], and the answer, [n].
    _sum: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None

    @property
    def longest(self) -> NDArray[np.float64]:
        """The longest, ``[m]``, that sketches allow the updates to be."""
        return self.lengths * (1 + length_tolerance(self.sketch.size))

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
        encoded, exponents = encode_vectors(values[None])  # [1, d]
        if not encoded.any():
            return torch.zeros(len(self.vectors), dtype=torch.float64)
        keeper, run = self.masking.keeper, self.masking.run
        answer = keeper.products(run, self.server_round, encoded)
        own = np.array([products(row, encoded) for row in self.vectors])  # [m, 1]
        found = decode_products(own - answer[self.places], exponents)
        norm = np.array([np.linalg.norm(values)])
        if not are_possible(found, self.longest, norm).all():
            raise MaskingError("a product is larger than the member's update allows")
        self._asked.append((encoded[0], answer[:, 0]))
        return torch.from_numpy(found[:, 0])

    def cut(self, coefficients: Tensor) -> Tensor:
        """Return factors ``[m]`` with which the keeper's policy allows coefficients ``[m]``.

        Without, one member with a large share would end every round.
        """
        wanted = coefficients.detach().cpu().double().numpy()
        found = self.masking.keeper.policy().capped(wanted)
        if found is not wanted:
            logger.info("round %d: weights are cut to what the keeper answers", self.server_round)
        return torch.from_numpy(
            np.divide(found, wanted, out=np.ones_like(wanted), where=wanted > 0)
        )

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
            return torch.zeros(len(self.vectors[0]), dtype=self.dtype)
        if self._sum is None:
            self._sum = wanted, self._take(wanted)
        first, step = self._sum
        share = float(wanted.sum() / first.sum())
        if not np.allclose(wanted, share * first, rtol=1e-9, atol=0):
            raise MaskingError("a masked round has one sum: its weights cannot be changed")
        return torch.from_numpy(share * step).to(self.dtype)

    def _take(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Ask for the round's sum, and return the step ``[d]``."""
        keeper = self.masking.keeper
        of_all = np.zeros(len(self.masks))  # [n]
        of_all[self.places] = weights
        shares, total = encode_weights(of_all)
        masks = keeper.weighted_sum(self.masking.run, self.server_round, shares)
        d, n = len(masks), len(self.masks)
        vectors = np.array([vector for vector, _ in self._asked], np.uint64).reshape(-1, d)
        answers = np.array([answer for _, answer in self._asked], np.uint64).reshape(-1, n)
        check_sum(masks, shares, self.sketch, self.masks, vectors, answers.T)
        masked = np.zeros_like(masks)
        for vector, share in zip(self.vectors, shares[self.places], strict=True):
            masked += vector * share
        step = decode_step(masked - masks, total)
        check_step(step, weights, self.longest)
        return step

    def sketched(self, basis: Tensor) -> tuple[Tensor, Tensor]:
        """Return roughly the inner products ``[m, m]`` and the coordinates ``[m, k]``.

        Lengths are those stated, cosines those of the sketches, a basis that of the sketches'
        basis: what is left of an update beside its coordinates has no negative square.
        """
        sketch, bits = self.sketch, VECTOR_BITS
        theirs = [decode(sketch.of(encode(v, bits)), bits) for v in basis.cpu().double().numpy()]
        k = min(len(theirs), sketch.size)
        shares = np.zeros((len(self.sketches), len(theirs)))  # [m, k]
        if k:
            columns, triangle = np.linalg.qr(np.array(theirs[:k]).T)
            shares[:, :k] = self.sketches @ (columns * np.sign(np.diag(triangle)))
        found = np.linalg.norm(self.sketches, axis=1)  # [m]
        scale = np.divide(self.lengths, found, out=np.zeros_like(found), where=found > 0)
        gram = self.sketches @ self.sketches.T * np.outer(scale, scale)
        return torch.from_numpy(gram), torch.from_numpy(shares * scale[:, None])
