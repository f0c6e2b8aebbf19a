r"""Members whose updates have the same own part: one owner under several names, or copied data.

What an update has of its own is its direction less the round's mean one; over rounds, noise that
differs averages out, and what comes of the same data stays:

.. math:: o_i = \sum_{t \ni i} \Big( \frac{u_i(t)}{\lVert u_i(t) \rVert}
                 - \frac{1}{m_t} \sum_j \frac{u_j(t)}{\lVert u_j(t) \rVert} \Big)

Two members are found where :math:`\cos(o_i, o_j) > 0.96` and both took part in five rounds at
least. The server keeps a signed random sketch of each :math:`o_i`: coordinates with random signs,
added up into 256 sums (AMS; Charikar et al., 2002). A cosine :math:`\rho` is told by it to about
:math:`(1 - \rho^2) / 16`, at the bound half a hundredth. Masked rounds show no update, and add
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from fedif_flower.run.folder import RunFolder
from fedif_flower.run.part import NOTHING, Built, Kept, RunContext, RunPart
from fedif_flower.seeding import torch_generator
from fedif_flower.strategies.callbacks import Callback, RunningStrategy
from fedif_flower.strategies.reports import RoundReport
from fedif_flower.strategies.steps import Step

SIZE = 256
ALIKE = 0.96  # No honest member of 30 federations on digits lies above (twins.csv).
MIN_ROUNDS = 5
_CHUNK = 1024 * SIZE  # Coordinates whose signs are in memory at once.
Sums = dict[int, tuple[int, Tensor]]


def sketch(updates: Tensor, seed: int) -> Tensor:
    """Return the signed random sketches of updates ``[m, d]``: ``[m, 256]``, in doubles."""
    generator = torch_generator("own-parts", seed)
    found = torch.zeros(len(updates), SIZE, dtype=torch.float64)
    for start in range(0, updates.shape[1], _CHUNK):
        part = updates[:, start : start + _CHUNK].cpu().double()
        signs = 2.0 * torch.randint(0, 2, (part.shape[1],), generator=generator) - 1.0
        part = pad(part * signs, (0, -part.shape[1] % SIZE))
        found += part.view(len(part), -1, SIZE).sum(dim=1)
    return found


def alike(sums: Mapping[int, tuple[int, Sequence[float]]]) -> frozenset[int]:
    """Return the client ids of members whose own part is another's, from rounds and sketches."""
    ids = [client_id for client_id, (rounds, _) in sums.items() if rounds >= MIN_ROUNDS]
    if len(ids) < 2:
        return frozenset()
    vectors = np.array([sums[client_id][1] for client_id in ids])
    units = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-30)
    cosines = units @ units.T
    np.fill_diagonal(cosines, -1.0)
    return frozenset(i for i, most in zip(ids, cosines.max(axis=1), strict=True) if most > ALIKE)


class OwnParts(Callback, Kept):
    """Sums up what each member's updates have of their own, and writes it at the run's end."""

    def __init__(self, folder: RunFolder, seed: int) -> None:
        self._table, self._seed = folder.own_parts, seed
        self.sums: Sums = {}
        self._after: dict[int, Sums] = {}  # As they were after the last two rounds.

    def needs_sight(self, strategy: RunningStrategy) -> str:  # noqa: ARG002
        """Return nothing: masked rounds are left out."""
        return ""

    def on_step(self, step: Step) -> None:
        """Add a round."""
        if step.updates.hidden is not None:
            return
        updates = step.updates.client_updates
        lengths = torch.linalg.vector_norm(updates, dim=1, dtype=torch.float64).cpu()
        units = sketch(updates, self._seed) / lengths.clamp_min(1e-30)[:, None]
        for node, own in zip(step.nodes, units - units.mean(dim=0), strict=True):
            rounds, before = self.sums.get(node.client_id, (0, torch.zeros_like(own)))
            self.sums[node.client_id] = rounds + 1, before + own

    def on_round(self, report: RoundReport) -> None:
        """Remember the sums after this round, for a checkpoint."""
        self._after = dict(list(self._after.items())[-1:])
        self._after[report.round] = dict(self.sums)

    def on_end(self) -> None:
        """Write a line for each member."""
        if self.sums:
            self._table.replace(
                dict(zip(self._table.columns, (client_id, rounds, *own.tolist()), strict=True))
                for client_id, (rounds, own) in sorted(self.sums.items())
            )

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
        self.sums = dict(memory["sums"]) if memory else {}


class OwnPartsOfRun(RunPart):
    """Sums up own parts in a run with attribution, of which a statement can be made."""

    def build(self, run: RunContext) -> Built:
        """Return the callback, whose sums are in checkpoints."""
        if run.config.attribution == "off":
            return NOTHING
        own = OwnParts(run.folder, run.config.seed)
        return Built(callbacks=[own], kept={"own-parts": own})
