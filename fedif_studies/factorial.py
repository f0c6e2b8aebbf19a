"""Study of what weights, bounds and server momentum each contribute to the accuracy.

``python -m fedif_studies.factorial`` runs every rule of weights without bounds and with the same
bounds, without server momentum and with it, under the same attacks. So each rule is compared with
FedAvg's weights under the *same* bounds and momentum, seed by seed. Rows are added as soon as they
are known; a cell that has a row is not run again.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

import typer
from scipy import stats

from fedif_flower.run.rows import read_rows
from fedif_flower.settings import Scalar
from fedif_flower.tables import ResultTable
from fedif_studies.lab.bounded import RULE
from fedif_studies.lab.cells import find_data
from fedif_studies.lab.commands import Again, finish, run_study
from fedif_studies.lab.filling import fill
from fedif_studies.lab.lists import names_in
from fedif_studies.lab.run import federated, last_ten
from fedif_studies.lab.table import MeanStd, grouped, pivot
from fedif_studies.rows import RESULTS, Row, put_tables

K = TypeVar("K", bound=Hashable)

OUTPUT = RESULTS / "factorial.csv"
PAGE = RESULTS / "factorial.md"
BASELINE = "fedavg"
WEIGHTS = (
    BASELINE,
    "fedif",
    "influence-descent",
    "afedsv",
    "autobant",
    "fltrust",
    "rfa",
    "median",
    "trimmed-mean",
)
# Rules that give updates no weights, which the loss bound needs to choose a step.
WITHOUT_STEP = ("median", "trimmed-mean")
# The rules whose effects are tested. The trimmed mean keeps two of ten updates, so it is bit by bit
# the median: the same tests would count twice.
COMPARED = tuple(name for name in WEIGHTS if name not in (BASELINE, "trimmed-mean"))
# The rules that run with each kind of bounds. "length" is Clip alone. With "own", the loss bound
# tries only shorter steps; with "full" it also tries the weights of influence descent.
BOUNDS: Mapping[str, Sequence[str]] = {
    "none": WEIGHTS,
    "length": (BASELINE, *WITHOUT_STEP),
    "own": (BASELINE, "fedif"),
    "full": tuple(name for name in WEIGHTS if name not in WITHOUT_STEP),
}
QUOTED = (BASELINE, "fedif", "influence-descent")  # The rules in the tables of means.
MOMENTUM = (0.0, 0.5)
ATTACKS: Mapping[str, Mapping[str, Scalar]] = {
    "none": {"attack": "none"},
    "label noise": {"attack": "label-noise"},
    "sign flip": {"attack": "sign-flip"},
    "gradient noise": {"attack": "gradient-noise"},
    # Its default patience, 50 rounds, is longer than a run: it would never judge its effect.
    "PoisonedFL": {"attack": "poisoned-fl", "poisoned-fl.patience": 10},
    "Min-Max": {"attack": "min-max"},
}
SHARES = (0.2, 0.4)
DATA: Mapping[str, Mapping[str, Scalar]] = {
    "digits": {},
    "fashion-mnist": {"model": "mlp", "local-epochs": 1, "learning-rate": 0.01},
}


class FactorialCell(NamedTuple):
    """One federation of the study. Its fields are the columns that identify its row."""

    data: str
    seed: int
    attack: str
    share: float
    weights: str
    bounds: str
    momentum: float

    def control(self) -> FactorialCell:
        """Return the cell that it is compared with, which differs in its weights: FedAvg's."""
        return self._replace(weights=BASELINE)


def momentum_settings(beta: float) -> dict[str, Scalar]:
    """Return the settings by which the server moves along a running mean of steps.

    ``beta`` is the share of the earlier steps in the mean; 0 for no server momentum.
    """
    if not beta:
        return {"server-optimizer": "off"}
    rates: dict[str, Scalar] = {"fedavgm.momentum": beta, "fedavgm.learning-rate": 1 - beta}
    return {"server-optimizer": "fedavgm", **rates}


