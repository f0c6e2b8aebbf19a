r"""Members whose updates have the same own part: one owner under several names, or copied data.

**Own part.** The own part of an update is its direction less the mean direction in its round. Let
:math:`u_i(t)` be the update of member i in round t, and :math:`m_t` the number of updates in that
round. Summed over the rounds in which the member took part, its own part is

.. math:: o_i = \sum_{t \ni i} o_i(t), \qquad
          o_i(t) = \frac{u_i(t)}{\lVert u_i(t) \rVert}
                 - \frac{1}{m_t} \sum_j \frac{u_j(t)}{\lVert u_j(t) \rVert}

In this sum, what differs from round to round averages out, and what comes from the same data stays.

**Noise.** A member may add noise to its updates to hide that its data are those of another. But the
noise in :math:`o_i` can be estimated. Let :math:`T_i` be the number of rounds in which the member
took part. The square of :math:`o_i` has what differs from round to round :math:`T_i` times, and
what stays :math:`T_i^2` times. So an estimate of what stays is

.. math:: a_i = \lVert o_i \rVert^2 - \sum_{t \ni i} \lVert o_i(t) \rVert^2

**Likeness.** The likeness of two members is a cosine without the noise:

.. math:: \rho_{ij} = \sqrt{\frac{T_i - 1}{T_i} \frac{T_j - 1}{T_j}}\,
          \frac{\langle o_i, o_j \rangle}{\sqrt{\hat a_i \hat a_j}}, \qquad
          \hat a_i = \max(a_i, \lVert o_i \rVert^2 / 4)

It is 1 for members with the same data, however much noise hides them, as long as at most three
quarters of the sum's square are noise. Two members are found if their likeness is above 0.97, and
both took part in at least five rounds.

**Sketch.** The server keeps only a random sketch of each :math:`o_i`, and the sum of the squares of
:math:`o_i(t)`. The sketch gives each coordinate a random sign, and adds the coordinates up into 256
sums (AMS sketch; Charikar et al., 2002). It tells a cosine :math:`\rho` up to about
:math:`(1 - \rho^2) / 16`. The server draws the signs at random for each run, and tells nobody. A
member who knew them could put a change into a single sum with the signs of its coordinates: the
sketch would see the change d / 256 times too large, so that a change too small to cost anything
would hide whose data these are.

An update of 0 has no direction, and does not count in :math:`m_t`. Masked rounds show no update,
and add nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from fedif_flower.run.folder import RunFolder
from fedif_flower.run.part import NOTHING, Built, PartState, RunContext, RunPart
from fedif_flower.seeding import torch_generator
from fedif_flower.server.record import Round, Step
from fedif_flower.server.run import Callback, RunningStrategy

SIZE = 256  # The number of sums in a sketch.
# No two honest members of 18 federations on digits are more alike than this (twins-noise.csv).
ALIKE = 0.97
MOST_NOISE = 0.75  # The noise in a sum is taken for no more than this part of it.
MIN_ROUNDS = 5  # Members who took part in fewer rounds are not compared.
_KEY_BITS = 128
_CHUNK = 1024 * SIZE  # The coordinates whose signs are in memory at once.


@dataclass(frozen=True)
class OwnPart:
    """The own part of a member's updates, summed over rounds.

    Attributes
    ----------
    rounds : int
        The number of rounds in which the member took part.
    squares : float
        The sum over rounds of the squared length of the own part.
    sums : sequence of float
        ``[256]``: the sketch of the sum of own parts.
    """

    rounds: int
    squares: float
    sums: Sequence[float]


# By client id: number of rounds, sum of squared lengths, and sketch of the sum, as in OwnPart.
Sums = dict[int, tuple[int, float, Tensor]]


def sketch(updates: Tensor, key: int) -> Tensor:
    """Return the random sketches ``[m, 256]`` of updates ``[m, d]``, in float64.

    The random signs follow from ``key``, >= 0, alone.
    """
    generator = torch_generator("own-parts", key)
    sketches = torch.zeros(len(updates), SIZE, dtype=torch.float64)
    for start in range(0, updates.shape[1], _CHUNK):
        part = updates[:, start : start + _CHUNK].cpu().double()
        signs = 2.0 * torch.randint(0, 2, (part.shape[1],), generator=generator) - 1.0
        part = pad(part * signs, (0, -part.shape[1] % SIZE))
        sketches += part.view(len(part), -1, SIZE).sum(dim=1)
    return sketches


def members_alike(parts: Mapping[int, OwnPart]) -> frozenset[int]:
    """Return the client ids of members whose own part is the same as another member's."""
    ids = [client_id for client_id, part in parts.items() if part.rounds >= MIN_ROUNDS]
    if len(ids) < 2:
        return frozenset()
    cosines = likeness([parts[client_id] for client_id in ids])
    np.fill_diagonal(cosines, -1.0)  # Each member is like itself: that does not count.
    is_alike = cosines.max(axis=1) > ALIKE
    return frozenset(compress(ids, is_alike))


