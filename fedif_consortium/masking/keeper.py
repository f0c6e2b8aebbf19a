"""The keeper: opens boxes, keeps seeds, and answers what its policy allows. No files, no network.

It holds m seeds of 32 bytes and the directions that it was asked about, and makes masks anew, one
after the other, for each answer: memory is O(d), whatever the number of members. A round that is
open lies in memory alone: it ends with the keeper's process, and the next one goes on.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from fedif_consortium.evidence.chained_log import ChainedLog
from fedif_consortium.evidence.keys import VerifyingKey, key_digest
from fedif_consortium.masking.boxes import (
    KeeperKey,
    check_signature,
    header_for,
    open_box,
    read_header,
    vector_digest,
)
from fedif_consortium.masking.interface import OpenedRound
from fedif_consortium.masking.policy import KeeperPolicy, allow
from fedif_consortium.masking.products import longest_vector, products, rounded
from fedif_consortium.masking.ring import SEED_BYTES, Ring, mask_of, to_bytes
from fedif_consortium.masking.sketches import SignSketch
from fedif_flower.errors import BoxError, KeeperError

MOST_PARAMETERS, MOST_MEMBERS = 200_000_000, 10_000


@dataclass
class KeptRound:
    """What a keeper holds of an open round.

    Attributes
    ----------
    run, server_round : int
        Which round.
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

    run: int
    server_round: int
    seeds: Mapping[str, bytes] = field(repr=False)
    sketch: SignSketch
    vectors: NDArray[np.float64] = field(repr=False)
    lengths: list[float] = field(default_factory=list)
    is_summed: bool = False


class KeeperState(BaseModel):
    """What a keeper remembers beyond a round, and beyond its process.

    Attributes
    ----------
    last_rounds : dict of int to int
        By run, the last round that was opened.
    vectors : dict of int to int
        By run, how many vectors its rounds asked about.
    """

    model_config = ConfigDict(frozen=True)
    last_rounds: dict[int, int] = {}
    vectors: dict[int, int] = {}


