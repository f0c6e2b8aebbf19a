"""What a checkpoint costs with a million members that took part, beside ten thousand.

Contributions, errors and a round's 1,000 lines of a model of 10,000 parameters: copied after each
round, written, and read back.
"""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer

from benchmarks.common import Figure, Timing, repeat, report
from fedif_flower.client_table import ClientTable
from fedif_flower.run.checkpoint import Checkpoint, CheckpointFolder
from fedif_flower.valuation.ledger import ScoreLedger

MEMBERS = (10_000, 1_000_000)
_SAMPLED = 1_000
_LINE = {"client_id": 2**63, "score": 0.125, "weight": 0.001, "weight_score": 0.5, "reason": ""}


class Server:
    """The parts of a server that know every member, after all have taken part."""

    def __init__(self, members: int, folder: Path) -> None:
        self.ledger = ScoreLedger(0.3)
        self.failures = ClientTable(errors=0, paused_until=0)
        self.ids = random.Random(0).sample(range(2**62), members)
        self.folder = CheckpointFolder(folder, {})
        self.rounds = 0
        for start in range(0, members, _SAMPLED):
            self.take_in(self.ids[start : start + _SAMPLED])

    def take_in(self, client_ids: list[int]) -> None:
        """Update scores and errors after a round."""
        self.ledger.update(client_ids, torch.ones(len(client_ids), dtype=torch.float64))
        nothing = np.zeros(len(client_ids))
        self.failures.write(client_ids, errors=nothing, paused_until=nothing)

    def state(self) -> dict[str, object]:
        """Copy what the next round changes."""
        return {"ledger": self.ledger.state_dict(), "failures": self.failures.state_dict()}

    def save(self) -> None:
        """Write a checkpoint with one round's lines."""
        self.rounds += 1
        lines = {"clients": [{"round": self.rounds, **_LINE}] * _SAMPLED}
        arrays = {"weight": torch.zeros(10_000)}
        self.folder.save(Checkpoint(self.rounds, {}, arrays, self.state(), {}, lines))

    def read(self) -> None:
        """Read the last checkpoint and take its scores over."""
        found = self.folder.find("auto")
        assert found is not None
        ScoreLedger(0.3).load_state_dict(found.strategy["ledger"])


def measure(members: int, times: int) -> dict[str, Timing]:
    """Return the seconds of a round's scores, of their copy, and of a checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        server = Server(members, Path(folder))
        drawn = server.ids[:: members // _SAMPLED]
        started = time.perf_counter()
        found = {
            "scores of a round": repeat(lambda: server.take_in(drawn), times),
            "their copy after a round": repeat(server.state, times),
            "checkpoint written": repeat(server.save, times),
            "checkpoint read": repeat(server.read, times),
        }
        size = sum(path.stat().st_size for path in Path(folder).glob("*.pt")) / 2e6
        seconds = time.perf_counter() - started
        print(f"{members:,} members: {size:.1f} MB a checkpoint, {seconds:.0f} s")
    return found


def main(
    times: Annotated[int, typer.Option(help="repetitions")] = 9,
    write: Annotated[bool, typer.Option(help="write docs/results")] = False,
) -> None:
    """Print the table."""
    few, many = (measure(members, times) for members in MEMBERS)
    figures = [
        Figure(
            f"{name}: a million members / 10,000",
            1e3 * many[name].median,
            1e3 * few[name].median,
            "ms",
            many[name].median / few[name].median,
            "",
            f"{1e3 * many[name].low:.3g} to {1e3 * many[name].high:.3g} ms",
        )
        for name in many
    ]
    report("A million members: state", "checkpoints", figures, write=write)


if __name__ == "__main__":
    typer.run(main)