def cells(data: Sequence[str], seeds: int) -> Iterator[FactorialCell]:
    """Yield all cells of the first seed, then those of the next."""
    for seed, name in product(range(seeds), data):
        for (attack, share), beta, bounds in product(conditions(), MOMENTUM, BOUNDS):
            for weights in BOUNDS[bounds]:
                yield FactorialCell(name, seed, attack, share, weights, bounds, beta)


def conditions() -> list[tuple[str, float]]:
    """Return each attack with each share of malicious clients; without an attack it is 0."""
    return [("none", 0.0), *product(list(ATTACKS)[1:], SHARES)]


def _is_quoted(cell: FactorialCell) -> bool:
    """Tell whether the README quotes a cell. Such cells are measured first, with all seeds."""
    if cell.weights not in QUOTED or cell.momentum:
        return False
    return cell.share == max(SHARES) and cell.attack in ("sign flip", "PoisonedFL")


def measure(data_dir: str, row: Row) -> list[Row]:
    """Run a cell's federation; return its accuracies in percent, over the last ten rounds."""
    cell = FactorialCell(**row)
    data_settings, _ = find_data(cell.data, data_dir if cell.data != "digits" else "")
    settings: dict[str, Scalar] = {
        "num-server-rounds": 40,
        "num-clients": 50,
        "fraction-train": 0.2,
        **DATA[cell.data],
        **data_settings,
        **ATTACKS[cell.attack],
        "malicious-fraction": cell.share,
        # As in the arena: a rule that expects a share of malicious clients expects the largest.
        "assumed-malicious-fraction": max(SHARES),
        "strategy": RULE,
        "rule.weights": cell.weights,
        "rule.bounds": cell.bounds,
        "update-clipping": 0.0,  # The cell's own bounds clip, and nothing else.
        **momentum_settings(cell.momentum),
        "seed": cell.seed,
    }
    with federated(settings) as run:
        test = last_ten(run, "test_accuracy")
        validation = last_ten(run, "validation_accuracy")
    figures = {
        "last-ten": statistics.mean(test),
        "last": test[-1],
        "least-of-ten": min(test),
        "validation-last-ten": statistics.mean(validation),
    }
    return [{name: f"{100 * figure:.2f}" for name, figure in figures.items()}]


def read(path: Path = OUTPUT) -> dict[FactorialCell, float]:
    """Return the mean accuracy of the last ten rounds, in percent, of each cell that has a row."""
    accuracies = {}
    for row in read_rows(path):
        cell = FactorialCell(
            data=row["data"],
            seed=int(row["seed"]),
            attack=row["attack"],
            share=float(row["share"]),
            weights=row["weights"],
            bounds=row["bounds"],
            momentum=float(row["momentum"]),
        )
        accuracies[cell] = float(row["last-ten"])
    return accuracies


class Effect(NamedTuple):
    """The accuracy gained by weights over FedAvg's, with the same bounds, momentum and seeds.

    Attributes
    ----------
    seeds : int
        The number of seeds.
    mean : float
        The mean gain, in percentage points.
    half : float
        Half the 95 % interval of the mean by Student's t; 0 if it cannot be estimated.
    p : float
        The p-value of the paired t-test, adjusted by Holm's method for all effects of the data set
        that have several seeds; 1 if there is no test.
    """

    seeds: int
    mean: float
    half: float
    p: float


def effects(accuracies: Mapping[FactorialCell, float], data: str) -> dict[FactorialCell, Effect]:
    """Return the effect of each rule's weights, by the rule's cell with seed 0."""
    gains: dict[FactorialCell, list[float]] = defaultdict(list)
    for pair in _with_controls(accuracies, data):
        gain = round(pair.accuracy - pair.control, 2)  # Accuracies in rows have two decimals.
        gains[pair.cell._replace(seed=0)].append(gain)
    measured = {cell: _effect_of(of_seeds) for cell, of_seeds in gains.items()}
    p_values = {cell: effect.p for cell, effect in measured.items() if effect.seeds > 1}
    for cell, p in holm(p_values).items():
        measured[cell] = measured[cell]._replace(p=p)
    return measured


