"""Masked rounds: replies are vectors of a ring, of which the server sees products and one sum.

What a strategy computes of a round goes through :class:`MaskedRound`. It asks the keeper for the
same of the masks, takes that away, and believes neither members nor keeper unchecked.
"""

from __future__ import annotations

import logging
import math
import secrets
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import psutil
import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray
from torch import Tensor

from fedif_consortium.masking import (
    LONGEST,
    UPDATE_BITS,
    MaskKeeper,
    Ring,
    SignSketch,
    are_lengths_true,
    are_possible,
    check_step,
    check_sum,
    decode,
    decode_products,
    decode_step,
    encode,
    encode_vectors,
    encode_weights,
    estimated_lengths,
    length_tolerance,
    products,
    read_header,
)
from fedif_consortium.masking.boxes import vector_digest
from fedif_consortium.masking.ring import VECTOR_BITS
from fedif_consortium.masking.terms import (
    BOX,
    LENGTH,
    MASK_RECORD,
    VECTOR,
    MaskingTerms,
)
from fedif_flower.errors import BoxError, ConfigError, KeeperError, MaskingError, ReplyError
from fedif_flower.local_methods import LocalMethod
from fedif_flower.messages.arrays import ArraySpec
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.messages.layout import ParameterLayout, UnpackedUpdate
from fedif_flower.messages.reply_arrays import arrays_of
from fedif_flower.messages.screening import AcceptedReply, Arrive, Workspace
from fedif_flower.messages.statistics import is_statistic
from fedif_flower.round import ModelVectors, RoundUpdates
from fedif_flower.strategies.base import ScreenedStrategy

# Of what is free, the masked vectors of a round; beyond that they lie in a file.
SHARE_OF_MEMORY = 0.25
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
        name = type(strategy).__name__
        obstacle = "" if strategy.can_mask else f"{name} weighs by the updates themselves"
        obstacle = obstacle or strategy.stages.needs_sight()
        for callback in strategy.callbacks:
            obstacle = obstacle or callback.needs_sight(strategy)
        method = type(strategy.setup.local_method)
        if method is not LocalMethod:
            obstacle = obstacle or f"members train by SGD alone, not by {method.__name__}"
        if strategy.setup.pace.late_rounds:
            obstacle = obstacle or "late replies cannot be discounted; late_rounds = 0 is needed"
        for key, array in initial_arrays.items():
            if is_statistic(key):
                obstacle = obstacle or f"{key!r} is a statistic, which no mask covers"
            elif array.dtype.startswith("float") and np.dtype(array.dtype).itemsize < _LEAST_BYTES:
                obstacle = obstacle or f"{key!r} is of {array.dtype}: masked replies need float32"
        if obstacle:
            raise ConfigError(f"masking: {obstacle}")

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
        self._error: KeeperError | None = None
        self._opened: _Opened | None = None

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
            self._vectors = _room(rows, self.layout.num_params)
        self.buffer_updates = torch.zeros(rows, self.layout.num_buffers, dtype=self.layout.dtype)
        self._boxes, self._rows, self._error, self._opened = {}, (), None, None

    def update(self, row: int) -> Tensor:  # noqa: ARG002
        """Return nothing: there is no update to be seen."""
        return torch.empty(0, dtype=self.layout.dtype)

    def kept(self, rows: int) -> Tensor:
        """Return ``[rows, 0]``."""
        return torch.empty(rows, 0, dtype=self.layout.dtype)

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
        record = content.get(MASK_RECORD)
        box, length = (
            (record.get(BOX), record.get(LENGTH))
            if isinstance(record, ConfigRecord)
            else (None, None)
        )
        if not isinstance(box, bytes) or not isinstance(length, float):
            raise ReplyError(f"{MASK_RECORD!r} has no box, or no length")
        try:
            header = read_header(box)
        except BoxError as error:
            raise ReplyError(str(error)) from error
        expected = {
            "run": (header.run, self._masking.run),
            "round": (header.server_round, self._round),
            "node": (header.node, node.node_id),
            "length": (header.length, self.layout.num_params),
        }
        for name, (found, wanted) in expected.items():
            if found != wanted:
                raise ReplyError(f"its box is for {name} {found}, not {wanted}")
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
        lengths = {row: math.sqrt(reply.squared_norm) for row, reply in accepted.items()}
        try:
            self._opened = opened = self._open(rows)
        except KeeperError as error:
            self._error = error
            return {}
        except Exception as error:  # nothing that a keeper answers may stop the server
            self._error = KeeperError(f"the keeper's answer is not readable: {error!r}")
            return {}
        refused = {
            row: f"the keeper: {opened.refused.get(node, 'no answer')}"
            for node, row in rows.items()
            if row not in opened.places
        }
        kept = list(opened.places)
        estimated = estimated_lengths(np.array([opened.sketches[row] for row in kept]))
        stated = np.array([lengths[row] for row in kept])
        for row, found, said, is_true in zip(
            kept,
            estimated,
            stated,
            are_lengths_true(stated, estimated, opened.sketch.size),
            strict=True,
        ):
            if not is_true:
                refused[row] = (
                    f"its update is not what it says: length {found:.4g} by its sketch, {said:.4g} "
                    "stated"
                )
        return refused

    def _open(self, rows: Mapping[int, int]) -> _Opened:
        """Hand in the boxes of nodes, whose rows are given."""
        keeper, run, d = self._masking.keeper, self._masking.run, self.layout.num_params
        boxes = {node: self._boxes[row] for node, row in rows.items()}
        answer = keeper.open_round(run, self._round, d, boxes)
        if len(set(answer.nodes)) < len(answer.nodes) or not set(answer.nodes) <= set(rows):
            raise KeeperError("the keeper opened boxes that it was not given")
        if not answer.nodes:
            raise KeeperError("the keeper opened no box")
        found = keeper.sketches(run, self._round)
        size = keeper.policy().sketch_for(d)
        _require_ring("sketches", found.values, len(answer.nodes), size)
        sketch = SignSketch(found.seed, size, d)
        places = {rows[node]: place for place, node in enumerate(answer.nodes)}
        return _Opened(
            sketch=sketch,
            masks=found.values,
            places=places,
            refused=answer.refused,
            sketches={
                row: sketch.of(self._vectors[row]) - found.values[place]
                for row, place in places.items()
            },
        )

    def completed(self, updates: RoundUpdates) -> RoundUpdates:
        """Return the round with its products and its sum.

        Raises
        ------
        KeeperError
            If the keeper did not open the round.
        """
        if self._error is not None or self._opened is None:
            raise self._error or KeeperError("the keeper has opened no box")
        hidden = MaskedRound(
            self._masking,
            self._round,
            self._opened,
            self._rows,
            [self._vectors[row] for row in self._rows],
            updates.squared_norms.sqrt().numpy(),
            self.layout.dtype,
        )
        return replace(updates, hidden=hidden, summed=hidden.summed)


