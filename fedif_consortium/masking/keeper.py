"""The keeper opens boxes, keeps seeds, and gives the answers that its policy allows.

It holds m seeds of 32 bytes and the few vectors that it was asked about. For each answer it makes
the masks anew, one after the other, so that it needs O(d) memory for any number of members. A round
that is open is only in memory: if the keeper's process ends, the round is lost, and the run goes on
with the next one. Counts that outlive a round follow from the answers in the log.

This module uses no files and no network, see :mod:`~fedif_consortium.masking.keeper_service`.
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
MOST_REASONS = 3  # The most reasons in a refusal; the log has all.
# A trial protects nobody. So its limits are wide, and a round that failed may be done again.
TRIAL_POLICY = KeeperPolicy(
    least_members=2, largest_share=1.0, least_effective_members=1.0, sums_of_a_model=1000
)


class _Travels(BaseModel):
    """A message to a keeper or from it, which travels as JSON."""

    model_config = ConfigDict(frozen=True, ser_json_bytes="base64", val_json_bytes="base64")


class RoundBoxes(_Travels):
    """A round's boxes by node id, and the number d of its model's parameters as ``length``."""

    length: int = Field(ge=1, le=MOST_PARAMETERS)
    boxes: dict[int, bytes] = Field(max_length=MOST_MEMBERS)


class OpenedRound(_Travels):
    """The keeper's answer when it has opened a round's boxes.

    Attributes
    ----------
    nodes : tuple of int
        The node ids of the m members whose boxes it opened. All later answers have this order.
    refused : dict of int to str
        By node id, why the keeper leaves a member out.
    seed : bytes
        The seed of :class:`~fedif_consortium.masking.ring.SignSketch`. A keeper always has the
        same.
    packed : bytes
        The sketches of the masks, see :attr:`sketches`.
    """

    nodes: tuple[int, ...]
    refused: dict[int, str]
    seed: bytes = Field(min_length=ring.SEED_BYTES, max_length=ring.SEED_BYTES)
    packed: bytes

    @property
    def sketches(self) -> Ring:
        """The sketches ``[m, k]`` of the masks."""
        return ring.to_ring(self.packed).reshape(len(self.nodes), -1)


@dataclass(repr=False)
class KeptRound:
    """What a keeper holds of an open round.

    Attributes
    ----------
    place : (int, int)
        Run and round.
    seeds : mapping of str to bytes
        The seeds of the masks by the members' names, in the order of all answers.
    models : mapping of str to bytes
        By the members' names, the hash of the model from which each began to train.
    sketch : SignSketch
        The sketch for vectors of the round's length d.
    vectors : list of ndarray
        ``[d]`` each: the vectors for which the server asked products, without their parts in the
        span of the sketch's sums.
    lengths : list of float
        The lengths of the whole vectors.
    is_summed : bool
        Whether the round's one sum was answered.
    """

    place: tuple[int, int]
    seeds: Mapping[str, bytes]
    models: Mapping[str, bytes]
    sketch: SignSketch
    vectors: list[NDArray[np.float64]] = field(default_factory=list)
    lengths: list[float] = field(default_factory=list)
    is_summed: bool = False

    def masks(self) -> Iterator[Ring]:
        """Yield the members' masks ``[d]``, which are made one after the other to save memory."""
        for seed in self.seeds.values():
            yield mask_of(seed, self.sketch.length)


class _OpenedBox(NamedTuple):
    """An opened box: the node that sent it, its header, and the seed of the mask."""

    node: int
    header: BoxHeader
    seed: bytes


