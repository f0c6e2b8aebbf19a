"""The paper's eight tables as data: rows, columns, and the settings that each stands for.

The figures that it prints are those of arXiv:2509.25560, by table, row and column: ``figures.csv``.
Accuracies are test accuracies in percent with their standard deviations over five seeds; those of
the gamma tables are validation accuracies; the times are seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

from fedif_flower.run.rows import read_rows
from fedif_flower.settings import Scalar

# A value and, where the paper gives one, its standard deviation.
PaperFigure = tuple[float, float | None]
Settings = Mapping[str, Scalar]
Poisoned = tuple[str, Sequence[float], Sequence[tuple[float, float]]]

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
    }
)


@dataclass(frozen=True)
class DataSet:
    """A data set, FedIF's gamma on it, and the attacks of its tables.

    ``poisoned`` are attacks on the data with fractions of malicious clients and ranges of the
    poisoned share, ``noisy`` the fractions with gradient noise, ``usual`` the range under label
    noise in the tables of gamma.
    """

    name: str
    title: str
    gamma: float
    poisoned: tuple[Poisoned, Poisoned]
    noisy: Sequence[float]
    usual: tuple[float, float]


_HALF, _MORE, _MOST = (0.5, 0.6), (0.6, 0.7), (0.7, 0.8)
CIFAR10 = DataSet(
    *("cifar10", "CIFAR-10", 0.3),
    (("label-noise", (0.5, 0.7), (_HALF, _MOST)), ("adversarial", (0.5, 0.7), (_HALF, _MOST))),
    (0.5, 0.6),
    _HALF,
)
FASHION = DataSet(
    *("fashion-mnist", "Fashion-MNIST", 0.4),
    (("label-noise", (0.6, 0.7), (_HALF, _MORE)), ("adversarial", (0.5, 0.7), (_MORE, _MOST))),
    (0.5, 0.7),
    _MORE,
)


@dataclass(frozen=True)
class Variant:
    """A row or a column of a table, and the settings that make it one."""

    key: str
    title: str
    settings: Settings


@dataclass(frozen=True)
class Table:
    """A table of the paper.

    Attributes
    ----------
    name, title : str
        What it is called on the command line and in a report.
    rows, columns : tuple of Variant
        Each pair is a cell; a column's settings win over a row's.
    split : {"test", "validation"}
        Of which split its accuracies are.
    rounds : int
        How long a cell runs unless told otherwise.
    is_timed : bool
        Its figures are seconds: its cells run one at a time.
    """

    name: str
    title: str
    rows: tuple[Variant, ...]
    columns: tuple[Variant, ...]
    split: str = "test"
    rounds: int = 100
    is_timed: bool = False

    @cached_property
    def paper(self) -> Mapping[str, Mapping[str, PaperFigure]]:
        """The paper's figures: row -> column -> (value, standard deviation)."""
        found: dict[str, dict[str, PaperFigure]] = {}
        for line in read_rows(Path(__file__).with_name("figures.csv")):
            if line["table"] == self.name:
                deviation = float(line["deviation"]) if line["deviation"] else None
                found.setdefault(line["row"], {})[line["column"]] = float(line["value"]), deviation
        return found

    def settings(self, row: Variant, column: Variant) -> dict[str, Scalar]:
        """Return what a cell's run config sets."""
        return {
            **PROTOCOL,
            "num-server-rounds": self.rounds,
            "attack": "none",
            **row.settings,
            **column.settings,
        }


def _methods(gamma: float) -> tuple[Variant, ...]:
    titles = ("FedAvg", "FedProx", "Krum", "AFedSV", "FedIF")
    # AFedSV keeps its authors' gamma; the paper tuned its own method's only.
    tuned: dict[str, Settings] = {"FedIF": {"fedif.gamma": gamma}}
    return tuple(Variant(t.lower(), t, {"strategy": t.lower(), **tuned.get(t, {})}) for t in titles)


