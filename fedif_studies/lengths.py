"""Clients that send updates far too long: accuracy with bounded lengths and without.

Digits, 50 clients of which 10 train in a round, 100 rounds; malicious clients multiply the update
that they trained honestly. Accuracy is the mean of the last ten rounds, over seeds. Runs in this
process, without Ray. ``docs/security.md`` quotes the table.
"""

from __future__ import annotations

import json
import logging
import statistics
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy.typing as npt
import typer
from flwr.app import ArrayRecord, Context, Message

from fedif_flower.attacks import malicious_partitions
from fedif_flower.client.app import app as client_app
from fedif_flower.messages.arrays import pack_array
from fedif_flower.run.config import RunConfig, default_run_config
from fedif_flower.run.federation import run_federation
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.settings import Scalar

CLIENTS = 50
NDArray = npt.NDArray[Any]


@dataclass(frozen=True)
class Scaled:
    """The real clients, of whom some send ``w_{t-1} + factor * update`` from a round on."""

    factor: float
    malicious: frozenset[int]
    first_round: int = 1

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a message as a client of ``context``'s partition does."""
        reply = client_app(message, context)
        if (
            message.metadata.message_type != "train"
            or context.node_config["partition-id"] not in self.malicious
            or _round_of(message) < self.first_round
        ):
            return reply
        sent = message.content.array_records["arrays"]
        ((name, trained),) = reply.content.array_records.items()
        reply.content[name] = ArrayRecord(
            {
                key: pack_array(_stretched(sent[key].numpy(), array.numpy(), self.factor))
                for key, array in trained.items()
            }
        )
        return reply


def _round_of(message: Message) -> int:
    server_round = message.content.config_records["config"]["server-round"]
    assert isinstance(server_round, int)
    return server_round


def _stretched(before: NDArray, after: NDArray, factor: float) -> NDArray:
    stretched: NDArray = (before + factor * (after - before)).astype(before.dtype)
    return stretched


@dataclass(frozen=True)
class Cell:
    """One line of the table: who does what."""

    title: str
    factor: float = 1.0
    share: float = 0.0
    first_round: int = 1


CELLS = (
    Cell("clean"),
    *(
        Cell(f"{title}, {share:.0%} malicious", factor, share, first_round)
        for title, factor, first_round in (
            ("flipped x1", -1.0, 1),
            ("flipped x10", -10.0, 1),
            ("flipped x100", -100.0, 1),
            ("honest x10", 10.0, 1),
            ("flipped x10 from round 50 on", -10.0, 50),
        )
        for share in (0.2, 0.4)
    ),
)


def measure(
    cell: Cell, seed: int, clipping: float | str, rounds: int = 100, strategy: str = "fedif"
) -> float:
    """Return the mean test accuracy of the last ten rounds, in percent."""
    settings: dict[str, Scalar] = {
        "strategy": strategy,
        "num-clients": CLIENTS,
        "fraction-train": 0.2,
        "num-server-rounds": rounds,
        "update-clipping": clipping,
        "seed": seed,
        "device": "cpu",
        "checkpoint-every": 0,
    }
    malicious = malicious_partitions(CLIENTS, cell.share, seed)
    clients = Scaled(cell.factor, frozenset(malicious), cell.first_round)
    with TemporaryDirectory() as output_dir:
        base = default_run_config() | {"output-dir": output_dir}
        config = RunConfig.from_run_config(base | settings)
        run_dir = run_federation(LocalGrid(clients, CLIENTS), config)
        summary = json.loads((run_dir / "summary.json").read_text())
    return 100 * float(summary["test_accuracy_last_ten"])


def main(
    seeds: Annotated[int, typer.Option(help="seeds of each cell")] = 3,
    rounds: Annotated[int, typer.Option(help="rounds of each run")] = 100,
    strategy: Annotated[str, typer.Option(help="which strategy")] = "fedif",
) -> None:
    """Print a Markdown table with one line per attack."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    print("| clients | unbounded | bounded (default) | least of the seeds |")
    print("| --- | ---: | ---: | ---: |")
    for cell in CELLS:
        without, bounded = (
            [measure(cell, seed, clipping, rounds, strategy) for seed in range(seeds)]
            for clipping in (0.0, "auto")
        )
        figures = [statistics.mean(without), statistics.mean(bounded), min(bounded)]
        shown = (f"{figure:.1f}" for figure in figures)
        print("|", " | ".join([cell.title, *shown]), "|", flush=True)


if __name__ == "__main__":
    typer.run(main)
