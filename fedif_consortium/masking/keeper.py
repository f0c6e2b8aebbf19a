"""The keeper: opens boxes, keeps seeds, and answers what its policy allows. No files, no network.

It holds m seeds of 32 bytes and the directions that it was asked about, and makes masks anew, one
after the other, for each answer: memory is O(d), whatever the number of members. A round that is
open lies in memory alone: it ends with the keeper's process, and the next one goes on. What counts
beyond a round is what the log says was answered.
"""

from __future__ import annotations

import hmac
import math
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from fedif_consortium.evidence.chained_log import ChainedLog, Entry
from fedif_consortium.evidence.keys import VerifyingKey, key_digest
from fedif_consortium.masking import ring
from fedif_consortium.masking.boxes import BoxHeader, header_for, open_box, trial_keys
from fedif_consortium.masking.policy import KeeperPolicy, allow
from fedif_consortium.masking.ring import Ring, SignSketch, mask_of
from fedif_flower.errors import KeeperError, ReplyError
from fedif_flower.words import listed

MOST_PARAMETERS = 200_000_000
MOST_MEMBERS = 10_000
MOST_REASONS = 3  # In a refusal; the log has all.
# It protects nobody, so a round that failed may be done again.
TRIAL_POLICY = KeeperPolicy(
    least_members=2, largest_share=1.0, least_effective_members=1.0, sums_of_a_model=1000
)


class _Travels(BaseModel):
    """What is sent to a keeper, or by it, as JSON."""

    model_config = ConfigDict(frozen=True, ser_json_bytes="base64", val_json_bytes="base64")


class RoundBoxes(_Travels):
    """A round's boxes by node id; ``length`` is d."""

    length: int = Field(ge=1, le=MOST_PARAMETERS)
    boxes: dict[int, bytes] = Field(max_length=MOST_MEMBERS)


class OpenedRound(_Travels):
    """Whose boxes the keeper opened, and the sketches of their masks.

    Attributes
    ----------
    nodes : tuple of int
        Node ids, in the order of all later answers' rows.
    refused : dict of int to str
        By node id, why a box was not opened.
    seed : bytes
        The keeper's own for :class:`~fedif_consortium.masking.ring.SignSketch`; it never changes.
    packed : bytes
        The sketches.
    """

    nodes: tuple[int, ...]
    refused: dict[int, str]
    seed: bytes = Field(min_length=ring.SEED_BYTES, max_length=ring.SEED_BYTES)
    packed: bytes

    @property
    def sketches(self) -> Ring:
        """The masks' sketches, ``[m, k]``."""
        return ring.to_ring(self.packed).reshape(len(self.nodes), -1)


@dataclass(repr=False)
class KeptRound:
    """What a keeper holds of an open round.

    Attributes
    ----------
    place : (int, int)
        Run and round.
    seeds : mapping of str to bytes
        The members' secrets by their names, in the order of all answers.
    models : mapping of str to bytes
        By name, the hash of the model that each trained from.
    sketch : SignSketch
        Sketches vectors of the round's length.
    vectors : list of ndarray
        ``[d]`` each, the vectors that the server asked about, without what the sketch tells of
        them.
    lengths : list of float
        Their lengths, with what the sketch tells.
    is_summed : bool
        Whether its one sum was asked for.
    """

    place: tuple[int, int]
    seeds: Mapping[str, bytes]
    models: Mapping[str, bytes]
    sketch: SignSketch
    vectors: list[NDArray[np.float64]] = field(default_factory=list)
    lengths: list[float] = field(default_factory=list)
    is_summed: bool = False

    def masks(self) -> Iterator[Ring]:
        """Make the members' masks ``[d]``, one after the other."""
        for seed in self.seeds.values():
            yield mask_of(seed, self.sketch.length)


class _OpenedBox(NamedTuple):
    """A box that the keeper opened: who sent it, what it is bound to, and the mask's seed."""

    node: int
    header: BoxHeader
    seed: bytes


