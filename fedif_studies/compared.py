"""The methods that the field compares with, beside FedIF: SCAFFOLD, MOON and server optimisers.

Ten members train a perceptron on 2,000 images, of CIFAR-10 or of Fashion-MNIST: with few classes
each and no attack, or seven of them with the paper's heaviest label noise. All methods have the
same images, first model and local steps. What a method leaves to its user is chosen on the server's
validation split of CIFAR-10, seed 0, without attack (``--choose``), then written into ``METHODS``.
Rows are added as they come; a cell that has one is not run again.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, NamedTuple

import typer

from fedif_flower.run.config import default_run_config
from fedif_flower.run.rows import read_rows
from fedif_flower.settings import Scalar
from fedif_flower.storage import write_atomically
from fedif_flower.tables import ResultTable
from fedif_studies import subset
from fedif_studies.lab.data import find_data
from fedif_studies.lab.run import fill, row_of
from fedif_studies.lab.table import MeanStd
from fedif_studies.queue import resumed
from fedif_studies.rows import RESULTS, Row

Settings = Mapping[str, Scalar]

OUTPUT = RESULTS / "compared.csv"
PAGE = RESULTS / "compared.md"
TRAIN, TEST = 2000, 2000  # Images drawn of each split; a fifth of the latter are the server's.
SIZE: Settings = MappingProxyType(
    {
        "model": "mlp",
        "num-clients": 10,
        "fraction-train": 1.0,
        "num-server-rounds": 20,
        "local-epochs": 2,
        "batch-size": 32,
        "momentum": 0.0,  # As in the papers of SCAFFOLD and q-FedAvg.
        "update-clipping": 0.0,
        "device": "cpu",
    }
)
LEARNING_RATE = 0.05  # Of all clients.
DATA: Mapping[str, Settings] = {
    "CIFAR-10": {"dataset": "cifar10", "poison-ratio-min": 0.7, "poison-ratio-max": 0.8},
    "Fashion-MNIST": {
        "dataset": "fashion-mnist",
        "poison-ratio-min": 0.6,
        "poison-ratio-max": 0.7,
    },
}
GAMMA = {"CIFAR-10": 0.3, "Fashion-MNIST": 0.4}  # The paper's, of FedIF.
CONDITIONS: Mapping[str, Settings] = {
    "Dirichlet 0.1": {"dirichlet-alpha": 0.1, "attack": "none"},
    "label noise": {"dirichlet-alpha": 1.0, "attack": "label-noise", "malicious-fraction": 0.7},
}
MU = 0.1  # Of MOON.
# Their papers' stages, in proportion to the rounds here: not chosen by any result.
FEDNORO: Settings = {
    "local-method": "fedif_studies.local_methods.fednoro:FedNoRo",
    "FedNoRo.warm-up": 5,
    "FedNoRo.ramp": 8,
}
FEDCORR: Settings = {
    "local-method": "fedif_studies.local_methods.fedcorr:FedCorr",
    "FedCorr.passes": 2,
    "FedCorr.fine-tuning": 4,
}
METHODS: Mapping[str, Settings] = {
    "FedAvg": {"strategy": "fedavg"},
    "FedProx": {"strategy": "fedprox", "fedprox.proximal-mu": 0.01},
    "SCAFFOLD": {"strategy": "fedavg", "local-method": "scaffold"},
    "MOON": {"strategy": "fedavg", "local-method": "moon", "moon.mu": MU},
    "FedNoRo": {"strategy": "fedavg", **FEDNORO},
    "FedCorr": {"strategy": "fedavg", **FEDCORR},
    "FedAvgM": {"strategy": "fedavg", "server-optimizer": "fedavgm", "fedavgm.learning-rate": 0.3},
    "FedAdam": {"strategy": "fedavg", "server-optimizer": "fedadam", "fedadam.learning-rate": 0.01},
    "FedYogi": {"strategy": "fedavg", "server-optimizer": "fedyogi", "fedyogi.learning-rate": 0.01},
    "FedIF": {"strategy": "fedif"},
    "SCAFFOLD, FedIF's weights": {"strategy": "fedif", "local-method": "scaffold"},
    "MOON, FedIF's weights": {"strategy": "fedif", "local-method": "moon", "moon.mu": MU},
    "FedNoRo, FedIF's weights": {"strategy": "fedif", **FEDNORO},
    "influence descent": {"strategy": "influence-descent"},
}
BASELINE = "FedAvg"
# At these revisions SCAFFOLD's control variate moved by the round's weights, and no longer does,
# and server optimizers were Flower's: such rows are marked until they are measured again.
EARLIER = ("9607888e7c12", "ed5e32a5fc7a")
# What is chosen, in this order: a setting of a method, and among which values.
CHOICES: Mapping[str, tuple[str, tuple[float, ...]]] = {
    "FedAvg": ("learning-rate", (0.02, 0.05, 0.1)),  # Of all clients, with any method.
    "FedAvgM": ("fedavgm.learning-rate", (0.1, 0.3, 1.0)),
    "FedAdam": ("fedadam.learning-rate", (0.003, 0.01, 0.03, 0.1)),
    "FedYogi": ("fedyogi.learning-rate", (0.003, 0.01, 0.03, 0.1)),
    "MOON": ("moon.mu", (0.1, 1.0, 5.0, 10.0)),  # Its paper's.
}


class Place(NamedTuple):
    """Where a cell stands in the tables."""

    seed: int
    data: str
    condition: str
    method: str


def cell_of(place: Place, own: Settings = MappingProxyType({})) -> dict[str, Scalar]:
    """Return by which settings a row of a place is recognised; ``own``: of a choice."""
    plain: Settings = {"local-method": "sgd", "server-optimizer": "off"}
    method = {"learning-rate": LEARNING_RATE, **plain, **METHODS[place.method], **own}
    if method["strategy"] == "fedif":
        method["fedif.gamma"] = GAMMA[place.data]
    attack = CONDITIONS[place.condition]["attack"]
    return {"data": place.data, "attack": attack, **method, "seed": place.seed}


def measure(
    folders: Mapping[str, Path], output_dir: Path, size: Settings, cell: Row
) -> Sequence[Row]:
    """Run a cell."""
    data, attack = str(cell["data"]), cell["attack"]
    (condition,) = (own for own in CONDITIONS.values() if own["attack"] == attack)
    chosen = {key: value for key, value in cell.items() if key != "data"}
    settings: dict[str, Scalar] = {
        **default_run_config(),
        **size,
        **DATA[data],
        **condition,
        **chosen,  # type: ignore[dict-item]
        **{"dataset": "image-folder", "data-dir": str(folders[data])},
    }
    name = "_".join(f"{key}-{value}" for key, value in cell.items())
    return resumed("compared", data, output_dir, settings, name)


def places(seeds: Iterable[int]) -> list[Place]:
    """Return every cell's place, whole tables of one seed after the other."""
    return [Place(*place) for place in product(seeds, DATA, CONDITIONS, METHODS)]


