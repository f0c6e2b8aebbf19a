"""What a keeper answers at most: its own file's settings, which no run can change."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedif_consortium.masking.ring import WEIGHT_BITS, Ring, encode_weights
from fedif_flower.errors import KeeperError
from fedif_flower.settings import Settings, setting

# As a share of a vector's length: with less than this outside of the others' span, rounding alone
# would decide in which parameters it lies.
LEAST_DISTANCE = 2.0**-20


class KeeperPolicy(Settings):
    """The limits of a keeper.

    Each is one line of ``[policy]`` in the keeper's file, and is named where the keeper refuses.

    Attributes
    ----------
    least_members : int
        Members who must be in a round, and have weight in its sum. All of these but one, in league
        with the server, can take their own updates out of the sum and see the one that is left.
        Where a keeper's file does not set it, it is more than half of the members, and 3 at least.
    largest_share : float
        The largest share of a sum's weight that one member may have.
    least_effective_members : float
        The least effective number of members in a sum: 1 / sum of squared shares.
    vectors : int
        Vectors of the server's choice in a round, with which every update is multiplied.
    largest_entry : float
        The largest share of the squared length that one parameter may have in any combination of a
        round's vectors; 1: any. A vector with a single parameter has 1.
    sketch_size : int
        Random sums of each update that tell its length, k. An update of a few examples has few
        degrees of freedom, so a sketch has no more numbers than lengths need.
    sketch_share : float
        The largest share of the parameters, k / d, that a sketch may have.
    largest_known_share : float
        The most numbers about a member in a day, of all runs together, as a share of the
        parameters: its sketch, which has the same sums in each round, and a product for each
        vector. Days are the keeper's own, in UTC: the server names runs, and can name new ones.
    sums_of_a_model : int
        How many sums may have a member's update of the same model, whatever run it is said to be
        of. Of two sums, one of which leaves a member out, the difference is its update.
    """

    least_members: int = setting(3, "members in a round, and in its sum", ge=2)
    largest_share: float = setting(0.5, "one member's share of a sum", gt=0, le=1)
    least_effective_members: float = setting(2.5, "1 / sum of a sum's squared shares", ge=1)
    vectors: int = setting(4, "vectors of the server's choice in a round", ge=1)
    largest_entry: float = setting(0.25, "one parameter's share of a vector", gt=0, le=1)
    sketch_size: int = setting(256, "random sums of each update", ge=64)
    sketch_share: float = setting(0.0625, "a sketch's share of the parameters", gt=0, le=1)
    largest_known_share: float = setting(0.5, "a day's share of the parameters", gt=0)
    sums_of_a_model: int = setting(1, "sums that may have an update of the same model", ge=1)

    def sketch_for(self, length: int) -> int:
        """Return k for models of ``length`` parameters."""
        return max(1, min(self.sketch_size, int(self.sketch_share * length)))

    def check_members(self, members: int, place: str = "in the round") -> None:
        """Raise KeeperError unless a round, or its sum, has enough members."""
        self._allow(members >= self.least_members, "least-members", f"{members} {place}")

    def check_sums(self, sums: int, name: str) -> None:
        """Raise KeeperError if a member's update of a model is in one sum too many."""
        request = (
            f"{sums} with an update of {name} of the same model, which a run that begins anew has "
            "unless it has another seed"
        )
        self._allow(sums <= self.sums_of_a_model, "sums-of-a-model", request)

    def check_vectors(self, vectors: NDArray[np.float64], lengths: NDArray[np.float64]) -> None:
        r"""Raise KeeperError where a round's vectors tell too much of an update.

        With an orthonormal basis Q of their span, the combination of them that has the largest
        share of its squared length in parameter j has :math:`\ell_j = \sum_i Q_{ij}^2` there: the
        leverage of j. A basis vector has 1, and so have two vectors that differ in one place only.

        Parameters
        ----------
        vectors : ndarray
            ``[j, d]``, all of the round, without what its sketch tells: a sum of the sketch and a
            vector that leaves one of its entries out would tell that one.
        lengths : ndarray
            ``[j]``, with it.
        """
        count = len(vectors)
        self._allow(count <= self.vectors, "vectors", f"{count} vectors in the round")
        if self.largest_entry >= 1:
            return
        basis, triangle = np.linalg.qr(vectors.T)  # [d, j], [j, j]
        distances = np.abs(np.diag(triangle))  # [j], each from the span of the vectors before it.
        are_apart = bool(np.all(distances >= LEAST_DISTANCE * lengths))
        request = "a vector that differs from a combination of earlier ones by a millionth"
        self._allow(are_apart, "largest-entry", request)
        leverages = np.sum(basis**2, axis=1)  # [d]
        largest = float(np.max(leverages))
        request = f"a combination of the round's vectors with {largest:.3g} of it in one parameter"
        self._allow(largest <= self.largest_entry, "largest-entry", request)

    def check_known(self, vectors: int, length: int) -> None:
        """Raise KeeperError where a day asks for too many numbers about a member.

        ``vectors`` are those of all its rounds, ``length`` is d.
        """
        count = self.sketch_for(length) + vectors
        request = f"{count} numbers about updates of {length} parameters in a day"
        self._allow(count <= self.largest_known_share * length, "largest-known-share", request)

    def check_weights(self, weights: Ring, names: Sequence[str]) -> None:
        """Raise KeeperError unless a sum hides each of its members.

        Parameters
        ----------
        weights : ndarray
            ``[m]``, of :func:`~fedif_consortium.masking.ring.encode_weights`.
        names : sequence of str
            The members', for the reason.
        """
        total = float(np.sum(weights, dtype=np.float64))
        off = abs(total - 2**WEIGHT_BITS)  # Each is rounded by half a unit.
        allow(off <= len(weights), "weights are shares, whose sum is 1", "others")
        shares = weights / total  # [m]
        self.check_members(int(np.count_nonzero(shares)), "with weight")
        first = int(np.argmax(shares))
        largest = shares[first]
        self._allow(
            largest <= self.largest_share, "largest-share", f"{largest:.3g} for {names[first]}"
        )
        # Not from the shares, which are rounded: m equal weights, whole numbers, make exactly m.
        effective = total**2 / float(np.sum(weights.astype(np.float64) ** 2))
        self._allow(
            effective >= self.least_effective_members,
            "least-effective-members",
            f"{effective:.3g}",
        )

    def capped(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return weights ``[m]`` whose largest are cut to what a sum may have; their total stays.

        They are not changed where they are allowed, or where no cut helps.
        """
        if not weights.any() or self._allows(weights):
            return weights
        total = weights.sum()

        def cut(most: float) -> NDArray[np.float64]:
            """Return the weights cut to ``most``, then scaled to their total."""
            lower = np.minimum(weights, most)
            return np.asarray(lower * (total / lower.sum()))

        # Halve the interval that has the highest cut that is allowed. At its low end all members
        # who have weight have the same.
        low = max(weights[weights > 0].min(), total * 2.0**-64)  # So that no quotient overflows.
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
        """Raise KeeperError, with the limit at ``key`` and the request, unless allowed."""
        allow(is_allowed, f"{key} = {self.to_mapping()[key]:g}", request)


def least_for(members: int) -> int:
    """Return ``least_members`` of a keeper that knows so many and whose file does not set it."""
    return max(3, members // 2 + 1)


def allow(is_allowed: bool | np.bool_, line: str, request: str) -> None:
    """Raise KeeperError, with the policy's line and what was asked, unless allowed."""
    if not is_allowed:
        raise KeeperError(f"the keeper refuses: {line}; asked: {request}")
