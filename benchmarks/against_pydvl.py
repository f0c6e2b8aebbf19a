"""Our Shapley values beside pyDVL's, on a game of ten clients that both look up.

The game comes from ``python -m benchmarks.valuation --game PATH``: the accuracies of all 1,024
coalitions of a real round. pyDVL needs NumPy < 2, so it runs in an environment of its own:
``python -m venv ENV && ENV/bin/pip install pydvl``, then name ``ENV/bin/python``.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from torch import Generator, Tensor

from benchmarks.common import Figure, report
from fedif_flower.valuation.shapley import (
    ShapleyEstimate,
    Utility,
    complementary_shapley,
    exact_shapley,
    owen_shapley,
    permutation_shapley,
)

_PERMUTATIONS = 95

Run = Callable[[Utility, int, Generator], ShapleyEstimate]
# What each asks for besides the empty coalition is as near to 950 as its definition allows.
OURS: dict[str, Run] = {
    "permutations": lambda u, m, g: permutation_shapley(
        u, m, num_permutations=_PERMUTATIONS, generator=g
    ),
    "AFedSV's stratified": lambda u, m, g: complementary_shapley(u, m, num_samples=50, generator=g),
    "Owen sampling": lambda u, m, g: owen_shapley(u, m, num_samples=43, generator=g),
}


def root_mean_square(errors: Tensor) -> float:
    return float(errors.square().mean().sqrt())


def run_pydvl(python: Path, game: Path, repeats: int) -> dict[str, Any]:
    """Return what ``pydvl_values.py`` prints, run by another Python."""
    script = Path(__file__).with_name("pydvl_values.py")
    command = [str(python), "-W", "ignore", str(script), str(game)]
    finished = subprocess.run(
        [*command, str(_PERMUTATIONS), str(repeats)], check=True, capture_output=True, text=True
    )
    answer: dict[str, Any] = json.loads(finished.stdout)
    return answer


def compare(game: Path, python: Path, repeats: int) -> list[Figure]:
    """Return the figures of one game."""
    with np.load(game) as file:
        table = torch.from_numpy(file["utilities"])
        m = int(file["num_clients"])

    def utility(masks: Tensor) -> Tensor:
        return table[masks.long() @ 2 ** torch.arange(m)]

    peer = run_pydvl(python, game, repeats)
    exact = exact_shapley(utility, m).values
    gap = float((exact - torch.tensor(peer["exact"], dtype=torch.float64)).abs().max())
    size = float(exact.abs().max())
    name, pydvl = game.stem, f"pyDVL {peer['version']}"
    figures = [
        Figure(
            f"{name}: largest gap to {pydvl}'s exact values / largest value",
            gap,
            size,
            "",
            gap / size,
            "< 1e-9",
        )
    ]
    theirs = root_mean_square(torch.tensor(peer["estimates"], dtype=torch.float64) - exact)
    for title, run in OURS.items():
        runs = [run(utility, m, Generator().manual_seed(seed)) for seed in range(repeats)]
        error = root_mean_square(torch.stack([estimate.values for estimate in runs]) - exact)
        asked = float(np.mean([estimate.asked for estimate in runs]))
        distinct = float(np.mean([estimate.evaluations for estimate in runs]))
        figures.append(
            Figure(
                f"{name}: RMS error of {title} / of {pydvl}'s permutations",
                error,
                theirs,
                "",
                error / theirs,
                "about 1" if title == "permutations" else "",
                note=f"{repeats} seeds; {asked:.0f} asked, {distinct:.0f} evaluated; "
                f"theirs {peer['calls']:.0f} asked, {peer['distinct']:.0f} distinct",
            )
        )
    return figures


def main(
    games: Annotated[list[Path], typer.Argument(help="files of --game")],
    python: Annotated[Path, typer.Option(help="a Python that has pydvl")],
    repeats: Annotated[int, typer.Option(help="seeds")] = 100,
    write: Annotated[bool, typer.Option(help="write docs/results")] = False,
) -> None:
    """Print the table."""
    figures = [figure for game in games for figure in compare(game, python, repeats)]
    report("Shapley values beside pyDVL's", "against-pydvl", figures, write=write)


if __name__ == "__main__":
    typer.run(main)
