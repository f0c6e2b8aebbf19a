"""The cost of valuing ten clients: by FedIF, by AFedSV as its authors run it, and by this package.

This package's valuations are AFedSV and exact Shapley values. All value the same replies on the
same images, with ``--full`` 2,000. The authors' loop evaluates each of its 950 coalitions; without
``--full`` it evaluates only some of them, and the seconds of all are extrapolated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Annotated, NamedTuple

import torch
import typer
from torch import Tensor

from fedif_flower.seeding import torch_generator
from fedif_flower.valuation import InfluenceValuation
from fedif_flower.valuation.shapley.permutation import random_permutations
from fedif_flower.valuation.shapley.valuation import ShapleyValuation
from fedif_studies.benchmarks.authors_loop import NUM_CLIENTS, JudgedRound, build_round, judge
from fedif_studies.benchmarks.common import MODELS, Figure, Timing, repeat, report, run_benchmark

NUM_SAMPLES = 50  # AFedSV's samples for each size of coalitions.
_QUICK_DRAWS = 10  # Without --full, so many drawn coalitions are evaluated: one of each size.


class ValuationCost(NamedTuple):
    """The cost of one round's valuation: CPU seconds, and the number of passes over the images."""

    cpu: Timing
    passes: int


def measure_once(call: Callable[[], int]) -> ValuationCost:
    """Return the cost of a valuation; ``call`` makes it and returns its number of passes."""
    began = time.process_time()
    passes = call()
    spent = time.process_time() - began
    return ValuationCost(Timing(spent, spent, spent), passes)


def drawn_coalitions() -> Tensor:
    """Return the coalitions that AFedSV draws in round 1 with seed 0: ``[M m, m]``, bool.

    M is ``NUM_SAMPLES`` and m ``NUM_CLIENTS``. Of every m coalitions, there is one of each size.
    """
    sizes = torch.arange(1, NUM_CLIENTS + 1).repeat(NUM_SAMPLES)
    generator = torch_generator("shapley", 0, 1)
    return random_permutations(len(sizes), NUM_CLIENTS, generator) < sizes[:, None]


def measure_authors(judged: JudgedRound, draws: int) -> ValuationCost:
    """Run the authors' loop on the first ``draws`` coalitions; extrapolate the seconds to all."""
    coalitions = drawn_coalitions()[:draws].tolist()
    cpu, passes = measure_once(lambda: judge(judged, coalitions))
    # All draws take M (2 m - 1) passes: the complement of a full coalition is empty.
    spent = cpu.median * NUM_SAMPLES * (2 * NUM_CLIENTS - 1) / passes
    return ValuationCost(Timing(spent, spent, spent), passes)


def measure_shapley(judged: JudgedRound, estimator: str) -> ValuationCost:
    """Return the cost of this package's Shapley valuation with this estimator."""
    valuation = ShapleyValuation(judged.validation(), estimator=estimator, num_samples=NUM_SAMPLES)
    return measure_once(lambda: valuation.score(judged.updates).evaluations)


def measure_influence(judged: JudgedRound) -> ValuationCost:
    """Return the cost of FedIF's valuation after the replies have come, its gradient included."""
    valuation = InfluenceValuation(judged.validation())

    def score() -> int:
        # A new tensor each time, since the gradient at the last model is remembered.
        params = judged.updates.global_params.clone()
        model = replace(judged.updates.model, params=params)
        return valuation.score(replace(judged.updates, model=model)).evaluations

    return ValuationCost(repeat(score, 9, time.process_time), score())


def compare(name: str, judged: JudgedRound, quick: bool) -> Iterator[Figure]:
    """Measure each valuation of the clients, and yield figures that compare two of them."""
    influence = measure_influence(judged)
    sampled = measure_shapley(judged, "complementary")
    exact = measure_shapley(judged, "exact")
    authors = measure_authors(judged, _QUICK_DRAWS if quick else NUM_SAMPLES * NUM_CLIENTS)
    for ours, title, aim, peer, peer_name in (
        (sampled, "AFedSV here", ">= 12", authors, "authors' loop"),
        (exact, "exact here", ">= 1", authors, "authors' loop"),
        (influence, "FedIF", ">= 450", authors, "authors' loop"),
        (influence, "FedIF", "", sampled, "AFedSV here"),
        (influence, "FedIF", "", exact, "exact here"),
    ):
        note = f"passes: {ours.passes}, peer {peer.passes}"
        if quick and peer is authors:
            note += ", extrapolated"
        yield Figure(
            name=f"{name}: {title} / {peer_name}",
            ours=ours.cpu.median,
            peer=peer.cpu.median,
            unit="CPU s",
            ratio=peer.cpu.median / ours.cpu.median,
            aim=aim,
            spread=f"{ours.cpu.low:.3g} to {ours.cpu.high:.3g} CPU s",
            note=note,
        )


def main(
    full: Annotated[bool, typer.Option(help="2,000 images, the authors' whole loop")] = False,
    write: Annotated[bool, typer.Option(help="write docs/results")] = False,
) -> None:
    """Print the table."""
    torch.set_num_threads(1)
    num_validation = 2000 if full else 200
    figures: list[Figure] = []
    for name, (model_name, shape) in MODELS.items():
        judged = build_round(model_name, shape, num_validation)
        figures += compare(name, judged, quick=not full)
    report(f"Valuation, m = {NUM_CLIENTS}", "valuation", figures, write=write, full=full)


if __name__ == "__main__":
    run_benchmark(main)
