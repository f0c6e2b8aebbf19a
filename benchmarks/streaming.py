"""FedIF's rounds with many clients and large models: updates summed as they come, or kept.

Clients return what they receive, a thousandth longer, on Ray or in this process: milliseconds of a
round, and the peak memory of all processes together.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, cast

import torch
import typer
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from torch import nn

from benchmarks.common import Figure, report
from benchmarks.memory import MemoryWatch
from benchmarks.rounds import Cost, cost_of, measure_alone
from fedif_flower import FedIF, Validation
from fedif_flower.messages.arrays import pack_array
from fedif_flower.messages.models import model_arrays
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.runtime.simulation import run_on_ray
from fedif_flower.stages import MaxLength
from fedif_flower.strategies import Setup
from fedif_flower.strategies.nodes import identify_clients
from fedif_flower.strategies.streaming import AggregationMode

MILLION = 10**6
MODULE = "benchmarks.streaming"  # This one: its name is __main__ where it is run.
_CLASSES = 10
app = ClientApp()


@dataclass(frozen=True)
class Case:
    """A round of so many clients, a model of ``size`` parameters, one way to aggregate."""

    clients: int
    size: int
    aggregation: str
    rounds: int
    on_ray: bool = True


@app.train()
def lengthen(message: Message, _: Context) -> Message:
    """Return the model a thousandth longer."""
    arrays = {
        name: pack_array(array.numpy() * array.numpy().dtype.type(1.001))
        for name, array in message.content["arrays"].items()
    }
    metrics = MetricRecord({"num-examples": 1})
    return Message(
        RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}), reply_to=message
    )


class OneByOne(LocalGrid):
    """A grid whose nodes answer when their replies are looked at: one is in memory at a time."""

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """Push messages now, and let each node answer later."""
        del timeout
        return self._answers(self.push_messages(messages))

    def _answers(self, message_ids: Iterable[str]) -> Iterator[Message]:
        for message_id in message_ids:
            replies = self.pull_messages([message_id])
            while replies:
                yield replies.pop()


def measure(case: Case) -> Cost:
    """Run one case in this process, whose peak memory it needs for itself."""
    ends: list[float] = []

    def main(grid: Grid) -> None:
        # A few examples give a gradient over all of so large a model.
        model = nn.EmbeddingBag(case.size // _CLASSES, _CLASSES)
        words, labels = torch.arange(64).view(8, 8), torch.arange(8)
        strategy = FedIF(
            Validation(model, words, labels, device="cpu"),
            stages=[MaxLength(1e6)],
            fraction_evaluate=0.0,
            min_available_nodes=case.clients,
            setup=Setup(
                aggregation=cast(AggregationMode, case.aggregation),
                identify=identify_clients,
                device="cpu",
            ),
        )

        def on_round(_round: int, _arrays: ArrayRecord) -> None:
            ends.append(time.perf_counter())

        arrays = model_arrays(model)
        del model
        strategy.start(grid, arrays, num_rounds=case.rounds, evaluate_fn=on_round)

    with MemoryWatch() as watch:
        if case.on_ray:
            run_on_ray(main, app, num_clients=case.clients)
        else:
            main(OneByOne(app, case.clients))
    return cost_of(ends, watch)


def figures_of(
    sizes: dict[int, list[tuple[int, bool]]], rounds: int, *, on_ray: bool
) -> list[Figure]:
    """Measure the cases of each size, streaming against stacked where that fits."""
    figures = []
    for size, cases in sizes.items():
        least: Cost | None = None
        for clients, fits in cases:
            streamed = measure_alone(MODULE, Case(clients, size, "streaming", rounds, on_ray))
            least = least or streamed
            name = f"{clients:,} clients, {size / MILLION:g} M parameters"
            parts = f"driver {streamed.driver / 1e9:.2f}, Ray {streamed.others / 1e9:.2f} GB"
            ours, first = streamed.together / 1e9, least.together / 1e9
            figures.append(
                Figure(
                    f"{name}: streaming, peak memory / {cases[0][0]:,} clients",
                    ours,
                    first,
                    "GB",
                    ours / first,
                    "flat, <= 12 GB",
                    parts,
                )
            )
            if not fits:
                continue
            stacked = measure_alone(MODULE, Case(clients, size, "stacked", rounds, on_ray))
            spread = f"{streamed.low:.0f} to {streamed.high:.0f} ms"
            ratio, memory = streamed.median / stacked.median, stacked.together / 1e9
            figures += [
                Figure(
                    f"{name}: round, streaming / stacked",
                    streamed.median,
                    stacked.median,
                    "ms",
                    ratio,
                    "about 1",
                    spread,
                ),
                Figure(
                    f"{name}: peak memory, streaming / stacked",
                    ours,
                    memory,
                    "GB",
                    ours / memory,
                    "",
                ),
            ]
    return figures


def main(
    full: Annotated[bool, typer.Option(help="1,000 clients at 11 M, 100 at 100 M")] = False,
    rounds: Annotated[int, typer.Option(help="rounds of each case")] = 4,
    local: Annotated[bool, typer.Option(help="clients in this process, not on Ray")] = False,
    write: Annotated[bool, typer.Option(help="write docs/results")] = False,
    case: Annotated[str, typer.Option(help="measure this case alone, print JSON")] = "",
) -> None:
    """Print the table."""
    if case:
        print(json.dumps(asdict(measure(Case(**json.loads(case))))))
        return
    sizes = (
        {
            11 * MILLION: [(10, True), (100, True), (1_000, False)],
            100 * MILLION: [(10, True), (100, False)],
        }
        if full
        else {MILLION: [(10, True), (100, True)]}
    )
    report(
        "Streaming",
        "streaming",
        figures_of(sizes, rounds, on_ray=not local),
        write=write,
        full=full,
    )


if __name__ == "__main__":
    typer.run(main)