def choices() -> list[tuple[Place, Settings]]:
    """Return the cells by which settings are chosen: a place, and the setting's value."""
    first = next(iter(CONDITIONS))
    return [
        (Place(0, "CIFAR-10", first, method), {key: value})
        for method, (key, values) in CHOICES.items()
        for value in values
    ]


def choice_table(rows: Sequence[Mapping[str, str]]) -> ResultTable:
    """Return the accuracy on the validation split with each value; the best is in bold."""
    found: dict[str, dict[float, float]] = {method: {} for method in CHOICES}
    for place, own in choices():
        if row := row_of(cell_of(place, own), rows):
            (value,) = own.values()
            found[place.method][float(value)] = 100 * float(row["validation-last-ten"])
    lines = []
    for method, (key, _) in CHOICES.items():
        best = max(found[method].values(), default=None)
        shown = [
            f"**{value:g}: {accuracy:.1f}**" if accuracy == best else f"{value:g}: {accuracy:.1f}"
            for value, accuracy in found[method].items()
        ]
        lines.append([method, f"`{key.rpartition('.')[2]}`", ", ".join(shown) or "-"])
    heading = ["method", "setting", "validation accuracy by value, %"]
    return ResultTable("Choices", heading, lines, num_labels=3)


def result_table(data: str, rows: Sequence[Mapping[str, str]], seeds: int) -> ResultTable:
    """Return a data set's table: means and standard deviations over seeds, in percent.

    A method's line is of those seeds that have rows of it in all conditions. ``*``: measured before
    the method changed (:data:`EARLIER`).
    """
    found = {place: row_of(cell_of(place), rows) for place in places(range(seeds))}
    heading, lines = ["method", "seeds"], []
    for condition in CONDITIONS:
        heading += [f"{condition}: last ten rounds", f"beside {BASELINE}"]
    for method in METHODS:
        of = {
            seed: [found[Place(seed, data, condition, method)] for condition in CONDITIONS]
            for seed in range(seeds)
        }
        whole = [seed for seed, own in of.items() if all(own)]
        measured = [row for seed in whole for row in of[seed] if row]
        mark = "\\*" if any(_is_earlier(method, row) for row in measured) else ""
        line, seconds = [method + mark, str(len(whole))], []
        for condition in CONDITIONS:
            ten, beside = [], []
            for seed in whole:
                row = found[Place(seed, data, condition, method)] or {}
                base = found[Place(seed, data, condition, BASELINE)]
                ten.append(100 * float(row["test-last-ten"]))
                seconds.append(float(row["seconds"]))
                if base and method != BASELINE:
                    beside.append(ten[-1] - 100 * float(base["test-last-ten"]))
            line += [_shown(ten, ".1f"), _shown(beside, "+.1f")]
        lines.append([*line, _shown([sum(seconds) / len(seconds)] if seconds else [], ".0f")])
    return ResultTable(data, [*heading, "s"], lines, num_labels=1)