def holm(p_values: Mapping[K, float]) -> dict[K, float]:
    """Return p-values that are adjusted for making n tests, by Holm's method.

    The k-th smallest p-value is multiplied by n - k + 1. The result is at most 1, and at least the
    adjusted value of each smaller p-value.

    References
    ----------
    Holm, "A simple sequentially rejective multiple test procedure", 1979.
    """
    adjusted = {}
    largest = 0.0
    for rank, test in enumerate(sorted(p_values, key=lambda test: p_values[test])):
        largest = max(largest, min(1.0, p_values[test] * (len(p_values) - rank)))
        adjusted[test] = largest
    return adjusted


class _WithControl(NamedTuple):
    """A cell, its accuracy, and the accuracy of the cell that it is compared with."""

    cell: FactorialCell
    accuracy: float
    control: float


def _with_controls(accuracies: Mapping[FactorialCell, float], data: str) -> Iterator[_WithControl]:
    """Yield a data set's cells of compared rules, if the cell that each is compared with exists."""
    for cell, accuracy in accuracies.items():
        if cell.data == data and cell.weights in COMPARED and cell.control() in accuracies:
            yield _WithControl(cell, accuracy, accuracies[cell.control()])


def count_copies(accuracies: Mapping[FactorialCell, float], data: str) -> tuple[int, int]:
    """Return how many tested effects are copies of another one, and how many are tested.

    A copy has the same accuracies in each seed. This happens if no bound ever acts: a run with
    bounds is then the same as the run without.
    """
    by_effect = grouped(_with_controls(accuracies, data), lambda pair: pair.cell._replace(seed=0))
    num_tested = 0
    different = set()
    for cell, pairs in by_effect.items():
        if len(pairs) > 1:
            num_tested += 1
            figures = sorted((pair.cell.seed, pair.accuracy, pair.control) for pair in pairs)
            different.add((cell._replace(bounds=""), *figures))
    return num_tested - len(different), num_tested


def copies_remark(accuracies: Mapping[FactorialCell, float], data: str) -> list[str]:
    """Return a line that says how many tested effects are copies; nothing if none is."""
    copies, tested = count_copies(accuracies, data)
    if not copies:
        return []
    return [
        "Where no bound acts, runs with bounds are those without: "
        f"{copies} of the {tested} effects are copies of another one, figure by figure. "
        "Holm's method counts them all, which is stricter than it need be."
    ]


def _effect_of(gains: Sequence[float]) -> Effect:
    """Return the effect with these gains, one for each seed; its p-value is not adjusted yet."""
    mean = statistics.mean(gains)
    if len(gains) < 2:
        return Effect(1, mean, 0.0, 1.0)
    if len(set(gains)) == 1:  # Equal since they are rounded: their spread cannot be estimated.
        return Effect(len(gains), mean, 0.0, 1.0)
    test = stats.ttest_1samp(gains, 0.0)
    return Effect(len(gains), mean, test.confidence_interval().high - mean, test.pvalue)


def means_table(accuracies: Mapping[FactorialCell, float], data: str) -> ResultTable:
    """Return a table of accuracies in percent without server momentum: means ± deviations.

    A line averages the seeds for which all of its cells are measured.
    """
    seeds = sorted({cell.seed for cell in accuracies})
    values = []
    for attack, share in conditions():
        quoted: list[FactorialCell] = []
        num_seeds = 0
        for seed in seeds:
            row = _quoted_cells(data, seed, attack, share)
            if accuracies.keys() >= set(row):
                quoted += row
                num_seeds += 1
        line = (_shown_condition(attack, share), str(num_seeds))
        for cell in quoted:
            column = f"{cell.weights}, {cell.bounds}"
            values.append((line, column, accuracies[cell]))
    return pivot(f"{data}: means", ["attack", "seeds"], values, _shown_mean)


