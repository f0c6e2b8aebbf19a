"""How near path attribution and its rivals come to the exact Shapley values of a round.

``python -m benchmarks.attribution --data-dir DIR`` measures what is not yet in
``docs/results/attribution.csv`` and adds lines as it goes: it can be stopped at any time.
``--page`` writes the table of ``docs/methods/path-attribution.md`` and measures nothing.

The game of a round: coalitions of its ten clients put their updates in with FedAvg's weights, and
are worth by how much the validation loss falls (2^10 partial sums). Fashion-MNIST with LeNet-5, or
CIFAR-10 with the paper's CNN; 6,000 images over 100 clients, FedAvg; 500 validation images.
"""

from __future__ import annotations

import csv
import itertools
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
import typer
from scipy.stats import pearsonr, spearmanr
from torch import Tensor

from benchmarks.attribution_methods import Game, measure_all
from benchmarks.common import RESULTS
from benchmarks.descent_federation import COLUMNS as PAPER_COLUMNS
from benchmarks.descent_federation import SIGN_FLIP, Federation, HeldOut, Round
from fedif_flower.seeding import torch_generator
from fedif_flower.storage import write_atomically
from fedif_flower.sweeps.data import find_data

CSV = RESULTS / "attribution.csv"
PAGE = RESULTS.parent / "methods" / "path-attribution.md"
BEGIN, END = "<!-- begin: agreement -->\n", "<!-- end: agreement -->\n"
ROUNDS = {"early": 2, "middle": 9, "late": 26}
VALIDATION_IMAGES = 500
FIELDS = (
    *("dataset", "attack", "seed", "round", "method", "pearson", "spearman", "sum_error"),
    *("evaluations", "gradients", "seconds"),
)
COLUMNS = {**PAPER_COLUMNS, "sign-flip": SIGN_FLIP}
MODELS = {"fashion-mnist": "lenet5", "cifar10": "cnn"}
TITLES = {"fashion-mnist": "Fashion-MNIST, LeNet-5", "cifar10": "CIFAR-10, the paper's CNN"}


@dataclass
class Measured:
    """FedAvg, which lets every method value the rounds asked for."""

    federation: Federation
    dataset: str
    column: str
    rounds: tuple[int, ...]
    beta: float = 0.0
    mu: float = 0.0
    lines: list[dict[str, object]] = field(default_factory=list)

    def weigh(self, given: Round) -> Tensor:
        """Return the shares of the examples, and measure the round where it is one of those."""
        if given.number in self.rounds:
            game = Game(given.judge, given.params, given.updates, given.shares)
            generator = torch_generator("attribution", self.federation.seed, given.number)
            found = measure_all(self.federation.model, game, generator)
            exact = found["exact Shapley"].values
            for name, one in found.items():
                off = abs(float(one.values.sum() - exact.sum())) / abs(float(exact.sum()))
                self.lines.append(
                    {
                        "dataset": self.dataset,
                        "attack": self.column,
                        "seed": self.federation.seed,
                        "round": given.number,
                        "method": name,
                        "pearson": agreement(pearsonr, one.values, exact),
                        "spearman": agreement(spearmanr, one.values, exact),
                        "sum_error": off if one.adds_up else "",
                        "evaluations": one.evaluations,
                        "gradients": one.gradients,
                        "seconds": one.seconds,
                    }
                )
            add(self.lines)
            self.lines.clear()
        return given.shares


def agreement(correlation: Callable[..., Any], values: Tensor, exact: Tensor) -> float:
    """Return a correlation; 0 where a method gives every client the same value."""
    return float(correlation(values, exact).statistic) if values.max() > values.min() else 0.0


def done() -> list[dict[str, str]]:
    """Return the lines that are there already."""
    if not CSV.exists():
        return []
    with CSV.open(newline="") as file:
        return list(csv.DictReader(file))


