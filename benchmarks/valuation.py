"""What it costs to value ten clients: FedIF, AFedSV as its authors run it, AFedSV and exact here.

All judge the same replies on the same 2,000 images in one run. The authors' loop evaluates each
of its 950 coalitions; with ``--quick`` it evaluates a stated few, and the rest is extrapolated.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import torch
import typer
from torch import Tensor

from benchmarks.common import Figure, report
from benchmarks.naive_afedsv import NaiveAFedSV
from benchmarks.replies import NUM_CLIENTS, Case, build_case, client_states
from fedif_flower.seeding import torch_generator
from fedif_flower.valuation import InfluenceValuation
from fedif_flower.valuation.shapley.estimate import (
    ShapleyEstimate,
    Utility,
    random_permutations,
)
from fedif_flower.valuation.shapley.exact import all_coalitions
from fedif_flower.valuation.shapley.valuation import ShapleyValuation

NUM_SAMPLES = 50
_QUICK_DRAWS = 10
MODELS = {
    "CIFAR-10 CNN": ("cnn", (3, 32, 32)),
    "Fashion-MNIST CNN": ("cnn-batch-norm", (1, 28, 28)),
}


@dataclass(frozen=True)
class Cost:
    """One round's valuation: seconds, those of all cores together, passes, and what it said."""

    seconds: float
    cpu_seconds: float
    evaluations: int
    values: Tensor
    spread: str = ""
    utilities: dict[tuple[bool, ...], float] = field(default_factory=dict)


class Stopwatch:
    """Seconds since it was made: on the wall, and of all cores together."""

    def __init__(self) -> None:
        self._started = time.perf_counter(), time.process_time()

    def read(self) -> tuple[float, float]:
        """Return both."""
        wall, cpu = self._started
        return time.perf_counter() - wall, time.process_time() - cpu


def drawn_coalitions() -> Tensor:
    """Return the coalitions L that AFedSV draws in round 1 of seed 0, ``[M m, m]``."""
    sizes = torch.arange(1, NUM_CLIENTS + 1).repeat(NUM_SAMPLES)
    generator = torch_generator("shapley", 0, 1)
    return random_permutations(len(sizes), NUM_CLIENTS, generator) < sizes[:, None]


def measure_naive(case: Case, draws: int) -> tuple[Cost, NaiveAFedSV]:
    """Run the authors' loop; of fewer draws than all, the seconds are extrapolated."""
    judge = case.validation()
    empty = judge.accuracy(case.updates.global_params, case.updates.named_buffers)
    naive = NaiveAFedSV(case.model, client_states(case), case.validation_images, empty)
    left = drawn_coalitions()
    # The first m draws have every size once.
    watch = Stopwatch()
    values = naive.values(left[:draws].tolist())
    seconds, cpu_seconds = watch.read()
    scale = NUM_SAMPLES * (2 * NUM_CLIENTS - 1) / naive.evaluations
    estimate = torch.from_numpy(values)
    return Cost(seconds * scale, cpu_seconds * scale, naive.evaluations, estimate), naive


def measure_shapley(case: Case, estimator: str) -> Cost:
    """Return what this package's Shapley valuation costs, and says."""
    valuation = ShapleyValuation(case.validation(), estimator=estimator, num_samples=NUM_SAMPLES)
    utilities: dict[tuple[bool, ...], float] = {}
    estimate = valuation.estimator

    def recorded(utility: Utility, *arguments: Any, **named: Any) -> ShapleyEstimate:
        def noted(masks: Tensor) -> Tensor:  # [c, m] -> [c]
            answer = utility(masks)
            utilities.update(zip(map(tuple, masks.tolist()), answer.tolist(), strict=True))
            return answer

        return estimate(noted, *arguments, **named)

    valuation.estimator = recorded
    watch = Stopwatch()
    scores = valuation.score(case.updates)
    seconds, cpu_seconds = watch.read()
    return Cost(seconds, cpu_seconds, scores.evaluations, scores.values, utilities=utilities)


def measure_influence(case: Case, times: int) -> Cost:
    """Return what FedIF costs once the replies are here, its gradient included."""
    valuation = InfluenceValuation(case.validation(), overlap=False)
    scores = valuation.score(case.updates)
    readings = []
    for _ in range(times):
        watch = Stopwatch()
        valuation.score(case.updates)
        readings.append(watch.read())
    walls, cpus = zip(*readings, strict=True)
    spread = f"{1e3 * min(walls):.3g} to {1e3 * max(walls):.3g} ms"
    return Cost(median(walls), median(cpus), scores.evaluations, scores.values, spread)


