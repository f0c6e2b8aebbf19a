"""The keeper: opens boxes, keeps seeds, and answers what its policy allows. No files, no network.

It holds m seeds of 32 bytes and the directions that it was asked about, and makes masks anew, block
by block, for each answer: memory is O(d), whatever the number of members. A round that is open lies
in memory alone: it ends with the keeper's process, and the next one goes on.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from fedif_consortium.evidence.chained_log import ChainedLog
from fedif_consortium.evidence.keys import VerifyingKey, key_digest
from fedif_consortium.masking.boxes import (
    KeeperKey,
    check_signature,
    open_box,
    read_header,
    vector_digest,
)
from fedif_consortium.masking.concentration import extended, largest_leverage
from fedif_consortium.masking.interface import OpenedRound, Sketches
from fedif_consortium.masking.masks import SEED_BYTES
from fedif_consortium.masking.policy import KeeperPolicy
from fedif_consortium.masking.products import (
    add_weighted_mask,
    longest_vector,
    mask_products,
    rounded,
)
from fedif_consortium.masking.ring import Ring
from fedif_consortium.masking.sketches import SignSketch
from fedif_flower.errors import BoxError, KeeperError, RefusedByPolicyError

MOST_PARAMETERS, MOST_MEMBERS = 200_000_000, 10_000
SECONDS_KEPT = 24 * 3600.0


@dataclass(frozen=True)
class KeptRound:
    """What a keeper holds of an open round.

    Attributes
    ----------
    run, server_round, length : int
        Which round; d.
    opened : float
        When, in seconds since 1970.
    boxes : str
        The digest of what was handed in.
    answer : OpenedRound
        What was answered to that.
    seeds : tuple of bytes
        The members' secrets, in the order of ``answer.nodes``.
    vectors : list of str
        Digests of the vectors asked about.
    basis : ndarray
        ``[j, d]``, an orthonormal basis of their span.
    sum : str
        Digest of the weights asked for; empty: none yet.
    """

    run: int
    server_round: int
    length: int
    opened: float
    boxes: str
    answer: OpenedRound
    seeds: tuple[bytes, ...] = field(repr=False)
    vectors: list[str]
    basis: NDArray[np.float64] = field(repr=False)
    sum: str = ""


@dataclass(frozen=True)
class KeeperState:
    """What a keeper remembers beyond a round, and beyond its process.

    Attributes
    ----------
    last_rounds : dict of int to int
        By run, the last round that was opened.
    vectors : dict of int to int
        By run, how many vectors its rounds asked about.
    """

    last_rounds: dict[int, int] = field(default_factory=dict)
    vectors: dict[int, int] = field(default_factory=dict)


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
    now : callable
        Returns seconds since 1970.
    """

    def __init__(
        self,
        policy: KeeperPolicy,
        members: Mapping[str, VerifyingKey],
        key: KeeperKey,
        *,
        state: KeeperState | None = None,
        save: Callable[[KeeperState], None] = lambda _: None,
        log: ChainedLog | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._policy = policy
        self._members = {key_digest(public): (name, public) for name, public in members.items()}
        self._key = key
        # Always the same sums: a model that is trained again tells no others of an update.
        derive = HKDF(hashes.SHA256(), SEED_BYTES, None, b"fedif-flower signs 1")
        self._sign_seed = derive.derive(key.private_bytes_raw())
        self._state = KeeperState() if state is None else state
        self._round: KeptRound | None = None  # That is open.
        self._save = save
        self.log = ChainedLog() if log is None else log
        self._now = now

    def policy(self) -> KeeperPolicy:
        """Return the limits."""
        return self._policy

    def shape(self, run: int, server_round: int) -> tuple[int, int]:
        """Return the members m and the parameters d of an open round.

        Raises
        ------
        KeeperError
            If it is not open.
        """
        kept = self._find(run, server_round)
        return len(kept.seeds), kept.length

    def forget_old(self) -> None:
        """Delete the seeds of a round that is older than a day."""
        if self._round is not None and self._now() - self._round.opened > SECONDS_KEPT:
            self._round = None

    def open_round(
        self, run: int, server_round: int, length: int, boxes: Mapping[int, bytes]
    ) -> OpenedRound:
        """Open a round's boxes."""
        with self._logged("open", run, server_round) as entry:
            digest = _digest(length, *(part for item in sorted(boxes.items()) for part in item))
            kept = self._round
            if kept is None or (kept.run, kept.server_round, kept.boxes) != (
                *(run, server_round, digest),
            ):
                kept = self._open(run, server_round, length, boxes, digest)
            entry |= {"members": kept.answer.members, "length": length}
            entry |= {"refused": list(kept.answer.refused.values())}
            return kept.answer

    def sketches(self, run: int, server_round: int) -> Sketches:
        """Return the masks' sketches."""
        with self._logged("sketches", run, server_round) as entry:
            kept = self._find(run, server_round)
            sketch = self._sketch(kept)
            values = np.array([sketch.of_mask(seed) for seed in kept.seeds])
            entry["answer"] = vector_digest(values).hex()
            return Sketches(self._sign_seed, values)

    def products(self, run: int, server_round: int, vectors: Ring) -> Ring:
        """Return the masks' products with vectors ``[j, d]``: ``[m, j]``."""
        with self._logged("products", run, server_round) as entry:
            kept = self._find(run, server_round)
            _require_shape(vectors, kept.length)
            digests = [vector_digest(vector).hex() for vector in vectors]
            entry["vectors"] = digests
            self._allow_vectors(kept, vectors, digests)
            answer = rounded(np.array([mask_products(seed, vectors) for seed in kept.seeds]))
            entry["answer"] = vector_digest(answer).hex()
            return answer

    def weighted_sum(self, run: int, server_round: int, weights: Ring) -> Ring:
        """Return the sum ``[d]`` of the masks times weights ``[m]``."""
        with self._logged("sum", run, server_round) as entry:
            kept = self._find(run, server_round)
            if weights.shape != (len(kept.seeds),) or weights.dtype != np.uint64:
                raise KeeperError(
                    f"weights of shape {weights.shape}; allowed: ({len(kept.seeds)},), of uint64"
                )
            entry["weights"] = weights.tolist()
            self._policy.check_weights(weights, kept.answer.members)
            digest = vector_digest(weights).hex()
            if kept.sum not in ("", digest):
                raise RefusedByPolicyError("the keeper refuses: a round has one sum; asked: two")
            self._round = replace(kept, sum=digest)
            total = np.zeros(kept.length, np.uint64)
            for seed, weight in zip(kept.seeds, weights, strict=True):
                if weight:
                    add_weighted_mask(total, seed, weight)
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

    def _open(
        self, run: int, server_round: int, length: int, boxes: Mapping[int, bytes], digest: str
    ) -> KeptRound:
        """Open a round that was not opened before, or refuse it."""
        last = self._state.last_rounds.get(run, 0)
        if server_round <= last:
            raise RefusedByPolicyError(
                f"the keeper refuses: a round is opened once; asked: round {server_round} of run "
                f"{run} after round {last}"
            )
        if not (1 <= length <= MOST_PARAMETERS and len(boxes) <= MOST_MEMBERS):
            raise RefusedByPolicyError(
                f"the keeper refuses: {length} parameters, {len(boxes)} members; allowed: at most "
                f"{MOST_PARAMETERS}, {MOST_MEMBERS}"
            )
        self._policy.check_members(len(boxes))
        found: dict[str, tuple[int, bytes]] = {}
        refused: dict[int, str] = {}
        instructions = _of_most(boxes.values())
        for node, box in boxes.items():
            try:
                name, seed = self._seed(box, (run, server_round, node, length), instructions)
                if name in found:
                    raise BoxError(f"the box is the second one of {name}")
                found[name] = node, seed
            except BoxError as error:
                refused[node] = str(error)
        self._policy.check_members(len(found))
        nodes, seeds = zip(*found.values(), strict=True)
        kept = KeptRound(
            run=run,
            server_round=server_round,
            length=length,
            opened=self._now(),
            boxes=digest,
            answer=OpenedRound(nodes, tuple(found), refused),
            seeds=seeds,
            vectors=[],
            basis=np.empty((0, length)),
        )
        last_rounds = self._state.last_rounds | {run: server_round}
        self._remember(replace(self._state, last_rounds=last_rounds))
        self._round = kept  # It ends the last one, whichever run that was of.
        return kept

    def _remember(self, state: KeeperState) -> None:
        self._save(state)
        self._state = state

    def _seed(
        self, box: bytes, expected: tuple[int, int, int, int], instructions: bytes
    ) -> tuple[str, bytes]:
        """Return who signed a box, and the seed in it."""
        header = read_header(box)
        is_for = header.run, header.server_round, header.node, header.length
        for name, value, wanted in zip(
            ("run", "round", "node", "length"), is_for, expected, strict=True
        ):
            if value != wanted:
                raise BoxError(f"the box is for {name} {value}, not {wanted}")
        if header.signer not in self._members:
            raise BoxError("the keeper knows no member with this key")
        name, public = self._members[header.signer]
        check_signature(box, public)
        # A member who alone got a model that can be trained would be alone in the sum.
        if header.instructions != instructions:
            raise BoxError("the member got another model or other settings than most")
        return name, open_box(box, self._key)

    def _find(self, run: int, server_round: int) -> KeptRound:
        self.forget_old()
        kept = self._round
        if kept is None or (kept.run, kept.server_round) != (run, server_round):
            raise KeeperError(f"the keeper keeps no round {server_round} of run {run}")
        return kept

    def _allow_vectors(self, kept: KeptRound, vectors: Ring, digests: Sequence[str]) -> None:
        """Count vectors that were not asked about yet, or refuse them all."""
        new = {d: v for d, v in zip(digests, vectors, strict=True) if d not in kept.vectors}
        if not new:
            return
        self._policy.check_vectors(len(kept.vectors) + len(new))
        asked = self._state.vectors.get(kept.run, 0) + len(new)
        self._policy.check_known(asked, kept.length)
        basis = kept.basis
        if self._policy.largest_entry < 1:
            sketch = self._sketch(kept)
            for vector in new.values():
                basis = self._extended(basis, vector, sketch)
            self._policy.check_entry(largest_leverage(basis))
        vectors_by_run = self._state.vectors | {kept.run: asked}
        self._remember(replace(self._state, vectors=vectors_by_run))
        self._round = replace(kept, vectors=[*kept.vectors, *new], basis=basis)

    def _extended(
        self, basis: NDArray[np.float64], vector: Ring, sketch: SignSketch
    ) -> NDArray[np.float64]:
        """Return an orthonormal basis of what vectors tell beside the sketch, with one more."""
        numbers = vector.view(np.int64).astype(np.float64)
        length = float(np.linalg.norm(numbers))
        # A longer one would wrap, and a combination modulo 2**64 could be what none is without.
        if length > longest_vector(len(vector)):
            raise RefusedByPolicyError("the keeper refuses: vectors have a length of 1 at most")
        wider = extended(basis, sketch.without(numbers), length)
        if wider is None:
            raise RefusedByPolicyError(
                f"the keeper refuses: largest-entry = {self._policy.largest_entry:g}; asked: a "
                "vector that differs from a combination of earlier ones by a millionth"
            )
        return wider

    def _sketch(self, kept: KeptRound) -> SignSketch:
        return SignSketch(self._sign_seed, self._policy.sketch_for(kept.length), kept.length)

    @contextmanager
    def _logged(self, asked: str, run: int, server_round: int) -> Iterator[dict[str, object]]:
        """Write what was asked into the log, with the answer's digest or why there is none."""
        entry: dict[str, object] = {"asked": asked, "run": run, "round": server_round}
        entry["time"] = round(self._now(), 3)
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


def _require_shape(vectors: Ring, length: int) -> None:
    if vectors.ndim != 2 or vectors.shape[1] != length or vectors.dtype != np.uint64:
        raise KeeperError(f"vectors of shape {vectors.shape}; allowed: (j, {length}), of uint64")


def _digest(*parts: object) -> str:
    """Return the SHA-256 of numbers and bytes."""
    readable = [part.hex() if isinstance(part, bytes) else part for part in parts]
    return hashlib.sha256(json.dumps(readable).encode()).hexdigest()
