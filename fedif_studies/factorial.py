"""``python -m fedif_studies.factorial``: what weights, bounds and server momentum each bring.

Every rule of weights runs without bounds and with the same ones, without server momentum and with
it, under the same attacks: so each is compared with FedAvg's weights and the *same* bounds and
momentum, seed by seed. Rows are added as they come; a cell that has one is not run again.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from scipy import stats

from fedif_flower.run.rows import read_rows
from fedif_flower.settings import Scalar
from fedif_flower.tables import ResultTable
from fedif_studies.lab.bounded import RULE
from fedif_studies.lab.cells import find_data
from fedif_studies.lab.commands import Again
from fedif_studies.lab.measurements import SPLITS
from fedif_studies.lab.run import federated, fill, last_ten
from fedif_studies.lab.table import MeanStd, pivot
from fedif_studies.rows import RESULTS, Row, put_tables

OUTPUT = RESULTS / "factorial.csv"
PAGE = RESULTS / "factorial.md"
BASELINE = "fedavg"
WEIGHTS = (
    *(BASELINE, "fedif", "influence-descent", "afedsv", "autobant"),
    *("fltrust", "rfa", "median", "trimmed-mean"),
)
# What has effects: of ten updates the trimmed mean leaves two, so that it is the median bit by bit,
# and the same tests would count twice.
COMPARED = WEIGHTS[1:-1]
# By bounds, whose weights run with them. "length": Clip alone, since the median leaves no step to
# choose; "own": the loss bound tries shares of the step alone, not influence descent's weights.
BOUNDS: Mapping[str, Sequence[str]] = {
    "none": WEIGHTS,
    "length": (BASELINE, "median", "trimmed-mean"),
    "own": (BASELINE, "fedif"),
    "full": WEIGHTS[:-2],
}
MOMENTUM = (0.0, 0.5)
ATTACKS: Mapping[str, Mapping[str, Scalar]] = {
    "none": {"attack": "none"},
    "label noise": {"attack": "label-noise"},
    "sign flip": {"attack": "sign-flip"},
    "gradient noise": {"attack": "gradient-noise"},
    "PoisonedFL": {"attack": "poisoned-fl", "poisoned-fl.patience": 10},
    "Min-Max": {"attack": "min-max"},
}
SHARES = (0.2, 0.4)
DATA: Mapping[str, Mapping[str, Scalar]] = {
    "digits": {},
    "fashion-mnist": {"model": "mlp", "local-epochs": 1, "learning-rate": 0.01},
}


class Cell(NamedTuple):
    """One federation. Its fields are the columns by which its row is found."""

    data: str
    seed: int
    attack: str
    share: float
    weights: str
    bounds: str
    momentum: float

    def control(self) -> Cell:
        """Return it with FedAvg's weights: what it is to be compared with."""
        return self._replace(weights=BASELINE)


def momentum(beta: float) -> dict[str, Scalar]:
    """Return the keys by which the model moves along a running mean of steps; 0: it does not."""
    if not beta:
        return {"server-optimizer": "off"}
    rates: dict[str, Scalar] = {"fedavgm.momentum": beta, "fedavgm.learning-rate": 1 - beta}
    return {"server-optimizer": "fedavgm", **rates}


def cells(data: Sequence[str], seeds: int) -> Iterator[Cell]:
    """Yield the cells, whole tables of one seed after the other."""
    for seed, name in product(range(seeds), data):
        for (attack, share), momentum, bounds in product(conditions(), MOMENTUM, BOUNDS):
            for weights in BOUNDS[bounds]:
                yield Cell(name, seed, attack, share, weights, bounds, momentum)


def conditions() -> list[tuple[str, float]]:
    """Return each attack with each share of malicious clients; without attack the share is 0."""
    return [("none", 0.0), *product(list(ATTACKS)[1:], SHARES)]


def _is_quoted(cell: Cell) -> bool:
    """Tell whether README quotes a cell: these are measured first, with all seeds."""
    named = cell.weights in (BASELINE, "fedif", "influence-descent") and cell.momentum == 0
    return named and cell.share == max(SHARES) and cell.attack in ("sign flip", "PoisonedFL")


def measure(data_dir: str, row: Row) -> list[Row]:
    """Run a cell's federation; return its accuracies in percent, over the last ten rounds."""
    cell = Cell(**row)
    found, _ = find_data(cell.data, data_dir if cell.data != "digits" else "")
    settings: dict[str, Scalar] = {
        **{"num-server-rounds": 40, "num-clients": 50, "fraction-train": 0.2},
        **DATA[cell.data],
        **found,
        **ATTACKS[cell.attack],
        "malicious-fraction": cell.share,
        "assumed-malicious-fraction": max(SHARES),
        "strategy": RULE,
        "rule.weights": cell.weights,
        "rule.bounds": cell.bounds,
        "update-clipping": 0.0,
        **momentum(cell.momentum),
        "seed": cell.seed,
    }
    with federated(settings) as run:
        test, validation = (last_ten(run, f"{split}_accuracy") for split in SPLITS)
    figures = (statistics.mean(test), test[-1], min(test), statistics.mean(validation))
    names = ("last-ten", "last", "least-of-ten", "validation-last-ten")
    return [{n: f"{100 * figure:.2f}" for n, figure in zip(names, figures, strict=True)}]