def _clean(data: DataSet) -> Variant:
    return Variant("clean", "clean", {"dataset": data.name, "model": "cnn"})


def _attacked(
    data: DataSet, attack: str, level: float, how: str, shown: str, own: Settings
) -> Variant:
    settings = {**_clean(data).settings, "attack": attack, "malicious-fraction": level, **own}
    return Variant(
        f"{attack}_{level}_{how}", f"{attack.replace('-', ' ')} {level}{shown}", settings
    )


def _poisoned(data: DataSet, attack: str, level: float, low: float, high: float) -> Variant:
    ratio = {"poison-ratio-min": low, "poison-ratio-max": high}
    return _attacked(data, attack, level, f"{low}-{high}", f" ({low}, {high})", ratio)


def _noisy(data: DataSet, level: float, std: float) -> Variant:
    own = {"gradient-noise.std": std}
    return _attacked(data, "gradient-noise", level, str(std), f", std {std}", own)


def _poisoned_table(data: DataSet) -> Table:
    columns = (
        _poisoned(data, attack, level, *ratio)
        for attack, levels, ratios in data.poisoned
        for level in levels
        for ratio in ratios
    )
    title = f"{data.title}: label noise and adversarial samples"
    return Table(data.name, title, _methods(data.gamma), (_clean(data), *columns))


def _noisy_table(data: DataSet) -> Table:
    columns = (_noisy(data, level, std) for level in data.noisy for std in (0.05, 0.1))
    name, title = f"{data.name}-gradient", f"{data.title}: gradient noise"
    return Table(name, title, _methods(data.gamma), (_clean(data), *columns))


def _timing_table() -> Table:
    columns = tuple(
        Variant(data.name, data.name, _clean(data).settings) for data in (CIFAR10, FASHION)
    )
    title = "Training and aggregation time"
    return Table("timing", title, _methods(0.3), columns, rounds=10, is_timed=True)


def _benchmarks(data: DataSet) -> tuple[Variant, ...]:
    attack, levels, _ = data.poisoned[0]
    columns = {
        "clean": _clean(data),
        attack: _poisoned(data, attack, levels[0], *data.usual),
        "gradient-noise": _noisy(data, 0.5, 0.1),
        "adversarial": _poisoned(data, "adversarial", 0.5, *_HALF),
    }
    return tuple(replace(column, key=name) for name, column in columns.items())


def _gamma_table(data: DataSet) -> Table:
    rows = tuple(
        Variant(f"gamma-{gamma}", f"gamma = {gamma}", {"strategy": "fedif", "fedif.gamma": gamma})
        for gamma in (0.3, 0.4, 0.5, 0.6)
    )
    name, title = f"gamma-{data.name}", f"{data.title}: validation accuracy by gamma"
    return Table(name, title, rows, _benchmarks(data), split="validation")


def _ablation_table() -> Table:
    parts = ("weight-normalization", "round-normalization", "smooth-update")
    short = ("WN", "RN", "SU")
    kept = ((1, 2), (0, 2), (2,), (0, 1), (0, 1, 2))
    rows = tuple(
        Variant(
            (title := "+".join(short[i] for i in keep)).lower(),
            title,
            {
                "strategy": "fedif",
                "fedif.gamma": 0.3,
                **{f"fedif.{part}": i in keep for i, part in enumerate(parts)},
            },
        )
        for keep in kept
    )
    return Table("ablation", "CIFAR-10: ablation of FedIF", rows, _benchmarks(CIFAR10))


_ALL = (
    *map(_poisoned_table, (CIFAR10, FASHION)),
    *map(_noisy_table, (CIFAR10, FASHION)),
    _timing_table(),
    *map(_gamma_table, (CIFAR10, FASHION)),
    _ablation_table(),
)
TABLES: Mapping[str, Table] = MappingProxyType({table.name: table for table in _ALL})
