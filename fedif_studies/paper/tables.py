"""The paper's eight tables as data: rows, columns, and the settings that each stands for.

``figures.csv`` has the figures that the paper (arXiv:2509.25560) prints, by table, row and column.
Accuracies are in percent, with standard deviations over five seeds. They are test accuracies, but
validation accuracies in the tables of gamma. Times are in seconds.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from fedif_flower.run.rows import read_rows
from fedif_flower.settings import Scalar
from fedif_studies.lab.table import MeanStd

# By row, then by column: a value and its standard deviation, None where the paper gives none.
Figures = dict[str, dict[str, tuple[float, float | None]]]
Settings = Mapping[str, Scalar]

# What every cell of the paper shares (Section "Experiments").
PROTOCOL: Settings = MappingProxyType(
    {
        "num-clients": 100,
        "fraction-train": 0.1,
        "num-server-rounds": 100,
        "local-epochs": 5,
        "batch-size": 16,
        "learning-rate": 0.001,
        "momentum": 0.9,
        "dirichlet-alpha": 1.0,
        "update-clipping": 0.0,
        "adversarial.epsilon": 0.03,
        "adversarial.step-size": 0.01,
        "adversarial.steps": 20,
        # The paper takes its held-out labels as they are: nothing examines them.
        "validation.vet": False,
    }
)


# The paper does not say how it scales pixels. The authors of AFedSV, whose CNN is used here too,
# scale CIFAR-10 to [-1, 1], and Fashion-MNIST by the mean and deviation of MNIST.
_NORMALIZATION = {"cifar10": "unit-range", "fashion-mnist": "mnist"}
# The paper's gamma for FedIF on each data set.
_GAMMA = {"cifar10": 0.3, "fashion-mnist": 0.4}
_METHODS = {name.lower(): name for name in ("FedAvg", "FedProx", "Krum", "AFedSV", "FedIF")}
# The methods that value updates on held-out data.
_VALUING = ("afedsv", "fedif")
# The parts of FedIF, by the ablation's abbreviations: a key of the run config turns each off.
_PARTS = {"wn": "weight-normalization", "rn": "round-normalization", "su": "smooth-update"}
# The tables of gamma and the ablation name only the attack. These are its strengths there.
_USUAL = {"gradient-noise": "gradient-noise_0.5_0.1", "adversarial": "adversarial_0.5_0.5-0.6"}
_BENCHMARKS = {
    "cifar10": {**_USUAL, "label-noise": "label-noise_0.5_0.5-0.6"},
    "fashion-mnist": {**_USUAL, "label-noise": "label-noise_0.6_0.6-0.7"},
}


@dataclass(frozen=True)
class Variant:
    """A row or a column of a table, and the settings that make it one."""

    key: str
    title: str
    settings: Settings


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper.

    Attributes
    ----------
    name, title : str
        Its name on the command line, and its title in a report.
    rows, columns : tuple of Variant
        Each pair of a row and a column is a cell; a column's settings override a row's.
    paper : dict
        The paper's figures: row -> column -> (value, standard deviation).
    split : {"test", "validation"}
        The split on which its accuracies are measured.
    rounds : int
        The number of rounds of a cell, by default.
    is_timed : bool
        Whether its figures are seconds. The cells then run one at a time.
    """

    name: str
    title: str
    rows: tuple[Variant, ...]
    columns: tuple[Variant, ...]
    paper: Figures
    split: str = "test"
    rounds: int = 100
    is_timed: bool = False

    def settings(self, row: Variant, column: Variant) -> dict[str, Scalar]:
        """Return the settings of a cell that may differ from a run config's defaults."""
        of_table: Settings = {"num-server-rounds": self.rounds, "attack": "none"}
        return {**PROTOCOL, **of_table, **row.settings, **column.settings}

    def printed(self, row: Variant, column: Variant) -> MeanStd | None:
        """Return the figure that the paper prints for a cell; ``None`` if it prints none."""
        figure = self.paper.get(row.key, {}).get(column.key)
        if figure is None:
            return None
        value, deviation = figure
        return MeanStd(value, deviation)


def _read_figures() -> dict[str, Figures]:
    """Return the paper's figures by table."""
    tables: dict[str, Figures] = {}
    for line in read_rows(Path(__file__).with_name("figures.csv")):
        deviation = float(line["deviation"]) if line["deviation"] else None
        row = tables.setdefault(line["table"], {}).setdefault(line["row"], {})
        row[line["column"]] = (float(line["value"]), deviation)
    return tables