class Keeper:
    """Answers a server; a :class:`~fedif_consortium.masking.interface.MaskKeeper`.

    Not for several threads at a time.

    Parameters
    ----------
    policy : KeeperPolicy
        What it answers at most.
    members : mapping of str to public key
        Those it knows, by names of its own. A server that could invent members could subtract
        them.
    key : KeeperKey
        Opens boxes.
    state : KeeperState, optional
        What an earlier keeper of the same key remembered.
    save : callable
        Is given a state before anything is answered that it has to remember; an error of it is
        the caller's, and nothing has changed.
    log : ChainedLog, optional
        Gets a line before each answer and each refusal.
    """

    def __init__(
        self,
        policy: KeeperPolicy,
        members: Mapping[str, VerifyingKey],
        key: KeeperKey,
        *,
        state: KeeperState | None = None,
        save: Callable[[KeeperState], object] = lambda _: None,
        log: ChainedLog | None = None,
    ) -> None:
        self._policy = policy
        self._members = {key_digest(public): (name, public) for name, public in members.items()}
        self._key = key
        # Always the same sums: a model that is trained again tells no others of an update.
        derive = HKDF(hashes.SHA256(), SEED_BYTES, None, b"fedif-flower signs 1")
        self._sign_seed = derive.derive(key.private_bytes_raw())
        self._state = state or KeeperState()
        self._round: KeptRound | None = None  # That is open.
        self._save = save
        self.log = log or ChainedLog()

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
        """Open a round's boxes."""
        with self._logged("open", run, server_round) as entry:
            last = self._state.last_rounds.get(run, 0)
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
                    name, seed = self._seed(box, (run, server_round, node, length), instructions)
                    if name in seeds:
                        raise BoxError(f"the box is the second one of {name}")
                    seeds[name] = seed
                    nodes.append(node)
                except BoxError as error:
                    refused[node] = str(error)
            entry |= {"members": [*seeds], "length": length, "refused": [*refused.values()]}
            self._policy.check_members(len(seeds))
            sketch = SignSketch(self._sign_seed, self._policy.sketch_for(length), length)
            found = np.array([sketch.of(mask_of(seed, length)) for seed in seeds.values()])
            self._remember(last_rounds={**self._state.last_rounds, run: server_round})
            # It ends the last one, whichever run that was of.
            self._round = KeptRound(run, server_round, seeds, sketch, np.empty((0, length)))
            entry["answer"] = vector_digest(found).hex()
            return OpenedRound(
                nodes=tuple(nodes), refused=refused, seed=self._sign_seed, packed=to_bytes(found)
            )

    def products(self, run: int, server_round: int, vectors: Ring) -> Ring:
        """Return the masks' products with vectors ``[j, d]``: ``[m, j]``."""
        with self._logged("products", run, server_round) as entry:
            kept = self._find(run, server_round)
            entry["vectors"] = [vector_digest(vector).hex() for vector in vectors]
            numbers = vectors.view(np.int64).astype(np.float64)
            lengths = [*kept.lengths, *np.linalg.norm(numbers, axis=1)]
            # A longer one would wrap, and a combination modulo 2**64 could be what none is without.
            longest = longest_vector(self.length)
            allow(max(lengths) <= longest, "vectors have a length of 1 at most", "a longer one")
            all_of_round = np.array([*kept.vectors, *map(kept.sketch.without, numbers)])
            self._policy.check_vectors(all_of_round, np.array(lengths))
            asked = self._state.vectors.get(run, 0) + len(vectors)
            self._policy.check_known(asked, self.length)
            self._remember(vectors={**self._state.vectors, run: asked})
            kept.vectors, kept.lengths = all_of_round, lengths
            masks = (mask_of(seed, self.length) for seed in kept.seeds.values())
            answer = rounded(np.array([products(mask, vectors) for mask in masks]))
            entry["answer"] = vector_digest(answer).hex()
            return answer

    def weighted_sum(self, run: int, server_round: int, weights: Ring) -> Ring:
        """Return the sum ``[d]`` of the masks times weights ``[m]``."""
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
        """Delete the round's seeds; return the log's last hash."""
        kept = self._round
        if kept is not None and (kept.run, kept.server_round) == (run, server_round):
            with self._logged("close", run, server_round):
                self._round = None
        return self.log.head

    def _remember(self, **changes: dict[int, int]) -> None:
        state = self._state.model_copy(update=changes)
        self._save(state)
        self._state = state

    def _seed(
        self, box: bytes, place: tuple[int, int, int, int], instructions: bytes
    ) -> tuple[str, bytes]:
        """Return who signed a box, and the seed in it."""
        header = header_for(box, *place)
        if header.signer not in self._members:
            raise BoxError("the keeper knows no member with this key")
        name, public = self._members[header.signer]
        check_signature(box, public)
        # A member who alone got a model that can be trained would be alone in the sum.
        if header.instructions != instructions:
            raise BoxError("the member got another model or other settings than most")
        return name, open_box(box, self._key)

    def _find(self, run: int, server_round: int) -> KeptRound:
        kept = self._round
        if kept is None or (kept.run, kept.server_round) != (run, server_round):
            raise KeeperError(f"the keeper keeps no round {server_round} of run {run}")
        return kept

    @contextmanager
    def _logged(self, asked: str, run: int, server_round: int) -> Iterator[dict[str, object]]:
        """Write what was asked into the log, with the answer's digest or why there is none."""
        entry: dict[str, object] = {"asked": asked, "run": run, "round": server_round}
        entry["time"] = round(time.time(), 3)
        try:
            yield entry
        except BaseException as error:
            entry["refusal"] = str(error)
            raise
        finally:
            self.log.append(entry)


def _of_most(boxes: Iterable[bytes]) -> bytes:
    """Return the digest of what the server sent to most of the members."""
    counts: Counter[bytes] = Counter()
    for box in boxes:
        with suppress(BoxError):
            counts[read_header(box).instructions] += 1
    return counts.most_common(1)[0][0] if counts else b""
