"""Masked rounds: replies are vectors of a ring, of which the server sees products and one sum."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from fedif_consortium.masking.boxes import (
    BOX,
    LENGTH,
    MASK_RECORD,
    VECTOR,
    MaskingTerms,
    header_for,
    vector_digest,
)
from fedif_consortium.masking.keeper import Keeper, TrialKeeper
from fedif_consortium.masking.keeper_client import HttpKeeper
from fedif_consortium.masking.masked_round import MaskedRound, are_lengths_true
from fedif_consortium.masking.ring import LONGEST, UPDATE_BITS, Ring, decode
from fedif_consortium.masking.sketches import SignSketch, estimated_lengths
from fedif_flower.errors import BoxError, ConfigError, KeeperError, ReplyError
from fedif_flower.local_methods import LocalMethod
from fedif_flower.messages.arrays import ArraySpec, arrays_of, is_statistic
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.messages.layout import ParameterLayout, UnpackedUpdate
from fedif_flower.messages.screening import AcceptedReply, Arrive, Workspace, empty_rows
from fedif_flower.round import ModelVectors, RoundUpdates
from fedif_flower.strategies.base import ScreenedStrategy

_ROUNDING = 1e-6  # Of a length, by which the ring may make it longer.
# Of a trained parameter: its masked reply, 8 bytes each, must not be taken for a flood.
_LEAST_BYTES = 4


@dataclass(frozen=True)
class Masking:
    """Who keeps the masks of a run: the ``intake`` of a strategy that sees no update.

    Attributes
    ----------
    keeper : Keeper or HttpKeeper
        Answers for the masks.
    trial_keeper, trial_secret : str
        See :class:`~fedif_consortium.masking.boxes.MaskingTerms`.
    run : int
        What the keeper knows the run by.
    """

    keeper: Keeper | HttpKeeper
    trial_keeper: str = ""
    trial_secret: str = field(default="", repr=False)
    run: int = field(default_factory=lambda: secrets.randbits(63), repr=False)

    def require(self, strategy: ScreenedStrategy, initial_arrays: ArrayRecord) -> None:
        """Raise ConfigError where updates, or more than parameters, would have to be seen."""
        name, method = type(strategy).__name__, type(strategy.setup.local_method)
        obstacles = [
            "" if strategy.can_mask else f"{name} weighs by the updates themselves",
            strategy.stages.needs_sight(),
            *(callback.needs_sight(strategy) for callback in strategy.callbacks),
        ]
        if method is not LocalMethod:
            obstacles.append(f"members train by SGD alone, not by {method.__name__}")
        if strategy.setup.pace.late_rounds:
            obstacles.append("late replies cannot be discounted; late_rounds = 0 is needed")
        for key, array in initial_arrays.items():
            if is_statistic(key):
                obstacles.append(f"{key!r} is a statistic, which no mask covers")
            elif array.dtype.startswith("float") and np.dtype(array.dtype).itemsize < _LEAST_BYTES:
                obstacles.append(f"{key!r} is of {array.dtype}: masked replies need float32")
        if found := next(filter(None, obstacles), ""):
            raise ConfigError(f"masking: {found}")

    def workspace(self, layout: ParameterLayout, max_length: float) -> MaskedWorkspace:
        """Return what takes in a round's masked replies."""
        return MaskedWorkspace(layout, self, max_length)


def trial_masking() -> Masking:
    """Return masks for trial, with keys made for this run."""
    secret, key = secrets.token_hex(32), X25519PrivateKey.generate()
    return Masking(TrialKeeper(secret, key), key.public_key().public_bytes_raw().hex(), secret)


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
        self._place = masking.run, 0  # And round.
        self._rows: Sequence[int] = ()
        # Of the masks that were opened: how they are sketched, their sketches and those of the
        # updates, and their rows.
        self._opened: tuple[SignSketch, Ring, Ring, list[int]] | KeeperError

    def instruct(self, config: ConfigRecord, server_round: int) -> None:
        """Send the round's terms."""
        self._place = self._masking.run, server_round
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
        self._boxes, self._rows, self._opened = {}, (), KeeperError("the keeper has opened no box")

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
        try:
            header = header_for(box, *self._place, node.node_id, self.layout.num_params)
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
        boxes, d = {node: self._boxes[row] for node, row in rows.items()}, self.layout.num_params
        try:
            answer = self._masking.keeper.open_round(*self._place, d, boxes)
        except KeeperError as error:
            self._opened = error
            return {}
        kept, masks = [rows[node] for node in answer.nodes], answer.sketches
        sketch = SignSketch(answer.seed, masks.shape[1], d)
        sketches = np.array([sketch.of(self._vectors[row]) for row in kept]) - masks
        self._opened = sketch, masks, sketches, kept
        refused = {rows[node]: f"the keeper: {reason}" for node, reason in answer.refused.items()}
        estimated = estimated_lengths(sketches)
        stated = np.array([math.sqrt(accepted[row].squared_norm) for row in kept])
        for place in np.flatnonzero(~are_lengths_true(stated, estimated, sketch.size)):
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
        if isinstance(self._opened, KeeperError):
            raise self._opened
        sketch, masks, sketches, kept = self._opened
        places = [kept.index(row) for row in self._rows]
        hidden = MaskedRound(
            self._masking.keeper,
            self._place,
            sketch,
            masks,
            places,
            [self._vectors[row] for row in self._rows],
            decode(sketches[places], UPDATE_BITS),
            updates.squared_norms.sqrt().numpy(),
            self.layout.dtype,
        )
        return replace(updates, hidden=hidden)