class Keeper:
    """Answers a server's questions about masks. It is not safe for threads.

    Every method raises KeeperError if the question makes no sense, or the policy forbids an answer.

    Parameters
    ----------
    policy : KeeperPolicy
        The limits of its answers.
    members : mapping of str to public key
        The members that it knows, by names of its own. If the server could invent members, it
        could subtract their updates from a sum.
    key : X25519PrivateKey
        Opens boxes.
    log : ChainedLog, optional
        Gets a line before each answer and each refusal. If the line cannot be written, the keeper
        does not answer, and its state does not change.
    past : iterable of mapping
        The log's entries so far, which earlier processes of this keeper wrote.
    """

    trial_secret = ""  # In a trial, the secret from which all keys are made.

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
        # The sketch always has the same sums. With other sums each time, a server could have a
        # model trained again, and would learn more numbers about the same update.
        self._sign_seed = hmac.digest(key.private_bytes_raw(), b"fedif-flower signs 2", "sha256")
        self._round: KeptRound | None = None  # The round that is open.
        self.log = log or ChainedLog()
        self._last_rounds: dict[int, int] = {}  # By run, the last round that was opened.
        # The keys are things that the server cannot invent: a member that signs, the hash of its
        # model, and the day by the keeper's clock. The values are counts.
        self._vectors_of_day: Counter[tuple[str, str]] = Counter()  # By member and day.
        self._sums_of_model: Counter[tuple[str, str]] = Counter()  # By member and model.
        for entry in past:
            self._count_answer(entry)

    @property
    def length(self) -> int:
        """The number d of parameters of the round that is open; 0 if none is open."""
        return 0 if self._round is None else self._round.sketch.length

    def open_round(
        self, run: int, server_round: int, length: int, boxes: Mapping[int, bytes]
    ) -> OpenedRound:
        """Open all boxes of a round at once; the round that was open before ends.

        A round is opened once, and the rounds of a run only in rising order.

        Parameters
        ----------
        run, server_round : int
            Run and round.
        length : int
            The number d of parameters.
        boxes : mapping of int to bytes
            The boxes by node id.
        """
        with self._logged("open", run, server_round) as entry:
            last = self._last_rounds.get(run, 0)
            request = f"round {server_round} of run {run} after round {last}"
            allow(server_round > last, "a round is opened once", request)
            opened, refused = self._open_boxes(run, server_round, length, boxes)
            # Leave these members out before the rest is counted for least-members.
            for name in _told_unlike_most(opened):
                node = opened.pop(name).node
                refused[node] = "the member got another model or other settings than most"
            entry["members"] = list(opened)
            entry["length"] = length
            entry["refused"] = {str(node): reason for node, reason in refused.items()}
            self._require_members(len(opened), refused)
            # The sketch is told at once, so it has to be allowed with what is known of today.
            self.policy.check_known(self._most_vectors(opened, _day(entry)), length)
            new_round = KeptRound(
                place=(run, server_round),
                seeds={name: box.seed for name, box in opened.items()},
                models={name: box.header.model for name, box in opened.items()},
                sketch=SignSketch(self._sign_seed, self.policy.sketch_for(length), length),
            )
            sketches = np.array([new_round.sketch.of(mask) for mask in new_round.masks()])
            entry["answer"] = ring.digest(sketches).hex()
        # After the log: if its line cannot be written, nothing changes.
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
        """Return the opened boxes by the members' names, and why others are refused by node id."""
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
        """Return the inner products ``[m]`` of the masks with a vector ``[d]``, rounded."""
        with self._logged("products", run, server_round) as entry:
            current = self._require_open(run, server_round)
            entry["vectors"] = [ring.digest(vector).hex()]
            entry["members"] = list(current.seeds)
            signed_vector = vector.view(np.int64).astype(np.float64)
            norm = float(np.linalg.norm(signed_vector))
            # Products with longer vectors could wrap around. A combination of such products modulo
            # 2**64 could tell what no combination of true products tells.
            longest = 2.0**ring.VECTOR_BITS + math.sqrt(self.length)
            length = f"a length of {norm / 2.0**ring.VECTOR_BITS:.6g}"
            allow(norm <= longest, "a vector has a length of 1 at most", length)
            vectors = [*current.vectors, current.sketch.without(signed_vector)]
            lengths = [*current.lengths, norm]
            self.policy.check_vectors(np.array(vectors), np.array(lengths))
            most_vectors = self._most_vectors(current.seeds, _day(entry))
            self.policy.check_known(most_vectors + 1, self.length)
            answer = ring.rounded(ring.products(vector, current.masks()))
            entry["answer"] = ring.digest(answer).hex()
        # After the log: if its line cannot be written, nothing changes.
        current.vectors = vectors
        current.lengths = lengths
        return answer

    def weighted_sum(self, run: int, server_round: int, weights: Ring) -> Ring:
        """Return the sum ``[d]`` of the masks times weights ``[m]``, rounded; a round has one sum.

        ``weights`` are as :func:`~fedif_consortium.masking.ring.encode_weights` returns them.
        """
        with self._logged("sum", run, server_round) as entry:
            current = self._require_open(run, server_round)
            allow(len(weights) == len(current.seeds), "a weight for each member", str(len(weights)))
            entry["weights"] = weights.tolist()
            self.policy.check_weights(weights, list(current.seeds))
            allow(not current.is_summed, "a round has one sum", "two")
            models = {}  # The hashes of the models of the members in the sum, by name.
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
                pass  # Only the line in the log is needed.
            self._round = None
        return self.log.head

    def _require_members(self, count: int, refused: Mapping[int, str]) -> None:
        """Raise KeeperError unless a round has enough members.

        The message has the first reasons why others were refused.
        """
        try:
            self.policy.check_members(count)
        except KeeperError as error:
            if not refused:
                raise
            reasons = [f"node {node}: {reason}" for node, reason in refused.items()]
            not_opened = listed(reasons, most=MOST_REASONS)
            raise KeeperError(f"{error}; not opened: {not_opened}") from error

    def _member(self, header: BoxHeader) -> tuple[str, VerifyingKey]:
        """Return name and key of the member that a box names as its signer, or raise ReplyError."""
        if header.signer not in self._members:
            raise ReplyError("the keeper knows no member with this key")
        return self._members[header.signer]

    def _require_open(self, run: int, server_round: int) -> KeptRound:
        """Return the open round; raise KeeperError unless it is this round of this run."""
        if self._round is None or self._round.place != (run, server_round):
            raise KeeperError(
                f"round {server_round} of run {run} is not open: it was refused, another round was "
                "opened since, or the keeper was restarted"
            )
        return self._round

    def _most_vectors(self, names: Iterable[str], day: str) -> int:
        """Return the largest number of vectors that any of these members' masks met on a day."""
        return max(self._vectors_of_day[name, day] for name in names)

    def _count_answer(self, entry: Mapping[str, Any]) -> None:
        """Count the answer in a line of the log, if the line has one."""
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
        """Write a line into the log when the block ends, and count its answer.

        The block fills the yielded entry, its ``"answer"`` last. If the block fails, the line says
        why. If the line cannot be written, that error replaces the answer.
        """
        entry: dict[str, Any] = {"asked": asked, "run": run, "round": server_round}
        entry["time"] = round(time.time(), 3)
        try:
            yield entry
        except BaseException as error:
            entry["refusal"] = str(error)
            raise
        finally:
            self.log.append(entry)
            self._count_answer(entry)


def _told_unlike_most(opened: Mapping[str, _OpenedBox]) -> list[str]:
    """Return the names of the members that got another model or other settings than most.

    These members are left out. Otherwise a server could send one member a model that can be
    trained, and all others a model that gives no update. The sum would then be this one's update.
    """
    counts = Counter(box.header.instructions for box in opened.values())
    if not counts:
        return []
    [(most_frequent, _)] = counts.most_common(1)
    return [name for name, box in opened.items() if box.header.instructions != most_frequent]


def _day(entry: Mapping[str, Any]) -> str:
    """Return the day in UTC, by the keeper's clock, on which a line of the log was written."""
    return f"{datetime.fromtimestamp(entry['time'], UTC):%F}"


class TrialKeeper(Keeper):
    """A keeper in the server's own process, for trials; all members share one key."""

    def __init__(self) -> None:
        self.trial_secret = secrets.token_hex(32)
        opening_key, members_key = trial_keys(self.trial_secret)
        super().__init__(TRIAL_POLICY, {}, opening_key)
        self._public_key = members_key.public_key()

    def _member(self, header: BoxHeader) -> tuple[str, VerifyingKey]:
        return f"node {header.node}", self._public_key