def _room(rows: int, length: int) -> Ring:
    """Return memory for masked vectors ``[rows, length]``: of a file without a name if it is much.

    To whoever reads the disk afterwards they are random numbers.
    """
    if 8 * rows * length <= SHARE_OF_MEMORY * psutil.virtual_memory().available:
        return np.empty((rows, length), np.uint64)
    with tempfile.TemporaryFile() as file:
        file.truncate(8 * rows * length)
        return np.memmap(file, np.uint64, "r+", shape=(rows, length))


def _require_ring(what: str, answer: Any, *shape: int) -> None:
    """Raise KeeperError unless a keeper's answer is of the ring, and of this shape."""
    if not isinstance(answer, np.ndarray) or (answer.dtype, answer.shape) != (np.uint64, shape):
        kind = getattr(answer, "dtype", type(answer).__name__)
        raise KeeperError(
            f"the keeper's {what}: {kind} of shape {list(np.shape(answer))}, not {list(shape)}"
        )


@dataclass(frozen=True)
class _Opened:
    """A round as the keeper opened it.

    ``masks`` [n, k] are the sketches of the n masks that it holds, ``places`` their places by row,
    ``sketches`` [k] those of the updates by row; ``refused`` says why by node id.
    """

    sketch: SignSketch
    masks: Ring
    places: Mapping[int, int]
    refused: Mapping[int, str]
    sketches: Mapping[int, Ring]


