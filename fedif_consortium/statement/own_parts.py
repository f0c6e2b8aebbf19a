r"""Members whose updates have the same own part: one owner under several names, or copied data.

What an update has of its own is its direction less the round's mean one; over rounds, noise that
differs averages out, and what comes of the same data stays:

.. math:: o_i = \sum_{t \ni i} \Big( \frac{u_i(t)}{\lVert u_i(t) \rVert}
                 - \frac{1}{m_t} \sum_j \frac{u_j(t)}{\lVert u_j(t) \rVert} \Big)

Noise that a member adds hides what it has, the more the longer it is; but how much of
:math:`o_i` is noise can be told. Over T rounds its square has T times that of what differs from
round to round, and :math:`T^2` times that of what stays, so that

.. math:: a_i = \lVert o_i \rVert^2 - \sum_{t \ni i} \lVert o_i(t) \rVert^2

is what stays of it, with :math:`o_i(t)` a round's. The likeness of two members is

.. math:: \rho_{ij} = \sqrt{\frac{T_i - 1}{T_i} \frac{T_j - 1}{T_j}}\,
          \frac{\langle o_i, o_j \rangle}{\sqrt{\hat a_i \hat a_j}}, \qquad
          \hat a_i = \max(a_i, \lVert o_i \rVert^2 / 4)

a cosine without the noise: 1 for the same data, however much noise hides them, up to where three
quarters of the sum are noise. Members are found where it is above 0.97, and both took part in five
rounds at least. The server keeps a signed random sketch of each :math:`o_i`: coordinates with
random signs, added up into 256 sums (AMS; Charikar et al., 2002), and the sum of the squares. A
cosine :math:`\rho` is told by it to about :math:`(1 - \rho^2) / 16`. An update of 0 has no
direction, and is left out of the :math:`m_t`. Masked rounds show no update, and add nothing.
"""

from __future__ import annotations

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
from fedif_flower.run.part import NOTHING, Built, Kept, RunContext, RunPart
from fedif_flower.seeding import torch_generator
from fedif_flower.server.record import Round, Step
from fedif_flower.server.run import Callback, RunningStrategy

SIZE = 256
ALIKE = 0.97  # No honest member of 18 federations on digits lies above (twins-noise.csv).
MOST_NOISE = 0.75  # Of a sum: of what is nearly all noise nothing is known.
MIN_ROUNDS = 5
_CHUNK = 1024 * SIZE  # Coordinates whose signs are in memory at once.


@dataclass(frozen=True)
class OwnPart:
    """What a member's updates have of their own.

    Attributes
    ----------
    rounds : int
        In how many it took part.
    squares : float
        The sum of the squares of its rounds' own parts.
    sums : sequence of float
        ``[256]``: the sketch of their sum.
    """

    rounds: int
    squares: float
    sums: Sequence[float]


# By client id: in how many rounds it took part, the sum of squares, and the sketch of the sum.
Sums = dict[int, tuple[int, float, Tensor]]


def sketch(updates: Tensor, seed: int) -> Tensor:
    """Return the signed random sketches of updates ``[m, d]``: ``[m, 256]``, in doubles."""
    generator = torch_generator("own-parts", seed)
    sketches = torch.zeros(len(updates), SIZE, dtype=torch.float64)
    for start in range(0, updates.shape[1], _CHUNK):
        part = updates[:, start : start + _CHUNK].cpu().double()
        signs = 2.0 * torch.randint(0, 2, (part.shape[1],), generator=generator) - 1.0
        part = pad(part * signs, (0, -part.shape[1] % SIZE))
        sketches += part.view(len(part), -1, SIZE).sum(dim=1)
    return sketches


def alike(parts: Mapping[int, OwnPart]) -> frozenset[int]:
    """Return the client ids of members whose own part is another's."""
    ids = [client_id for client_id, part in parts.items() if part.rounds >= MIN_ROUNDS]
    if len(ids) < 2:
        return frozenset()
    cosines = likeness([parts[client_id] for client_id in ids])
    np.fill_diagonal(cosines, -1.0)  # Everybody is like itself.
    is_alike = cosines.max(axis=1) > ALIKE
    return frozenset(compress(ids, is_alike))


def likeness(parts: Sequence[OwnPart]) -> NDArray[np.float64]:
    """Return how alike members' own parts are without the noise in them, ``[n, n]``."""
    rounds = np.array([part.rounds for part in parts], dtype=float)
    squares = np.array([part.squares for part in parts])
    sums = np.array([part.sums for part in parts])
    gram = sums @ sums.T
    whole = np.diag(gram)
    # Two rounds at least: in a single one, nothing says what would stay.
    without_noise = np.maximum(whole - squares, (1 - MOST_NOISE) * whole)
    stays = without_noise * rounds / (rounds - 1)
    lengths = np.sqrt(np.outer(stays, stays))
    cosines: NDArray[np.float64] = gram / np.maximum(lengths, 1e-30)
    return cosines


class OwnParts(Callback, Kept):
    """Sums up what each member's updates have of their own, and writes it at the run's end."""

    def __init__(self, folder: RunFolder, seed: int) -> None:
        self.table = folder.own_parts
        self._seed = seed
        self.sums: Sums = {}
        self._after: dict[int, Sums] = {}  # As they were after the last two rounds.

    def why_updates_are_read(self, strategy: RunningStrategy) -> str:  # noqa: ARG002
        """Return nothing: masked rounds are left out."""
        return ""

    def on_step(self, step: Step) -> None:
        """Add a round."""
        if step.updates.unseen is not None:
            return
        updates = step.updates.client_updates
        lengths = torch.linalg.vector_norm(updates, dim=1, dtype=torch.float64).cpu()
        has_direction = lengths > 0
        if not bool(has_direction.any()):
            return
        nodes = compress(step.nodes, has_direction.tolist())
        directions = sketch(updates, self._seed)[has_direction]  # [m', 256]
        directions /= lengths[has_direction, None]
        # An update of 0 would leave a part of what is common to all as everybody's own.
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
        # A checkpoint may be of the last round, or of the one before.
        self._after = dict(list(self._after.items())[-1:])
        self._after[report.round] = dict(self.sums)

    def on_end(self) -> None:
        """Write a line for each member."""
        if self.sums:
            self.table.replace(self.lines_now())

    def lines_now(self) -> list[dict[str, object]]:
        """Return the lines of the rounds so far; heads bind them."""
        lines = []
        for client_id, (rounds, squares, sums) in sorted(self.sums.items()):
            cells = (client_id, rounds, squares, *sums.tolist())
            lines.append(dict(zip(self.table.columns, cells, strict=True)))
        return lines

    def memory(self, last_round: int) -> dict[str, Any]:
        """Return the sums after a round."""
        return {"sums": self._after.get(last_round, self.sums)}

    def restore(
        self,
        lines: Sequence[Mapping[str, Any]],  # noqa: ARG002
        memory: Mapping[str, Any] | None,
        last_round: int,  # noqa: ARG002
    ) -> None:
        """Go on with these sums; without any, with the rounds that come."""
        self.sums = {}
        if memory:
            self.sums = dict(memory["sums"])


class OwnPartsOfRun(RunPart):
    """Sums up own parts in a run with attribution, of which a statement can be made."""

    def build(self, run: RunContext) -> Built:
        """Return the callback, whose sums are in checkpoints."""
        if run.config.attribution == "off":
            return NOTHING
        own_parts = OwnParts(run.folder, run.config.seed)
        return Built(callbacks=[own_parts], kept={"own-parts": own_parts})