def _shown_condition(attack: str, share: float) -> str:
    if not share:
        return attack
    return f"{attack}, {share:.0%}"


def _shown_mean(accuracies: list[float]) -> str:
    return MeanStd.of(accuracies).shown(".1f")


def _quoted_cells(data: str, seed: int, attack: str, share: float) -> list[FactorialCell]:
    """Return the cells of a line of means: the quoted rules with each of their bounds."""
    row = []
    for weights, bounds in product(QUOTED, BOUNDS):
        if weights in BOUNDS[bounds]:
            row.append(FactorialCell(data, seed, attack, share, weights, bounds, 0.0))
    return row


def effects_table(accuracies: Mapping[FactorialCell, float], data: str) -> ResultTable:
    """Return the table of effects, in points, at the largest share of malicious clients."""
    measured = effects(accuracies, data)
    columns = [(attack, share) for attack, share in conditions() if share in (0, max(SHARES))]
    values = []
    for weights, bounds, beta in product(COMPARED, BOUNDS, MOMENTUM):
        line = (weights, bounds, f"{beta:g}")
        for attack, share in columns:
            cell = FactorialCell(data, 0, attack, share, weights, bounds, beta)
            if cell in measured:
                values.append((line, attack, measured[cell]))
    names = ["weights", "bounds", "momentum"]
    return pivot(f"{data}: effects", names, values, lambda effects: _shown_effect(effects[0]))


def missing_cells(accuracies: Mapping[FactorialCell, float], data: str) -> list[str]:
    """Return lines that say how many cells of a data set have no row; none if all have one.

    The seeds from 0 to the largest one with a row are counted.
    """
    measured = {cell for cell in accuracies if cell.data == data}
    last_seed = max((cell.seed for cell in measured), default=0)
    planned = set(cells([data], seeds=last_seed + 1))
    missing = len(planned - measured)
    if not missing:
        return []
    return ["", f"Missing: {missing} of {len(planned)} federations."]


def _shown_effect(effect: Effect) -> str:
    """Return an effect as text: points and half the interval, in bold if p < 0.05."""
    if effect.seeds < 2:
        return f"{effect.mean:+.1f}"
    text = f"{effect.mean:+.1f}±{effect.half:.1f}"
    if effect.p < 0.05:
        return f"**{text}**"
    return text


def main(
    data: Annotated[str, typer.Option(help="digits, fashion-mnist or both")] = ",".join(DATA),
    data_dir: Annotated[str, typer.Option(help="where Fashion-MNIST is")] = "",
    seeds: Annotated[int, typer.Option(min=1, help="the seeds 0, 1 ..., one after another")] = 5,
    output: Annotated[Path, typer.Option(help="CSV file to append to")] = OUTPUT,
    table: Annotated[bool, typer.Option("--table", help="write the tables into the page")] = False,
    again: Again = False,
) -> None:
    """Measure what the rows lack, or write their tables into its page."""
    if table:
        accuracies = read(output)
        tables = {}
        for name in DATA:
            remarks = missing_cells(accuracies, name)
            tables[f"{name} means"] = [*means_table(accuracies, name).to_markdown(), *remarks]
            tables[f"{name} effects"] = [*effects_table(accuracies, name).to_markdown(), *remarks]
            tables[f"{name} copies"] = copies_remark(accuracies, name)
        put_tables(PAGE, tables)
        return
    planned = cells(names_in("data", data, DATA), seeds)
    quoted_first = sorted(planned, key=lambda cell: not _is_quoted(cell))
    rows = [cell._asdict() for cell in quoted_first]
    finish(fill(output, rows, partial(measure, data_dir), again=again))


if __name__ == "__main__":
    run_study(main)