def with_tables(page: str, rows: Sequence[Mapping[str, str]], seeds: int) -> str:
    """Return a page with the tables of the rows, each below the heading of its name."""
    for table in (choice_table(rows), *(result_table(data, rows, seeds) for data in DATA)):
        lines = "\n".join(table.to_markdown())
        page = re.sub(rf"^(### {table.title}\n\n)(\|.*\n)*", rf"\1{lines}\n", page, flags=re.M)
    return page


def draw(data_dir: str, output_dir: Path) -> dict[str, Path]:
    """Draw each data set's images into a folder, unless it is there; return the folders."""
    folders = {name: output_dir.absolute() / "images" / name for name in DATA}
    for name, folder in folders.items():
        if not folder.exists():
            found, _ = find_data(str(DATA[name]["dataset"]), data_dir)
            part = folder.with_name(f"{name}.part")  # What was stopped half-way.
            shutil.rmtree(part, ignore_errors=True)
            subset.main(part, str(found["dataset"]), str(found["data-dir"]), TRAIN, TEST, 0)
            part.rename(folder)
    return folders


def main(
    data_dir: Annotated[str, typer.Option(help="where the data sets' files are")] = "",
    output_dir: Annotated[Path, typer.Option(help="of images, runs and checkpoints")] = Path(
        "runs/compared"
    ),
    seeds: Annotated[int, typer.Option(min=1, help="the seeds 0, 1 ..., one after another")] = 3,
    choose: Annotated[bool, typer.Option("--choose", help="run the cells of the choices")] = False,
    table: Annotated[
        bool, typer.Option("--table", help="write the rows' tables into the page")
    ] = False,
) -> None:
    """Measure what the rows lack, or write their tables into the page."""
    if table:
        text = with_tables(PAGE.read_text(), read_rows(OUTPUT), seeds)
        write_atomically(PAGE, text)
        print(PAGE)
        return
    todo = choices() if choose else [(place, {}) for place in places(range(seeds))]
    cells: list[Row] = [cell_of(*one) for one in todo]
    fill(OUTPUT, cells, partial(measure, draw(data_dir, output_dir), output_dir, SIZE))


def _is_earlier(method: str, row: Mapping[str, str]) -> bool:
    """Tell whether a row was measured before its method changed."""
    changed = METHODS[method].get("local-method") == "scaffold"
    changed |= METHODS[method].get("server-optimizer") in ("fedadam", "fedyogi")
    return changed and row.get("revision") in EARLIER


def _shown(values: Sequence[float], form: str) -> str:
    if not values:
        return "-"
    over = MeanStd.of(values)
    return format(round(over.mean, 1) + 0.0, form) + (
        "" if over.std is None else f" ± {over.std:.1f}"
    )


if __name__ == "__main__":
    typer.run(main)
