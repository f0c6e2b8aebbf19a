"""The keeper's policy: limits of its answers, which its own file sets and no run can change."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedif_consortium.masking.ring import WEIGHT_BITS, Ring, encode_weights
from fedif_flower.errors import KeeperError
from fedif_flower.settings import Settings, setting

# The least distance of a vector from the span of the others, as a share of its length. At a smaller
# distance, rounding alone would decide in which parameters the difference lies.
LEAST_DISTANCE = 2.0**-20
# A member counts as one in a sum if its weight is at least this part of the largest weight. Members
# with next to no weight would hide nothing of the others' updates.
LEAST_PART = 0.1


class KeeperPolicy(Settings):
    """The limits of a keeper's answers.

    Each limit is one line of ``[policy]`` in the keeper's file. A refusal names the limit.

    Attributes
    ----------
    least_members : int
        The least number of members in a round, and of members in its sum whose weight is at least a
        tenth of the largest one. If all of them but one are in league with the server, they can
        subtract their own updates from the sum, and see the update that is left. A keeper's file
        that does not set this limit has more than half of its members, and at least 3.
    largest_share : float
        The largest share of a sum's weight that one member may have.
    least_effective_members : float
        The least effective number of members in a sum: 1 / sum of squared shares.
    vectors : int
        The most vectors in a round that the server may choose, and that are multiplied with every
        update.
    largest_entry : float
        The largest share of its squared length that any combination of a round's vectors may have
        in one parameter; 1: no limit. A vector with a single parameter has 1.
    sketch_size : int
        k, the most random sums of each update, which tell its length. An update from a few examples
        has few degrees of freedom, so a sketch has no more sums than lengths need.
    sketch_share : float
        The largest k / d: a sketch's sums as a share of the d parameters.
    largest_known_share : float
        The most numbers that the server may learn about a member in a day, in all runs together, as
        a share of the d parameters. The numbers are the sketch, which has the same sums in each
        round, and a product for each vector. A day is one in UTC by the keeper's clock. Runs are
        not told apart, since the server could name new ones.
    sums_of_a_model : int
        The most sums with a member's update of the same model, in whatever run. If one of two such
        sums leaves a member out, their difference is this member's update.
    """

    least_members: int = setting(3, "members in a round, and that count in its sum", ge=2)
    largest_share: float = setting(0.5, "one member's share of a sum", gt=0, le=1)
    least_effective_members: float = setting(2.5, "1 / sum of a sum's squared shares", ge=1)
    vectors: int = setting(4, "vectors of the server's choice in a round", ge=1)
    largest_entry: float = setting(0.25, "one parameter's share of a vector", gt=0, le=1)
    sketch_size: int = setting(256, "random sums of each update", ge=64)
    sketch_share: float = setting(0.0625, "a sketch's share of the parameters", gt=0, le=1)
    largest_known_share: float = setting(0.5, "a day's share of the parameters", gt=0)
    sums_of_a_model: int = setting(1, "sums that may have an update of the same model", ge=1)

    def sketch_for(self, length: int) -> int:
        """Return k, the number of a sketch's sums, for models of ``length`` parameters."""
        return max(1, min(self.sketch_size, int(self.sketch_share * length)))

    def check_members(self, members: int, place: str = "in the round") -> None:
        """Raise KeeperError unless a round, or its sum, has enough members.

        ``place`` says in the error which of the two is meant.
        """
        self._allow(members >= self.least_members, "least-members", f"{members} {place}")

    def check_sums(self, sums: int, name: str) -> None:
        """Raise KeeperError if a member's update of one model would be in ``sums`` sums."""
        # Short, since the server cuts a round's reason to 200 characters.
        request = f"{sums} with an update of {name} of the same model: begin anew with another seed"
        self._allow(sums <= self.sums_of_a_model, "sums-of-a-model", request)

    def check_count(self, vectors: int) -> None:
        """Raise KeeperError if a round has too many vectors of the server's choice."""
        self._allow(vectors <= self.vectors, "vectors", f"{vectors} vectors in the round")

    def check_vectors(self, vectors: NDArray[np.float64], lengths: NDArray[np.float64]) -> None:
        r"""Raise KeeperError if products with a round's vectors would tell too much of an update.

        Let Q ``[n, d]`` be an orthonormal basis of the span of the n vectors. No combination of the
        vectors has a larger share of its squared length in parameter j than the leverage of j,
        :math:`\ell_j = \sum_i Q_{ij}^2`. It is 1 for a vector with one parameter alone, and for two
        vectors that differ in one parameter alone. The leverage has to be within ``largest_entry``.

        Parameters
        ----------
        vectors : ndarray
            ``[n, d]``: all vectors of the round, without their parts in the span of the sketch's
            sums. Otherwise the server could take a vector that is one of these sums but for one
            entry: the difference of both answers would tell this entry of the update.
        lengths : ndarray
            ``[n]``: the lengths of the whole vectors.
        """
        self.check_count(len(vectors))
        if self.largest_entry >= 1:
            return
        basis, triangle = np.linalg.qr(vectors.T)  # [d, n], [n, n]
        # [n], the distance of each vector from the span of the vectors before it.
        distances = np.abs(np.diag(triangle))
        are_apart = bool(np.all(distances >= LEAST_DISTANCE * lengths))
        request = "a vector that differs from a combination of earlier ones by a millionth"
        self._allow(are_apart, "largest-entry", request)
        leverages = np.sum(basis**2, axis=1)  # [d]
        largest = float(np.max(leverages))
        request = f"a combination of the round's vectors with {largest:.3g} of it in one parameter"
        self._allow(largest <= self.largest_entry, "largest-entry", request)

    def check_known(self, vectors: int, length: int) -> None:
        """Raise KeeperError if the server would learn too many numbers about a member in a day.

        Parameters
        ----------
        vectors : int
            The number of vectors in all rounds of the day.
        length : int
            The number d of parameters.
        """
        count = self.sketch_for(length) + vectors
        request = f"{count} numbers about updates of {length} parameters in a day"
        self._allow(count <= self.largest_known_share * length, "largest-known-share", request)

    def check_weights(self, weights: Ring, names: Sequence[str]) -> None:
        """Raise KeeperError unless a sum with these weights hides the update of each member.

        Parameters
        ----------
        weights : ndarray
            ``[m]``: weights that :func:`~fedif_consortium.masking.ring.encode_weights` returned.
        names : sequence of str
            The members' names, for the error message.
        """
        total = float(np.sum(weights, dtype=np.float64))
        off = abs(total - 2**WEIGHT_BITS)  # Rounding moves each weight by at most half a unit.
        request = f"a sum of {total / 2**WEIGHT_BITS:.6g}"
        allow(off <= len(weights), "weights are shares, whose sum is 1", request)
        shares = weights / total  # [m]
        first = int(np.argmax(shares))
        largest = shares[first]
        counted = int(np.count_nonzero(shares >= LEAST_PART * largest))
        self.check_members(counted, "with at least a tenth of the largest weight")
        self._allow(
            largest <= self.largest_share, "largest-share", f"{largest:.3g} for {names[first]}"
        )
        # Computed from the weights, which are whole numbers, so that m equal weights give exactly
        # m. Shares are rounded.
        effective = total**2 / float(np.sum(weights.astype(np.float64) ** 2))
        self._allow(
            effective >= self.least_effective_members,
            "least-effective-members",
            f"{effective:.3g}",
        )

    def capped(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return weights ``[m]``, the largest of them cut so that the policy allows their sum.

        All weights are then scaled, so that their total stays. ``weights`` itself is returned if it
        is allowed, or if no cut helps.
        """
        if not weights.any() or self._allows(weights):
            return weights
        total = weights.sum()

        def cut(most: float) -> NDArray[np.float64]:
            """Return the weights cut to ``most``, then scaled to their total."""
            lower = np.minimum(weights, most)
            return np.asarray(lower * (total / lower.sum()))

        # Find the highest cut that is allowed, by halving an interval. At its low end, all members
        # with weight have the same weight. The second bound keeps quotients from overflowing.
        low = max(weights[weights > 0].min(), total * 2.0**-64)
        high = weights.max()
        for _ in range(50):
            middle = (low + high) / 2
            if self._allows(cut(middle)):
                low = middle
            else:
                high = middle
        capped = cut(low)
        if not self._allows(capped):
            return weights
        return capped

    def _allows(self, weights: NDArray[np.float64]) -> bool:
        encoded, _ = encode_weights(weights)
        try:
            self.check_weights(encoded, [""] * len(weights))
        except KeeperError:
            return False
        return True

    def _allow(self, is_allowed: bool | np.bool_, key: str, request: str) -> None:
        """Raise KeeperError unless allowed; the message has the limit ``key`` and the request."""
        allow(is_allowed, f"{key} = {self.to_mapping()[key]:g}", request)


def least_for(members: int) -> int:
    """Return the default of ``least_members`` for a keeper that knows this many members."""
    return max(3, members // 2 + 1)


def allow(is_allowed: bool | np.bool_, line: str, request: str) -> None:
    """Raise KeeperError unless allowed; the message has the policy's line and the request."""
    if not is_allowed:
        raise KeeperError(f"the keeper refuses: {line}; asked: {request}")