class Keeper:
    """Answers a server. Not for several threads at a time.

    Every method raises KeeperError where there is no answer, or the policy forbids it.

    Parameters
    ----------
    policy : KeeperPolicy
        What it answers at most.
    members : mapping of str to public key
        Those it knows, by names of its own. A server that could invent members could subtract
        them.
    key : X25519PrivateKey
        Opens boxes.
    log : ChainedLog, optional
        Gets a line before each answer and each refusal. Where it cannot, nothing is answered, and
        nothing has changed.
    past : iterable of mapping
        The lines that the log has already, of an earlier keeper of the same key.
    """

    trial_secret = ""  # What all keys are made of, in a trial.

    def __init__(
        self,
        policy: KeeperPolicy,
        members: Mapping[str, VerifyingKey],
        key: X25519PrivateKey,
        log: ChainedLog | None = None,
        past: Iterable[Entry] = (),
    ) -> None:
        self.policy = policy
        self._key = key
        self._members = {key_digest(public): (name, public) for name, public in members.items()}
        # Always the same sums: a model that is trained again tells no others of an update.
        self._sign_seed = hmac.digest(key.private_bytes_raw(), b"fedif-flower signs 2", "sha256")
        self._round: KeptRound | None = None  # The one that is open.
        self.log = log or ChainedLog()
        self._last_rounds: dict[int, int] = {}  # By run, the last round that was opened.
        # Counted by what the server cannot invent: a member's key, a model's hash, our own day.
        self._vectors_of_day: Counter[tuple[str, str]] = Counter()  # By member and day.
        self._sums_of_model: Counter[tuple[str, str]] = Counter()  # By member and model.
        for entry in past:
            self._count(entry)

    @property
    def length(self) -> int:
        """The parameters d of the round that is open; 0 if none is."""
        return 0 if self._round is None else self._round.sketch.length

    def open_round(
        self, run: int, server_round: int, length: int, boxes: Mapping[int, bytes]
    ) -> OpenedRound:
        """Open a round's boxes, by node id, all at once; ``length`` is d.

        A round is opened once, and rounds of a run only in rising order. It ends the last one,
        whichever run that was of.
        """
        with self._logged("open", run, server_round) as entry:
            last = self._last_rounds.get(run, 0)
            request = f"round {server_round} of run {run} after round {last}"
            allow(server_round > last, "a round is opened once", request)
            opened, refused = self._open_boxes(run, server_round, length, boxes)
            for name in _told_unlike_most(opened):
                node = opened.pop(name).node
                refused[node] = "the member got another model or other settings than most"
            entry["members"] = list(opened)
            entry["length"] = length
            entry["refused"] = {str(node): reason for node, reason in refused.items()}
            self._require_members(len(opened), refused)
            new_round = KeptRound(
                place=(run, server_round),
                seeds={name: box.seed for name, box in opened.items()},
                models={name: box.header.model for name, box in opened.items()},
                sketch=SignSketch(self._sign_seed, self.policy.sketch_for(length), length),
            )
            sketches = np.array([new_round.sketch.of(mask) for mask in new_round.masks()])
            entry["answer"] = ring.digest(sketches).hex()
        # Only now that the log has the answer: what cannot be logged changes nothing.
        self._round = new_round
        return OpenedRound(
            nodes=tuple(box.node for box in opened.values()),
            refused=refused,
            seed=self._sign_seed,
            packed=ring.to_bytes(sketches),
        )

    def _open_boxes(
        self, run: int, server_round: int, length: int, boxes: Mapping[int, bytes]
    ) -> tuple[dict[str, _OpenedBox], dict[int, str]]:
        """Return the boxes that could be opened, by member, and why others could not, by node."""
        opened: dict[str, _OpenedBox] = {}
        refused: dict[int, str] = {}
        for node, box in boxes.items():
            try:
                header = header_for(box, run, server_round, node, length)
                name, public_key = self._member(header)
                if name in opened:
                    raise ReplyError(f"the box is the second one of {name}")
                seed = open_box(box, public_key, self._key)
                opened[name] = _OpenedBox(node, header, seed)
            except ReplyError as error:
                refused[node] = str(error)
        return opened, refused

    def products(self, run: int, server_round: int, vector: Ring) -> Ring:
        """Return the masks' products ``[m]`` with a vector ``[d]``."""
        with self._logged("products", run, server_round) as entry:
            current = self._require_open(run, server_round)
            entry["vectors"] = [ring.digest(vector).hex()]
            entry["members"] = list(current.seeds)
            signed_vector = vector.view(np.int64).astype(np.float64)
            norm = float(np.linalg.norm(signed_vector))
            # A longer one would wrap, and a combination modulo 2**64 could be what none is without.
            longest = 2.0**ring.VECTOR_BITS + math.sqrt(self.length)
            allow(norm <= longest, "a vector has a length of 1 at most", "a longer one")
            vectors = [*current.vectors, current.sketch.without(signed_vector)]
            lengths = [*current.lengths, norm]
            self.policy.check_vectors(np.array(vectors), np.array(lengths))
            today = _day(entry)
            most_vectors = max(self._vectors_of_day[name, today] for name in current.seeds)
            self.policy.check_known(most_vectors + 1, self.length)
            answer = ring.rounded(ring.products(vector, current.masks()))
            entry["answer"] = ring.digest(answer).hex()
        # Only now that the log has the answer: what cannot be logged changes nothing.
        current.vectors = vectors
        current.lengths = lengths
        return answer

    def weighted_sum(self, run: int, server_round: int, weights: Ring) -> Ring:
        """Return the sum ``[d]`` of the masks times weights ``[m]``; a round has one."""
        with self._logged("sum", run, server_round) as entry:
            current = self._require_open(run, server_round)
            allow(len(weights) == len(current.seeds), "a weight for each member", str(len(weights)))
            entry["weights"] = weights.tolist()
            self.policy.check_weights(weights, list(current.seeds))
            allow(not current.is_summed, "a round has one sum", "two")
            models = {}  # Of the members who are in the sum.
            for (name, model), weight in zip(current.models.items(), weights, strict=True):
                if weight:
                    models[name] = model.hex()
                    self.policy.check_sums(self._sums_of_model[name, models[name]] + 1, name)
            entry["models"] = models
            total = np.zeros(self.length, np.uint64)
            for mask, weight in zip(current.masks(), weights, strict=True):
                total += mask * weight
            answer = ring.rounded(total)
            entry["answer"] = ring.digest(answer).hex()
        current.is_summed = True
        return answer

    def close(self) -> str:
        """Delete the seeds of the round that is open; return the log's last hash, in hex."""
        if self._round is not None:
            with self._logged("close", *self._round.place):
                pass  # There is nothing to compute.
            self._round = None
        return self.log.head

    def _require_members(self, count: int, refused: Mapping[int, str]) -> None:
        """Raise KeeperError unless a round has enough members, with why boxes were not opened."""
        try:
            self.policy.check_members(count)
        except KeeperError as error:
            if not refused:
                raise
            reasons = [f"node {node}: {reason}" for node, reason in refused.items()]
            not_opened = listed(reasons, most=MOST_REASONS)
            raise KeeperError(f"{error}; not opened: {not_opened}") from error

    def _member(self, header: BoxHeader) -> tuple[str, VerifyingKey]:
        """Return the name and the key of who says that a box is its own."""
        if header.signer not in self._members:
            raise ReplyError("the keeper knows no member with this key")
        return self._members[header.signer]

    def _require_open(self, run: int, server_round: int) -> KeptRound:
        """Return the round that is open, or raise KeeperError where it is another one."""
        if self._round is None or self._round.place != (run, server_round):
            raise KeeperError(f"the keeper keeps no round {server_round} of run {run}")
        return self._round

    def _count(self, entry: Mapping[str, Any]) -> None:
        """Remember what a line of the log says was answered."""
        asked = entry["asked"]
        if "answer" not in entry:
            return
        if asked == "open":
            self._last_rounds[entry["run"]] = entry["round"]
        elif asked == "products":
            for name in entry.get("members", ()):
                self._vectors_of_day[name, _day(entry)] += len(entry["vectors"])
        elif asked == "sum":
            for name, model in entry.get("models", {}).items():
                self._sums_of_model[name, model] += 1

    @contextmanager
    def _logged(self, asked: str, run: int, server_round: int) -> Iterator[dict[str, Any]]:
        """Write what was asked into the log, with the answer's digest or why there is none."""
        entry: dict[str, Any] = {"asked": asked, "run": run, "round": server_round}
        entry["time"] = round(time.time(), 3)
        try:
            yield entry
        except BaseException as error:
            entry["refusal"] = str(error)
            raise
        finally:
            self.log.append(entry)
            self._count(entry)


def _told_unlike_most(opened: Mapping[str, _OpenedBox]) -> list[str]:
    """Return the names of members who got another model or other settings than most.

    Why they cannot stay: a member who alone got a model that can be trained would be alone in the
    sum.
    """
    counts = Counter(box.header.instructions for box in opened.values())
    if not counts:
        return []
    [(most_frequent, _)] = counts.most_common(1)
    return [name for name, box in opened.items() if box.header.instructions != most_frequent]


def _day(entry: Mapping[str, Any]) -> str:
    """Return the day, in UTC, on which a line was written by this keeper's clock."""
    return f"{datetime.fromtimestamp(entry['time'], UTC):%F}"


class TrialKeeper(Keeper):
    """A keeper in the server's own process, whose members have one key between them."""

    def __init__(self) -> None:
        self.trial_secret = secrets.token_hex(32)
        opening_key, members_key = trial_keys(self.trial_secret)
        super().__init__(TRIAL_POLICY, {}, opening_key)
        self._public_key = members_key.public_key()

    def _member(self, header: BoxHeader) -> tuple[str, VerifyingKey]:
        return f"node {header.node}", self._public_key