def likeness(parts: Sequence[OwnPart]) -> NDArray[np.float64]:
    """Return the likeness of each two members, ``[n, n]``, as the module defines it.

    Each member has to have taken part in two rounds at least: one round does not tell what stays.
    """
    rounds = np.array([part.rounds for part in parts], dtype=float)
    squares = np.array([part.squares for part in parts])
    sums = np.array([part.sums for part in parts])
    gram = sums @ sums.T
    whole = np.diag(gram)
    without_noise = np.maximum(whole - squares, (1 - MOST_NOISE) * whole)
    stays = without_noise * rounds / (rounds - 1)
    lengths = np.sqrt(np.outer(stays, stays))
    cosines: NDArray[np.float64] = gram / np.maximum(lengths, 1e-30)
    return cosines


class OwnParts(Callback, PartState):
    """Sums up the own part of each member's updates, and writes the sums at the run's end."""

    def __init__(self, folder: RunFolder) -> None:
        self.table = folder.own_parts
        # The key of the sketch's signs. It does not follow from the run's seed, which members know.
        self._key = secrets.randbits(_KEY_BITS)
        self.sums: Sums = {}
        self._after: dict[int, Sums] = {}  # The sums after each of the last two rounds, by round.

    def why_updates_are_read(self, strategy: RunningStrategy) -> str:  # noqa: ARG002
        """Return an empty text: this callback needs no updates, and leaves out masked rounds."""
        return ""

    def on_step(self, step: Step) -> None:
        """Add the own parts of a round's updates."""
        if step.updates.unseen is not None:
            return
        updates = step.updates.client_updates
        lengths = torch.linalg.vector_norm(updates, dim=1, dtype=torch.float64).cpu()
        has_direction = lengths > 0
        if not bool(has_direction.any()):
            return
        nodes = compress(step.nodes, has_direction.tolist())
        directions = sketch(updates, self._key)[has_direction]  # [m', 256]
        directions /= lengths[has_direction, None]
        # The mean is taken over updates that have a direction. If updates of 0 counted, a part of
        # what all updates have in common would be left in everybody's own part.
        own_parts = directions - directions.mean(dim=0)
        for node, own_part in zip(nodes, own_parts, strict=True):
            nothing_yet = (0, 0.0, torch.zeros_like(own_part))
            rounds, squares, sums = self.sums.get(node.client_id, nothing_yet)
            self.sums[node.client_id] = (
                rounds + 1,
                squares + float(own_part @ own_part),
                sums + own_part,
            )

    def on_round(self, report: Round) -> None:
        """Remember the sums after this round, for a checkpoint."""
        # A checkpoint may be that of the last round, or of the round before it.
        self._after = dict(list(self._after.items())[-1:])
        self._after[report.round] = dict(self.sums)

    def on_end(self) -> None:
        """Write a line for each member."""
        if self.sums:
            self.table.replace(self.lines_now())

    def lines_now(self) -> list[dict[str, object]]:
        """Return the table's lines for the rounds so far; the heads of rounds bind them."""
        lines = []
        for client_id, (rounds, squares, sums) in sorted(self.sums.items()):
            cells = (client_id, rounds, squares, *sums.tolist())
            lines.append(dict(zip(self.table.columns, cells, strict=True)))
        return lines

    def memory(self, last_round: int) -> dict[str, Any]:
        """Return the sums after round ``last_round`` and the key of their signs."""
        return {"sums": self._after.get(last_round, self.sums), "key": self._key}

    def restore(
        self,
        lines: Sequence[Mapping[str, Any]],  # noqa: ARG002
        memory: Mapping[str, Any] | None,
        last_round: int,  # noqa: ARG002
    ) -> None:
        """Go on with a checkpoint's sums; without them, begin with the next round."""
        self.sums = {}
        if memory:
            self.sums = dict(memory["sums"])
            self._key = memory["key"]


class OwnPartsOfRun(RunPart):
    """Sums up members' own parts in runs with attribution: only these can have a statement."""

    def build(self, run: RunContext) -> Built:
        """Return the callback that sums up own parts, and has checkpoints keep the sums."""
        if run.config.attribution == "off":
            return NOTHING
        own_parts = OwnParts(run.folder)
        return Built(callbacks=[own_parts], state={"own-parts": own_parts})