class MaskedRound:
    """The updates of one round, of which nobody sees any.

    Implements :class:`~fedif_flower.round.HiddenUpdates`.
    """

    def __init__(
        self,
        masking: Masking,
        server_round: int,
        opened: _Opened,
        rows: Sequence[int],
        vectors: Sequence[Ring],
        lengths: NDArray[np.float64],
        dtype: torch.dtype,
    ) -> None:
        self._masking, self._round, self._opened = masking, server_round, opened
        self._vectors = vectors  # [d] each, of the m members that count.
        self._places = [opened.places[row] for row in rows]  # [m], among the keeper's n.
        self._sketches = decode(np.array([opened.sketches[row] for row in rows]), UPDATE_BITS)
        self._dtype = dtype  # Of steps.
        self._lengths = lengths  # [m], as stated.
        self._longest = lengths * (1 + length_tolerance(opened.sketch.size))  # As sketches allow.
        self._asked: list[tuple[Ring, Ring]] = []  # Each [d], and what the keeper said, [n].
        self._sum: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None

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
            return torch.zeros(len(self._vectors), dtype=torch.float64)
        keeper, run = self._masking.keeper, self._masking.run
        answer = keeper.products(run, self._round, encoded)
        _require_ring("products", answer, len(self._opened.masks), 1)
        own = np.array([products(row, encoded) for row in self._vectors])  # [m, 1]
        found = decode_products(own - answer[self._places], exponents)
        norm = np.array([np.linalg.norm(values)])
        if not are_possible(found, self._longest, norm).all():
            raise MaskingError("a product is larger than the member's update allows")
        self._asked.append((encoded[0], answer[:, 0]))
        return torch.from_numpy(found[:, 0])

    def cut(self, coefficients: Tensor) -> Tensor:
        """Return factors ``[m]`` with which the keeper's policy allows coefficients ``[m]``.

        Without, one member with a large share would end every round.
        """
        wanted = coefficients.detach().cpu().double().numpy()
        found = self._masking.keeper.policy().capped(wanted)
        if found is not wanted:
            logger.info("round %d: weights are cut to what the keeper answers", self._round)
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
            return torch.zeros(len(self._vectors[0]), dtype=self._dtype)
        if self._sum is None:
            self._sum = wanted, self._take(wanted)
        first, step = self._sum
        share = float(wanted.sum() / first.sum())
        if not np.allclose(wanted, share * first, rtol=1e-9, atol=0):
            raise MaskingError("a masked round has one sum: its weights cannot be changed")
        return torch.from_numpy(share * step).to(self._dtype)

    def _take(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Ask for the round's sum, and return the step ``[d]``."""
        opened, keeper = self._opened, self._masking.keeper
        of_all = np.zeros(len(opened.masks))  # [n]
        of_all[self._places] = weights
        shares, total = encode_weights(of_all)
        masks = keeper.weighted_sum(self._masking.run, self._round, shares)
        _require_ring("sum", masks, len(self._vectors[0]))
        vectors = np.array([vector for vector, _ in self._asked], np.uint64)
        answers = np.array([answer for _, answer in self._asked], np.uint64)
        d, n = len(self._vectors[0]), len(opened.masks)
        check_sum(
            masks,
            shares,
            opened.sketch,
            opened.masks,
            vectors.reshape(-1, d),
            answers.reshape(-1, n).T,
        )
        masked = np.zeros_like(masks)
        for vector, share in zip(self._vectors, shares[self._places], strict=True):
            if share:
                masked += vector * share
        step = decode_step(masked - masks, total)
        check_step(step, weights, self._longest)
        return step

    def sketched(self, basis: Tensor) -> tuple[Tensor, Tensor]:
        """Return roughly the inner products ``[m, m]`` and the coordinates ``[m, k]``.

        Lengths are those stated, cosines those of the sketches, a basis that of the sketches'
        basis: what is left of an update beside its coordinates has no negative square.
        """
        sketch, bits = self._opened.sketch, VECTOR_BITS
        theirs = [decode(sketch.of(encode(v, bits)), bits) for v in basis.cpu().double().numpy()]
        k = min(len(theirs), sketch.size)
        shares = np.zeros((len(self._sketches), len(theirs)))  # [m, k]
        if k:
            columns, triangle = np.linalg.qr(np.array(theirs[:k]).T)
            shares[:, :k] = self._sketches @ (columns * np.sign(np.diag(triangle)))
        found = np.linalg.norm(self._sketches, axis=1)  # [m]
        scale = np.divide(self._lengths, found, out=np.zeros_like(found), where=found > 0)
        gram = self._sketches @ self._sketches.T * np.outer(scale, scale)
        return torch.from_numpy(gram), torch.from_numpy(shares * scale[:, None])