def compare(name: str, case: Case, quick: bool, game: Path | None) -> Iterator[Figure]:
    """Measure every way of valuing the clients, the dearest last, and yield the figures."""
    draws = _QUICK_DRAWS if quick else NUM_SAMPLES * NUM_CLIENTS
    influence = measure_influence(case, 9)
    sampled = measure_shapley(case, "complementary")
    exact = measure_shapley(case, "exact")
    naive, loop = measure_naive(case, draws)
    extrapolated = f" (extrapolated from {loop.evaluations} passes)" if quick else ""

    # One core's time is its own whatever else the machine does; that of several is not.
    unit = "CPU s" if torch.get_num_threads() == 1 else "s"

    def against(
        ours: Cost, title: str, aim: str, peer: Cost = naive, peer_name: str = "authors' loop"
    ) -> Figure:
        here, there = (c.cpu_seconds if unit == "CPU s" else c.seconds for c in (ours, peer))
        return Figure(
            f"{name}: {title} / {peer_name}",
            here,
            there,
            unit,
            there / here,
            aim,
            ours.spread,
            f"{ours.evaluations} passes, {ours.seconds:.3g} s, {ours.cpu_seconds:.3g} CPU s; "
            f"peer {peer.evaluations} passes, {peer.seconds:.3g} s, {peer.cpu_seconds:.3g} CPU s"
            f"{extrapolated}; {case.validation_images.source}",
        )

    yield against(sampled, "AFedSV here", ">= 6")
    yield against(exact, "exact here", ">= 1")
    yield against(influence, "FedIF", ">= 450")
    yield against(influence, "FedIF", "", sampled, "AFedSV here")
    yield against(influence, "FedIF", "", exact, "exact here")
    yield from agreement(name, case, sampled, exact, naive, loop, quick, game)


def agreement(
    name: str,
    case: Case,
    sampled: Cost,
    exact: Cost,
    naive: Cost,
    loop: NaiveAFedSV,
    quick: bool,
    game: Path | None,
) -> Iterator[Figure]:
    """Yield how far the estimates lie apart: same coalitions, same draws, rounding alone."""
    if game is not None:
        write_game(game, name, exact.utilities)
    ours = exact.utilities
    gaps = [abs(ours[mask] - accuracy) for mask, accuracy in loop.accuracies.items()]
    images = len(case.validation_images.labels)
    different = sum(gap > 1e-9 for gap in gaps)
    yield Figure(
        f"{name}: coalitions whose accuracy differs / all that were drawn",
        different,
        len(gaps),
        "",
        different / len(gaps),
        "ties alone",
        note=f"at most {max(gaps) * images:.0f} of {images} images",
    )
    if not quick:
        gap = float((sampled.values - naive.values).abs().max())
        size = float(naive.values.abs().max())
        yield Figure(
            f"{name}: largest gap between estimates / largest value",
            gap,
            size,
            "",
            gap / size,
            "ties alone",
        )
    error = float((sampled.values - exact.values).abs().max())
    size = float(exact.values.abs().max())
    yield Figure(
        f"{name}: largest error of AFedSV's estimate / largest exact value",
        error,
        size,
        "",
        error / size,
        "",
    )


def write_game(path: Path, name: str, utilities: dict[tuple[bool, ...], float]) -> None:
    """Write all utilities ``[2**m]``: client i is in the coalition of row r if r has bit i."""
    masks = map(tuple, all_coalitions(NUM_CLIENTS).tolist())
    table = np.array([utilities[mask] for mask in masks])
    path.parent.mkdir(parents=True, exist_ok=True)
    stem = f"{path.stem}-{name.lower().replace(' ', '-')}.npz"
    np.savez(path.with_name(stem), utilities=table, num_clients=NUM_CLIENTS)


def main(
    quick: Annotated[bool, typer.Option(help="200 images, 19 passes of the authors' loop")] = False,
    threads: Annotated[int, typer.Option(help="torch threads; 0: torch's own choice")] = 0,
    data_dir: Annotated[
        Path | None, typer.Option(help="image folder of CIFAR-10; else made up")
    ] = None,
    fashion_mnist: Annotated[Path | None, typer.Option(help="torchvision's root")] = None,
    only: Annotated[str, typer.Option(help="one model: cifar10 or fashion-mnist")] = "",
    game: Annotated[
        Path | None, typer.Option(help="write the exact games: PATH-<model>.npz")
    ] = None,
    write: Annotated[bool, typer.Option(help="write docs/results (not with --quick)")] = False,
) -> None:
    """Print the table."""
    if threads:
        torch.set_num_threads(threads)
    folders = {"CIFAR-10 CNN": data_dir, "Fashion-MNIST CNN": fashion_mnist}
    # All of them first: data that do not fit are said before the first is measured.
    built = {
        name: build_case(name, model_name, shape, 200 if quick else 2000, folders[name])
        for name, (model_name, shape) in MODELS.items()
        if only in model_name
    }
    figures = [
        figure for name, case in built.items() for figure in compare(name, case, quick, game)
    ]
    report(f"Valuation, m = {NUM_CLIENTS}", "valuation", figures, write=write and not quick)


if __name__ == "__main__":
    typer.run(main)
