"""The paper's eight tables as data: rows, columns, and the settings that each stands for.

The figures that it prints are those of arXiv:2509.25560, by table, row and column: ``figures.csv``.
Accuracies are test accuracies in percent with their standard deviations over five seeds; those of
the gamma tables are validation accuracies; the times are seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from fedif_flower.run.rows import read_rows
from fedif_flower.settings import Scalar

# A value and, where the paper gives one, its standard deviation.
PaperFigure = tuple[float, float | None]
Settings = Mapping[str, Scalar]
Figure = Literal["test-accuracy", "validation-accuracy", "seconds"]

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
DATASETS: Mapping[str, Settings] = MappingProxyType(
    {
        "cifar10": {"dataset": "cifar10", "model": "cnn"},
        "fashion-mnist": {"dataset": "fashion-mnist", "model": "cnn"},
    }
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
    figure : {"test-accuracy", "validation-accuracy", "seconds"}
        What its figures are.
    rounds : int
        How long a cell runs unless told otherwise.
    sequential : bool
        Whether its cells must run one at a time, for their times to mean something.
    """

    name: str
    title: str
    rows: tuple[Variant, ...]
    columns: tuple[Variant, ...]
    figure: Figure = "test-accuracy"
    rounds: int = 100
    sequential: bool = False

    @cached_property
    def paper(self) -> Mapping[str, Mapping[str, PaperFigure]]:
        """The paper's figures: row -> column -> (value, standard deviation)."""
        found: dict[str, dict[str, PaperFigure]] = {}
        for line in read_rows(Path(__file__).with_name("figures.csv")):
            if line["table"] == self.name:
                deviation = float(line["deviation"]) if line["deviation"] else None
                found.setdefault(line["row"], {})[line["column"]] = float(line["value"]), deviation
        return found

    @property
    def split(self) -> str:
        """Of which split accuracies are."""
        return self.figure.removesuffix("-accuracy")

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


def _clean(dataset: Settings) -> Variant:
    return Variant("clean", "clean", dataset)


def _poisoned(attack: str, dataset: Settings, level: float, low: float, high: float) -> Variant:
    title = f"{attack.replace('-', ' ')} {level} ({low}, {high})"
    ratio = {"poison-ratio-min": low, "poison-ratio-max": high}
    settings = {**dataset, "attack": attack, "malicious-fraction": level, **ratio}
    return Variant(f"{attack}_{level}_{low}-{high}", title, settings)


def _noisy(dataset: Settings, level: float, std: float) -> Variant:
    own: Settings = {"malicious-fraction": level, "gradient-noise.std": std}
    settings = {**dataset, "attack": "gradient-noise", **own}
    return Variant(f"gradient-noise_{level}_{std}", f"gradient noise {level}, std {std}", settings)


def _all_levels(
    attack: str, dataset: Settings, levels: Sequence[float], ratios: Sequence[tuple[float, float]]
) -> list[Variant]:
    return [_poisoned(attack, dataset, n, *ratio) for n in levels for ratio in ratios]


def _accuracy_tables() -> list[Table]:
    cifar10, fashion = DATASETS["cifar10"], DATASETS["fashion-mnist"]
    tables = []
    for name, title, data, gamma, poisoned, levels in (
        (
            *("cifar10", "CIFAR-10", cifar10, 0.3),
            [
                *_all_levels("label-noise", cifar10, (0.5, 0.7), ((0.5, 0.6), (0.7, 0.8))),
                *_all_levels("adversarial", cifar10, (0.5, 0.7), ((0.5, 0.6), (0.7, 0.8))),
            ],
            (0.5, 0.6),
        ),
        (
            *("fashion-mnist", "Fashion-MNIST", fashion, 0.4),
            [
                *_all_levels("label-noise", fashion, (0.6, 0.7), ((0.5, 0.6), (0.6, 0.7))),
                *_all_levels("adversarial", fashion, (0.5, 0.7), ((0.6, 0.7), (0.7, 0.8))),
            ],
            (0.5, 0.7),
        ),
    ):
        rows, clean = _methods(gamma), _clean(data)
        attacks = f"{title}: label noise and adversarial samples"
        noisy = (_noisy(data, n, std) for n in levels for std in (0.05, 0.1))
        tables.append(Table(name, attacks, rows, (clean, *poisoned)))
        tables.append(Table(f"{name}-gradient", f"{title}: gradient noise", rows, (clean, *noisy)))
    return [tables[0], tables[2], tables[1], tables[3]]


def _timing_table() -> Table:
    columns = tuple(Variant(name, name, data) for name, data in DATASETS.items())
    return Table(
        "timing",
        "Training and aggregation time",
        _methods(0.3),
        columns,
        figure="seconds",
        rounds=10,
        sequential=True,
    )


def _benchmarks(dataset: str) -> tuple[Variant, ...]:
    data = DATASETS[dataset]
    labels = (0.5, 0.5, 0.6) if dataset == "cifar10" else (0.6, 0.6, 0.7)
    columns = (
        _clean(data),
        _poisoned("label-noise", data, *labels),
        _noisy(data, 0.5, 0.1),
        _poisoned("adversarial", data, 0.5, 0.5, 0.6),
    )
    names = ("clean", "label-noise", "gradient-noise", "adversarial")
    return tuple(
        Variant(name, column.title, column.settings)
        for name, column in zip(names, columns, strict=True)
    )


def _gamma_table(dataset: str, title: str) -> Table:
    rows = tuple(
        Variant(f"gamma-{gamma}", f"gamma = {gamma}", {"strategy": "fedif", "fedif.gamma": gamma})
        for gamma in (0.3, 0.4, 0.5, 0.6)
    )
    return Table(
        f"gamma-{dataset}",
        f"{title}: validation accuracy by gamma",
        rows,
        _benchmarks(dataset),
        figure="validation-accuracy",
    )


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
    return Table("ablation", "CIFAR-10: ablation of FedIF", rows, _benchmarks("cifar10"))


TABLES: Mapping[str, Table] = MappingProxyType(
    {
        table.name: table
        for table in (
            *_accuracy_tables(),
            _timing_table(),
            _gamma_table("cifar10", "CIFAR-10"),
            _gamma_table("fashion-mnist", "Fashion-MNIST"),
            _ablation_table(),
        )
    }
)