def read(path: Path = OUTPUT) -> dict[Cell, float]:
    """Return the mean accuracy of the last ten rounds, in percent, of each cell that has a row."""
    found = {}
    for row in read_rows(path):
        data, seed, attack, share, weights, bounds, beta = (row[name] for name in Cell._fields)
        cell = Cell(data, int(seed), attack, float(share), weights, bounds, float(beta))
        found[cell] = float(row["last-ten"])
    return found


class Effect(NamedTuple):
    """What weights bring beside FedAvg's with the same bounds and momentum, over paired seeds.

    ``mean`` and ``half`` are points and half the 95 % interval by Student's t (0 for a single
    seed), ``p`` is of the paired t-test, by Holm's method over the data set's effects of several.
    """

    seeds: int
    mean: float
    half: float
    p: float


def effects(found: Mapping[Cell, float], data: str) -> dict[Cell, Effect]:
    """Return the effect of each rule's weights, by its cell with seed 0."""
    differences: dict[Cell, list[float]] = {}
    for cell, accuracy in found.items():
        if cell.data == data and cell.weights in COMPARED and cell.control() in found:
            gain = round(accuracy - found[cell.control()], 2)  # Rows have as many places.
            differences.setdefault(cell._replace(seed=0), []).append(gain)
    raw = {cell: _paired(gains) for cell, gains in differences.items()}
    ordered = sorted((cell for cell in raw if raw[cell].seeds > 1), key=lambda cell: raw[cell].p)
    largest = 0.0
    for rank, cell in enumerate(ordered):  # Holm 1979: the k-th smallest of n times n - k + 1.
        largest = max(largest, min(1.0, raw[cell].p * (len(ordered) - rank)))
        raw[cell] = raw[cell]._replace(p=largest)
    return raw


def _paired(gains: Sequence[float]) -> Effect:
    mean = statistics.mean(gains)
    if len(gains) < 2:
        return Effect(1, mean, 0.0, 1.0)
    if len(set(gains)) == 1:  # Alike by rounding: nothing is known of their spread.
        return Effect(len(gains), mean, 0.0, 1.0)
    found = stats.ttest_1samp(gains, 0.0)
    return Effect(len(gains), mean, found.confidence_interval().high - mean, found.pvalue)


def means_table(found: Mapping[Cell, float], data: str) -> ResultTable:
    """Return the table "what is due to what": means ± deviations over seeds, in percent.

    Without server momentum; a line is of the seeds that have all of its cells.
    """
    wanted = [
        (weights, bounds)
        for weights in (BASELINE, "fedif", "influence-descent")
        for bounds in BOUNDS
        if weights in BOUNDS[bounds]
    ]
    values = []
    for attack, share in conditions():
        name = f"{attack}, {share:.0%}" if share else attack
        rows = [
            [Cell(data, seed, attack, share, *one, 0.0) for one in wanted]
            for seed in sorted({cell.seed for cell in found})
        ]
        rows = [row for row in rows if all(cell in found for cell in row)]
        values += [
            ((name, str(len(rows))), f"{cell.weights}, {cell.bounds}", found[cell])
            for row in rows
            for cell in row
        ]
    title, names = f"{data}: means", ["attack", "seeds"]
    return pivot(title, names, values, lambda own: MeanStd.of(own).shown(".1f"))


def effects_table(found: Mapping[Cell, float], data: str) -> ResultTable:
    """Return the table of effects at the largest share: points beside FedAvg's, all else alike."""
    measured = effects(found, data)
    columns = [(attack, share) for attack, share in conditions() if share in (0, max(SHARES))]
    wanted = (
        Cell(data, 0, *column, *line)
        for *line, column in product(COMPARED, BOUNDS, MOMENTUM, columns)
    )
    values = (
        ((cell.weights, cell.bounds, f"{cell.momentum:g}"), cell.attack, measured[cell])
        for cell in wanted
        if cell in measured
    )
    names = ["weights", "bounds", "momentum"]
    return pivot(f"{data}: effects", names, values, lambda own: _shown(own[0]))


def _shown(effect: Effect) -> str:
    if effect.seeds < 2:
        return f"{effect.mean:+.1f}"
    text = f"{effect.mean:+.1f}±{effect.half:.1f}"
    return f"**{text}**" if effect.p < 0.05 else text


def main(
    data: Annotated[str, typer.Option(help="digits, fashion-mnist or both")] = ",".join(DATA),
    data_dir: Annotated[str, typer.Option(help="where Fashion-MNIST is")] = "",
    seeds: Annotated[int, typer.Option(min=1, help="the seeds 0, 1 ..., one after another")] = 5,
    output: Annotated[Path, typer.Option(help="CSV file to append to")] = OUTPUT,
    table: Annotated[bool, typer.Option("--table", help="write the tables into the page")] = False,
    again: Again = False,
) -> None:
    """Measure what the rows lack, or write their tables into its page."""
    found = read(output)
    if table:
        tables = {}
        for name in DATA:
            tables[f"{name} means"] = means_table(found, name)
            tables[f"{name} effects"] = effects_table(found, name)
        put_tables(PAGE, {name: one.to_markdown() for name, one in tables.items()})
        return
    wanted = sorted(cells(data.split(","), seeds), key=lambda cell: not _is_quoted(cell))
    rows = [cell._asdict() for cell in wanted]
    if not fill(output, rows, partial(measure, data_dir), again=again):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
