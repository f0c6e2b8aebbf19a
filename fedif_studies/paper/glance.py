"""The picture at a glance: three strategies, each with bounds and without, in six cases."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from fedif_flower.run.rows import read_rows
from fedif_studies.lab.table import MeanStd
from fedif_studies.pictures.dots import Dot, DotPanel, DotPlot, Line
from fedif_studies.pictures.panels import Entry, Sheet
from fedif_studies.pictures.sheets import Picture
from fedif_studies.pictures.svg import Kind, Look


class MethodVariant(NamedTuple):
    """What a point of the picture stands for: a method, with bounds on updates or without."""

    method: str
    is_bounded: bool


Point = tuple[MethodVariant, float]
"""A method with bounds or without, and an accuracy in percent that one seed gave for it."""
Row = Mapping[str, str]

METHODS = MappingProxyType(
    {
        "FedAvg": Look("black", "circle"),
        "FedIF": Look("blue", "star"),
        "influence descent": Look("vermillion", "diamond"),
    }
)
# The methods' titles by their names in a run config and in the paper's tables.
_METHOD_NAMES = MappingProxyType(
    {"fedavg": "FedAvg", "fedif": "FedIF", "influence-descent": "influence descent"}
)
# The kinds of bounds that the picture shows, and whether they bound anything. Rows with other kinds
# are left out.
_BOUNDS = MappingProxyType({"none": False, "full": True})


class _Style(NamedTuple):
    """How a dot looks that stands for a method with bounds, or without."""

    is_bounded: bool
    words: str
    kind: Kind
    up: float  # How far above its line it stands, in font sizes.


_STYLES = (
    _Style(is_bounded=True, words="with bounds", kind="filled", up=0.35),
    _Style(is_bounded=False, words="without bounds", kind="hollow", up=-0.35),
)


class Case(NamedTuple):
    """A panel of the picture: its title, what the clients do, and a function that yields points.

    ``points`` takes the folder with the rows.
    """

    title: str
    words: str
    points: Callable[[Path], Iterator[Point]]

    def read(self, results: Path) -> dict[MethodVariant, MeanStd]:
        """Return the mean accuracies over seeds, from the rows in a folder."""
        accuracies: dict[MethodVariant, list[float]] = defaultdict(list)
        for variant, accuracy in self.points(results):
            accuracies[variant].append(accuracy)
        return {variant: MeanStd.of(of_seeds) for variant, of_seeds in accuracies.items()}


def _is_of_case(row: Row, data: str, attack: str, share: float) -> bool:
    """Tell whether a row was measured on this data, under this attack by this share of clients."""
    return row["data"] == data and row["attack"] == attack and float(row["share"]) == share


def _of_arena(results: Path, data: str, attack: str, share: float) -> Iterator[Point]:
    """Yield points from the arena's rows under an attack."""
    for row in read_rows(results / "arena.csv"):
        if _is_of_case(row, data, attack, share) and row["rule"] in METHODS:
            variant = MethodVariant(row["rule"], _BOUNDS[row["bounds"]])
            yield variant, 100 * float(row["accuracy"])


def _of_factorial(results: Path, data: str, attack: str, share: float) -> Iterator[Point]:
    """Yield points from the factorial's rows under an attack, without server momentum."""
    for row in read_rows(results / "factorial.csv"):
        if not _is_of_case(row, data, attack, share) or float(row["momentum"]) != 0:
            continue
        if row["weights"] in _METHOD_NAMES and row["bounds"] in _BOUNDS:
            variant = MethodVariant(_METHOD_NAMES[row["weights"]], _BOUNDS[row["bounds"]])
            yield variant, float(row["last-ten"])


def _of_protocol(
    results: Path, table: str, column: str, bounded: str, descent: str
) -> Iterator[Point]:
    """Yield points for a column of the paper's tables, from three files.

    ``table`` has the methods of the paper, without bounds; ``bounded`` has methods under the bounds
    of each kind; ``descent`` has influence descent without bounds. From all three, only rows count
    that a CPU measured with pixels scaled by the data's own mean.
    """
    for row in _on_like_terms(results / table):
        if row["column"] == column and row["row"] in _METHOD_NAMES:
            yield MethodVariant(_METHOD_NAMES[row["row"]], is_bounded=False), _last_ten(row)
    for row in _on_like_terms(results / bounded):
        if row["rule.bounds"] in _BOUNDS:
            method = _METHOD_NAMES[row["rule.weights"]]
            yield MethodVariant(method, _BOUNDS[row["rule.bounds"]]), _last_ten(row)
    for row in _on_like_terms(results / descent):
        if row["strategy"] == "influence-descent" and row["server-optimizer"] == "off":
            yield MethodVariant("influence descent", is_bounded=False), _last_ten(row)


def _on_like_terms(path: Path) -> Iterator[Row]:
    """Yield a file's rows with pixels scaled by the data's own mean that a CPU measured."""
    for row in read_rows(path):
        if row["normalization"] == "data" and not row.get("gpu"):
            yield row


