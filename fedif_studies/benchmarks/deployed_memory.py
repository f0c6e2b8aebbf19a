"""Memory of a server behind a SuperLink that takes in large updates, by the number of members.

The benchmark starts a SuperLink behind TLS, a run of FedIF with ResNet-18, and registered members
that train nothing: each sends the model back with a random update of its own. It measures the
process of the ServerApp. The held-out set is not examined, which a run does before the first reply.

The server keeps updates in memory; it keeps them in a mapped file only if they take more than a
quarter of the free memory. So its anonymous memory grows by the updates. Beyond these, it must not
depend on the number of members.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from fedif_flower.run.rows import read_rows
from fedif_studies.benchmarks.common import Figure, report, run_benchmark, sampling
from fedif_studies.benchmarks.memory import (
    ROUNDS,
    ServerCost,
    app,
    memory_figure,
    resident_bytes,
)
from fedif_studies.lab.lists import counts_in
from tests.integration.deployed import wait_for
from tests.integration.played import Played
from tests.integration.protocol import Member

UPDATE_BYTES = 4 * 11_173_962  # ResNet-18 with ten classes.
SECONDS = 1800.0  # All rounds together may take so long.
SERVER_APP = "flwr-serverapp"


class Wandering(Played):
    """Members that train nothing; ``begun`` tells whether any was asked to train yet."""

    begun = False

    def play(self) -> None:
        """Answer until all rounds are over."""
        until = time.monotonic() + SECONDS
        while len(self.seconds()) < ROUNDS:
            if time.monotonic() > until:
                raise TimeoutError(f"{len(self.seconds())} rounds in {SECONDS:g} s")
            for member in self.members.values():
                self._stay_alive()
                self._answer(member)

    def _stay_alive(self) -> None:
        """Send every member's heartbeat, which is due before all members have answered."""
        for member in self.members.values():
            member.stay_alive()

    def _answer(self, member: Member) -> None:
        message = self.asked(member)
        if message is not None:
            self.begun = True
            member.send(app(message, member.context(message, {})))


@dataclass(frozen=True)
class DeployedCost:
    """The most memory of a ServerApp before members are asked to train, and from then on."""

    before: ServerCost
    most: ServerCost


def measure(members: int) -> DeployedCost:
    """Play all rounds of a run with so many members; return the ServerApp's memory."""
    names = tuple(f"member-{number}" for number in range(members))
    samples: list[tuple[bool, ServerCost]] = []
    settings: dict[str, Any] = {
        "model": "resnet18",
        "num-server-rounds": ROUNDS,
        "pace.timeout": SECONDS,
        "validation.vet": False,
        "validation.noise": "off",
    }
    with (
        tempfile.TemporaryDirectory() as folder,
        Wandering(Path(folder), names, **settings) as played,
    ):
        (process,) = cast(list[int], wait_for("the ServerApp", lambda: _server_apps(played)))

        def sample() -> tuple[bool, ServerCost]:
            return played.begun, ServerCost(*resident_bytes(process))

        with sampling(sample, samples, seconds=0.05):
            played.play()
        _require_all_accepted(played.run_dir, members)
    before = [cost for begun, cost in samples if not begun]
    since = [cost for begun, cost in samples if begun]
    return DeployedCost(_most_of(before), _most_of(since))


def _require_all_accepted(run_dir: Path, members: int) -> None:
    """Raise RuntimeError unless every reply of every round was accepted."""
    counts = Counter(row["status"] for row in read_rows(run_dir / "clients.csv"))
    if counts != {"accepted": ROUNDS * members}:
        raise RuntimeError(f"{ROUNDS} rounds of {members} members: {dict(counts)}")


def _most_of(costs: Sequence[ServerCost]) -> ServerCost:
    """Return the most of each kind of memory."""
    return ServerCost(
        anonymous=max(cost.anonymous for cost in costs),
        mapped=max(cost.mapped for cost in costs),
    )


def _server_apps(played: Played) -> list[int]:
    """Return the ids of the ServerApp's processes; empty if there is none yet."""
    try:
        return played.servers(SERVER_APP)
    except AssertionError:
        return []


def figures_of(members: int, cost: DeployedCost) -> list[Figure]:
    """Return a server's memory beside the size of all updates of a round."""
    all_updates = members * UPDATE_BYTES
    name = f"SuperLink, {members} members, {UPDATE_BYTES / 4e6:.1f} M parameters"
    return [
        memory_figure(f"{name}: before a reply", cost.before.anonymous, all_updates),
        memory_figure(f"{name}: anonymous memory", cost.most.anonymous, all_updates),
        memory_figure(f"{name}: mapped files", cost.most.mapped, all_updates),
    ]


def main(
    members: Annotated[str, typer.Option(help="how many, by commas")] = "4,16",
    write: Annotated[bool, typer.Option(help="write docs/results")] = False,
) -> None:
    """Print the table."""
    figures = []
    for number in counts_in("members", members):
        figures += figures_of(number, measure(number))
    report("Memory of a ServerApp behind a SuperLink", "deployed-memory", figures, write=write)


if __name__ == "__main__":
    run_benchmark(main)
