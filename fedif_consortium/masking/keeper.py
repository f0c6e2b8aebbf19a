"""The keeper: opens boxes, keeps seeds, and answers what its policy allows. No files, no network.

It holds m seeds of 32 bytes and the directions that it was asked about, and makes masks anew, one
after the other, for each answer: memory is O(d), whatever the number of members. A round that is
open lies in memory alone: it ends with the keeper's process, and the next one goes on. What counts
beyond a round is what the log says was answered.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from annotated_types import Len
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from fedif_consortium.evidence.chained_log import ChainedLog, Entry
from fedif_consortium.evidence.keys import VerifyingKey, key_digest
from fedif_consortium.masking.boxes import (
    BoxHeader,
    header_for,
    open_box,
    read_header,
    trial_key,
    vector_digest,
)
from fedif_consortium.masking.policy import KeeperPolicy, allow
from fedif_consortium.masking.ring import (
    SEED_BYTES,
    VECTOR_BITS,
    Ring,
    mask_of,
    products,
    rounded,
    to_bytes,
    to_ring,
)
from fedif_consortium.masking.sketches import SignSketch
from fedif_flower.errors import BoxError, KeeperError

MOST_PARAMETERS, MOST_MEMBERS = 200_000_000, 10_000
# What a keeper beside the server guards against is the server itself: it may ask what it likes.
TRIAL_POLICY = KeeperPolicy(
    least_members=2,
    largest_share=1.0,
    least_effective_members=1.0,
    largest_entry=1.0,
    largest_known_share=1e9,
)


class _Travels(BaseModel):
    """What is sent to a keeper, or by it, as JSON."""

    model_config = ConfigDict(frozen=True, ser_json_bytes="base64", val_json_bytes="base64")


class RoundBoxes(_Travels):
    """A round's boxes by node id; ``length`` is d."""

    length: int
    boxes: dict[int, bytes]


class OpenedRound(_Travels):
    """Whose boxes the keeper opened, and the sketches of their masks.

    Attributes
    ----------
    nodes : tuple of int
        Node ids, in the order of all later answers' rows.
    refused : dict of int to str
        By node id, why a box was not opened.
    seed : bytes
        Of :class:`~fedif_consortium.masking.sketches.SignSketch`: the keeper's own, always one.
    packed : bytes
        The sketches.
    """

    nodes: tuple[int, ...]
    refused: dict[int, str]
    seed: Annotated[bytes, Len(SEED_BYTES, SEED_BYTES)]
    packed: bytes

    @property
    def sketches(self) -> Ring:
        """Of the masks, ``[m, k]``."""
        return to_ring(self.packed).reshape(len(self.nodes), -1)


@dataclass
class KeptRound:
    """What a keeper holds of an open round.

    Attributes
    ----------
    place : (int, int)
        Run and round.
    seeds : mapping of str to bytes
        The members' secrets by their names, in the order of all answers.
    sketch : SignSketch
        Of vectors of this length.
    vectors : ndarray
        ``[j, d]``, those asked about, without what the sketch tells of them.
    lengths : list of float
        Their own lengths.
    is_summed : bool
        Whether its one sum was asked for.
    """

    place: tuple[int, int]
    seeds: Mapping[str, bytes] = field(repr=False)
    sketch: SignSketch
    vectors: NDArray[np.float64] = field(repr=False)
    lengths: list[float] = field(default_factory=list)
    is_summed: bool = False