def _last_ten(row: Row) -> float:
    """Return a row's mean test accuracy of the last ten rounds, in percent."""
    return 100 * float(row["test-last-ten"])


CASES = (
    Case(
        "CIFAR-10",
        "70 % have wrong labels",
        partial(
            _of_protocol,
            table="cifar10.csv",
            column="label-noise_0.7_0.7-0.8",
            bounded="cifar10-label-noise-bounds.csv",
            descent="influence-descent-cifar10-label-noise-heavy.csv",
        ),
    ),
    Case(
        "CIFAR-10",
        "50 % add noise to updates",
        partial(
            _of_protocol,
            table="cifar10-gradient.csv",
            column="gradient-noise_0.5_0.1",
            bounded="cifar10-gradient-noise-bounds.csv",
            descent="influence-descent-cifar10-gradient-noise.csv",
        ),
    ),
    Case(
        "Digits",
        "40 % attack by PoisonedFL",
        partial(_of_factorial, data="digits", attack="PoisonedFL", share=0.4),
    ),
    Case(
        "Fashion-MNIST, 30 rounds",
        "nobody attacks",
        partial(_of_arena, data="Fashion-MNIST", attack="none", share=0.0),
    ),
    Case(
        "CIFAR-10, 30 rounds",
        "nobody attacks",
        partial(_of_arena, data="CIFAR-10 (JPEG)", attack="none", share=0.0),
    ),
    Case(
        "CIFAR-10, 30 rounds",
        "40 % send updates times ten",
        partial(_of_arena, data="CIFAR-10 (JPEG)", attack="scaling x10", share=0.4),
    ),
)


def glance_picture(results: Path) -> Picture:
    """Return the picture at a glance.

    Parameters
    ----------
    results : Path
        The folder with the rows.
    """
    title = "Test accuracy in %, mean of the last ten rounds and of three to five seeds"
    figures_by_case = []
    panels = []
    num_measured = 0
    for case in CASES:
        figures = case.read(results)
        figures_by_case.append(figures)
        panels.append(DotPanel(case.title, case.words, _lines(figures)))
        num_measured += len(figures)
    finding = glance_finding(figures_by_case)
    plot = DotPlot(panels, 0.0, 100.0, across=3)
    entries: list[Entry] = [(look, "filled", name) for name, look in METHODS.items()]
    marks = (
        "Filled: with bounds on the length of updates and on the loss after a step; hollow: "
        "without. Bars: deviation over seeds."
    )
    num_points = len(_STYLES) * len(METHODS) * len(CASES)
    caption = f"All {num_points} points are measured."
    if num_measured < num_points:
        caption = f"Not measured: {num_points - num_measured} of {num_points} points."

    def draw(sheet: Sheet) -> str:
        return plot.draw(sheet, title, finding, entries, marks)

    return Picture("at-a-glance", title, finding, caption, draw)


def glance_finding(cases: Sequence[Mapping[MethodVariant, MeanStd]]) -> str:
    """Return sentences on how much bounds help each method, and how often FedIF is above FedAvg.

    Parameters
    ----------
    cases : sequence of mapping
        For each case, the accuracies in percent by method and bounds.
    """
    sentences = []
    for method in METHODS:
        gains = _differences(
            cases, MethodVariant(method, is_bounded=True), MethodVariant(method, is_bounded=False)
        )
        if gains:
            sentences.append(
                f"Bounds bring {method} {statistics.median(gains):.1f} points in the median of "
                f"{len(gains)} cases, {max(gains):.1f} at most."
            )
    for words, is_bounded in (("With bounds", True), ("Without bounds", False)):
        leads = _differences(
            cases, MethodVariant("FedIF", is_bounded), MethodVariant("FedAvg", is_bounded)
        )
        ahead = sum(lead > 0 for lead in leads)
        sentences.append(f"{words} FedIF is above FedAvg in {ahead} of {len(leads)} cases.")
    return " ".join(sentences)


def _differences(
    cases: Sequence[Mapping[MethodVariant, MeanStd]], first: MethodVariant, second: MethodVariant
) -> list[float]:
    """Return how far the mean of ``first`` is above that of ``second``, in each case with both."""
    comparable = [figures for figures in cases if first in figures and second in figures]
    return [figures[first].mean - figures[second].mean for figures in comparable]


def _lines(figures: Mapping[MethodVariant, MeanStd]) -> list[Line]:
    """Return a line for each method, with a dot for each of its two variants that is measured."""
    lines = []
    for method, look in METHODS.items():
        dots = []
        for style in _STYLES:
            figure = figures.get(MethodVariant(method, style.is_bounded))
            if figure is not None:
                note = f"{method} {style.words}: {figure.shown('.1f')}"
                deviation = figure.std or 0.0
                dots.append(Dot(look, style.kind, figure.mean, note, deviation, style.up))
        lines.append(Line(method, dots))
    return lines