def add(lines: list[dict[str, object]]) -> None:
    """Add lines, and a header before the first."""
    new = not CSV.exists()
    with CSV.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        if new:
            writer.writeheader()
        for line in lines:
            shown = {k: f"{v:.6g}" if isinstance(v, float) else v for k, v in line.items()}
            writer.writerow(shown)


def table(lines: list[dict[str, str]]) -> str:
    """Return a Markdown table: mean and least correlation by attack and method, for a data set."""
    attacks = [name for name in COLUMNS if any(line["attack"] == name for line in lines)]
    cells = {(line["attack"], line["seed"], line["round"]) for line in lines}
    seeds = {line["seed"] for line in lines}
    text = [
        f"**{TITLES[lines[0]['dataset']]}**",
        "",
        f"| method | {' | '.join(attacks)} | error of the sum | evaluations, gradients |",
        f"| --- | {' | '.join(['---:'] * len(attacks))} | ---: | ---: |",
    ]
    for method in dict.fromkeys(line["method"] for line in lines):
        own = [line for line in lines if line["method"] == method]
        row = [method]
        for attack in attacks:
            here = [line for line in own if line["attack"] == attack]
            both = [[float(line[k]) for line in here] for k in ("pearson", "spearman")]
            means = " / ".join(f"{statistics.fmean(values):.3f}" for values in both)
            least = " / ".join(f"{min(values):.2f}" for values in both)
            row.append(f"{means} ({least})")
        errors = [float(line["sum_error"]) for line in own if line["sum_error"]]
        row.append(f"{100 * statistics.median(errors):.1f} %" if errors else "-")
        evaluations = statistics.fmean(float(line["evaluations"]) for line in own)
        row.append(f"{evaluations:.0f}, {own[0]['gradients']}")
        text.append(f"| {' | '.join(row)} |")
    text += [
        "",
        f"{len(cells)} rounds of ten clients: {len(attacks)} columns, seeds: {len(seeds)}, rounds "
        f"{', '.join(sorted({line['round'] for line in lines}, key=int))}.",
        "",
    ]
    return "\n".join(text)


def write_page() -> None:
    """Write the table into the method's page."""
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    lines = done()
    measured = dict.fromkeys(line["dataset"] for line in lines)
    tables = [
        "Pearson / Spearman with the exact values: mean (least) over the measured rounds; a\n"
        "method that gives every client the same value counts 0. Error of the sum: median over\n"
        "all rounds. Costs are those of the method alone, with no gradient shared.\n",
        *(table([line for line in lines if line["dataset"] == name]) for name in measured),
    ]
    write_atomically(PAGE, before + BEGIN + "\n".join(tables) + END + after)


def main(
    data_dir: Annotated[str, typer.Option(help="where the data set lies")] = "",
    dataset: Annotated[str, typer.Option(help="fashion-mnist or cifar10")] = "fashion-mnist",
    seeds: Annotated[int, typer.Option(help="how many")] = 3,
    page: Annotated[bool, typer.Option(help="write the table and measure nothing")] = False,
) -> None:
    """Measure every column and seed that is missing."""
    torch.set_num_threads(1)
    if page:
        write_page()
        return
    found, _ = find_data(dataset, data_dir)
    for seed, column in itertools.product(range(seeds), COLUMNS):
        known = {
            int(line["round"])
            for line in done()
            if (line["dataset"], line["attack"], line["seed"]) == (dataset, column, str(seed))
        }
        missing = tuple(number for number in ROUNDS.values() if number not in known)
        if missing:
            federation = Federation(
                COLUMNS[column],
                seed,
                str(found["data-dir"]),
                HeldOut(VALIDATION_IMAGES),
                MODELS[dataset],
                str(found["dataset"]),
            )
            federation.run(Measured(federation, dataset, column, missing), max(missing))
            print(f"{dataset}, {column}, seed {seed}", flush=True)


if __name__ == "__main__":
    typer.run(main)