class Keeper:
    """Answers a server. Not for several threads at a time.

    Every method raises KeeperError where there is no answer, and RefusedByPolicyError, a
    KeeperError, where the policy forbids it.

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

    def __init__(
        self,
        policy: KeeperPolicy,
        members: Mapping[str, VerifyingKey],
        key: X25519PrivateKey,
        log: ChainedLog | None = None,
        past: Iterable[Entry] = (),
    ) -> None:
        self._policy = policy
        self._members = {key_digest(public): (name, public) for name, public in members.items()}
        self._key = key
        # Always the same sums: a model that is trained again tells no others of an update.
        derive = HKDF(hashes.SHA256(), SEED_BYTES, None, b"fedif-flower signs 1")
        self._sign_seed = derive.derive(key.private_bytes_raw())
        self._round: KeptRound | None = None  # That is open.
        self.log = log or ChainedLog()
        self._last_rounds: dict[int, int] = {}  # By run: that was opened,
        self._asked: Counter[int] = Counter()  # and how many vectors its rounds asked about.
        for entry in past:
            self._count(entry)

    def policy(self) -> KeeperPolicy:
        """Return the limits."""
        return self._policy

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
            asked = f"round {server_round} of run {run} after round {last}"
            allow(server_round > last, "a round is opened once", asked)
            is_small = 1 <= length <= MOST_PARAMETERS and len(boxes) <= MOST_MEMBERS
            line = f"at most {MOST_PARAMETERS} parameters and {MOST_MEMBERS} members"
            allow(is_small, line, f"{length}, {len(boxes)}")
            self._policy.check_members(len(boxes))
            seeds: dict[str, bytes] = {}
            nodes, refused = [], {}
            instructions = _of_most(boxes.values())
            for node, box in boxes.items():
                try:
                    header = header_for(box, run, server_round, node, length)
                    name, public = self._member(header)
                    # A member who alone got a model that can be trained would be alone in the sum.
                    if header.instructions != instructions:
                        raise BoxError("the member got another model or other settings than most")
                    if name in seeds:
                        raise BoxError(f"the box is the second one of {name}")
                    seeds[name] = open_box(box, public, self._key)
                    nodes.append(node)
                except BoxError as error:
                    refused[node] = str(error)
            entry |= {"members": [*seeds], "length": length, "refused": [*refused.values()]}
            self._policy.check_members(len(seeds))
            sketch = SignSketch(self._sign_seed, self._policy.sketch_for(length), length)
            found = np.array([sketch.of(mask_of(seed, length)) for seed in seeds.values()])
            entry["answer"] = vector_digest(found).hex()
        self._round = KeptRound((run, server_round), seeds, sketch, np.empty((0, length)))
        seed, packed = self._sign_seed, to_bytes(found)
        return OpenedRound(nodes=tuple(nodes), refused=refused, seed=seed, packed=packed)

    def products(self, run: int, server_round: int, vectors: Ring) -> Ring:
        """Return the masks' products ``[m, j]`` with vectors ``[j, d]``."""
        with self._logged("products", run, server_round) as entry:
            kept = self._find(run, server_round)
            entry["vectors"] = [vector_digest(vector).hex() for vector in vectors]
            numbers = vectors.view(np.int64).astype(np.float64)
            lengths = [*kept.lengths, *np.linalg.norm(numbers, axis=1)]
            # A longer one would wrap, and a combination modulo 2**64 could be what none is without.
            longest = 2.0**VECTOR_BITS + math.sqrt(self.length)
            allow(max(lengths) <= longest, "vectors have a length of 1 at most", "a longer one")
            all_of_round = np.array([*kept.vectors, *map(kept.sketch.without, numbers)])
            self._policy.check_vectors(all_of_round, np.array(lengths))
            self._policy.check_known(self._asked[run] + len(vectors), self.length)
            kept.vectors, kept.lengths = all_of_round, lengths
            masks = (mask_of(seed, self.length) for seed in kept.seeds.values())
            answer = rounded(np.array([products(mask, vectors) for mask in masks]))
            entry["answer"] = vector_digest(answer).hex()
        return answer

    def weighted_sum(self, run: int, server_round: int, weights: Ring) -> Ring:
        """Return the sum ``[d]`` of the masks times weights ``[m]``; a round has one."""
        with self._logged("sum", run, server_round) as entry:
            kept = self._find(run, server_round)
            if len(weights) != len(kept.seeds):
                raise KeeperError(f"{len(weights)} weights for {len(kept.seeds)} members")
            entry["weights"] = weights.tolist()
            self._policy.check_weights(weights, [*kept.seeds])
            allow(not kept.is_summed, "a round has one sum", "two")
            kept.is_summed = True
            total = np.zeros(self.length, np.uint64)
            for seed, weight in zip(kept.seeds.values(), weights, strict=True):
                total += mask_of(seed, self.length) * weight
            total = rounded(total)
            entry["answer"] = vector_digest(total).hex()
        return total

    def close_round(self, run: int, server_round: int) -> str:
        """Delete the round's seeds; return the log's last hash, in hex."""
        if self._round is not None and self._round.place == (run, server_round):
            with self._logged("close", run, server_round):
                self._round = None
        return self.log.head

    def _member(self, header: BoxHeader) -> tuple[str, VerifyingKey]:
        """Return the name and the key of who says that a box is its own."""
        if header.signer not in self._members:
            raise BoxError("the keeper knows no member with this key")
        return self._members[header.signer]

    def _find(self, run: int, server_round: int) -> KeptRound:
        if self._round is None or self._round.place != (run, server_round):
            raise KeeperError(f"the keeper keeps no round {server_round} of run {run}")
        return self._round

    def _count(self, entry: Mapping[str, Any]) -> None:
        """Remember what a line of the log says was answered."""
        if "answer" in entry:
            self._asked[entry["run"]] += len(entry.get("vectors", ()))
            if entry["asked"] == "open":
                self._last_rounds[entry["run"]] = entry["round"]

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


class TrialKeeper(Keeper):
    """A keeper in the server's own process, whose members' keys are made of one secret."""

    def __init__(self, secret: str, key: X25519PrivateKey) -> None:
        super().__init__(TRIAL_POLICY, {}, key)
        self._secret = secret

    def _member(self, header: BoxHeader) -> tuple[str, VerifyingKey]:
        return f"node {header.node}", trial_key(self._secret, header.node).public_key()


def _of_most(boxes: Iterable[bytes]) -> bytes:
    """Return the digest of what the server sent to most of the members."""
    counts: Counter[bytes] = Counter()
    for box in boxes:
        with suppress(BoxError):
            counts[read_header(box).instructions] += 1
    return counts.most_common(1)[0][0] if counts else b""