def _strategy(name: str) -> dict[str, Scalar]:
    """Return the settings that choose a method, without a correction for held-out label noise."""
    settings: dict[str, Scalar] = {"strategy": name}
    if name in _VALUING:
        settings["validation.noise"] = "off"
    return settings


def _row(key: str, gamma: float) -> Variant:
    """Return a row by its key: a method, a gamma of FedIF, or the parts of FedIF that are on."""
    if key in _METHODS:
        settings = _strategy(key)
        # AFedSV keeps its authors' gamma, since the paper tuned only that of FedIF.
        if key == "fedif":
            settings |= _fedif(gamma, _PARTS)
        return Variant(key, _METHODS[key], settings)
    if key.startswith("gamma-"):
        value = key.removeprefix("gamma-")
        settings = {**_strategy("fedif"), **_fedif(float(value), _PARTS)}
        return Variant(key, f"gamma = {value}", settings)
    settings = {**_strategy("fedif"), **_fedif(gamma, key.split("+"))}
    return Variant(key, key.upper(), settings)


def _fedif(gamma: float, parts: Collection[str]) -> dict[str, Scalar]:
    """Return FedIF's settings, with every setting that some table varies.

    Cells of two tables that mean the same then have the same settings.
    """
    settings: dict[str, Scalar] = {"fedif.gamma": gamma}
    for short, part in _PARTS.items():
        settings[f"fedif.{part}"] = short in parts
    return settings


def _column(key: str, data: str) -> Variant:
    """Return a column by its key: a data set, or an attack, its malicious share and its strength.

    ``label-noise_0.5_0.5-0.6`` is label noise by half of the clients, each of which draws the share
    of its labels that are wrong from [0.5, 0.6].
    """
    dataset = key if key in _GAMMA else data
    settings: dict[str, Scalar] = {
        "dataset": dataset,
        "model": "cnn",
        "normalization": _NORMALIZATION[dataset],
    }
    attack, *strength = _BENCHMARKS[data].get(key, key).split("_")
    if not strength:
        return Variant(key, key, settings)
    share, amount = strength
    settings |= {"attack": attack, "malicious-fraction": float(share)}
    title = f"{attack.replace('-', ' ')} {share}"
    if attack == "gradient-noise":
        settings["gradient-noise.std"] = float(amount)
        title += f", std {amount}"
    else:
        low, high = amount.split("-")
        settings |= {"poison-ratio-min": float(low), "poison-ratio-max": float(high)}
        title += f" ({low}, {high})"
    return Variant(key, title, settings)


def _table(
    name: str, data: str, title: str, *, split: str = "test", is_timed: bool = False
) -> PaperTable:
    """Return a table with the rows and columns that the paper prints figures for."""
    paper = _PRINTED[name]
    keys = list(itertools.chain.from_iterable(paper.values()))
    if is_timed:
        # A data set has two columns of figures, "<data>_training" and "<data>_aggregation".
        keys = [key.partition("_")[0] for key in keys]
    return PaperTable(
        name,
        title,
        rows=tuple(_row(key, _GAMMA[data]) for key in paper),
        columns=tuple(_column(key, data) for key in dict.fromkeys(keys)),
        paper=paper,
        split=split,
        # Seconds are per round, so ten rounds are enough to measure them.
        rounds=10 if is_timed else 100,
        is_timed=is_timed,
    )


_PRINTED = _read_figures()
_POISONED = "label noise and adversarial samples"
_NOISY = "gradient noise"
_BY_GAMMA = "validation accuracy by gamma"
_ALL = (
    _table("cifar10", "cifar10", f"CIFAR-10: {_POISONED}"),
    _table("fashion-mnist", "fashion-mnist", f"Fashion-MNIST: {_POISONED}"),
    _table("cifar10-gradient", "cifar10", f"CIFAR-10: {_NOISY}"),
    _table("fashion-mnist-gradient", "fashion-mnist", f"Fashion-MNIST: {_NOISY}"),
    _table("timing", "cifar10", "Training and aggregation time", is_timed=True),
    _table("gamma-cifar10", "cifar10", f"CIFAR-10: {_BY_GAMMA}", split="validation"),
    _table(
        "gamma-fashion-mnist", "fashion-mnist", f"Fashion-MNIST: {_BY_GAMMA}", split="validation"
    ),
    _table("ablation", "cifar10", "CIFAR-10: ablation of FedIF"),
)
TABLES: Mapping[str, PaperTable] = MappingProxyType({table.name: table for table in _ALL})
