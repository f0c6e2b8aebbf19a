"""The picture at a glance: three ways to weigh, with bounds and without, in six cases."""

from __future__ import annotations

import statistics
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

Bar = tuple[str, bool]
"""A method's name, and whether it has bounds on its updates."""
Point = tuple[Bar, float]
"""An accuracy in percent of one seed, and the bar that it belongs to."""

METHODS = MappingProxyType(
    {
        "FedAvg": Look("black", "circle"),
        "FedIF": Look("blue", "star"),
        "influence descent": Look("vermillion", "diamond"),
    }
)
_KEYS = MappingProxyType(
    {"fedavg": "FedAvg", "fedif": "FedIF", "influence-descent": "influence descent"}
)
_BOUNDS = MappingProxyType({"none": False, "full": True})


class Case(NamedTuple):
    """A case: what it is called, what the clients do, and where its accuracies stand."""

    title: str
    words: str
    points: Callable[[Path], Iterator[Point]]

    def read(self, results: Path) -> dict[Bar, MeanStd]:
        """Return each bar's accuracy over seeds, from a folder with the rows."""
        values: dict[Bar, list[float]] = {}
        for bar, accuracy in self.points(results):
            values.setdefault(bar, []).append(accuracy)
        return {bar: MeanStd.of(of_seeds) for bar, of_seeds in values.items()}


def _of_arena(results: Path, data: str, attack: str, share: float) -> Iterator[Point]:
    """Yield the arena's bouts under an attack."""
    for row in read_rows(results / "arena.csv"):
        is_of_case = (row["data"], row["attack"], float(row["share"])) == (data, attack, share)
        if is_of_case and row["rule"] in METHODS:
            bar = row["rule"], _BOUNDS[row["bounds"]]
            yield bar, 100 * float(row["accuracy"])


def _of_factorial(results: Path, data: str, attack: str, share: float) -> Iterator[Point]:
    """Yield the factorial's cells under an attack, without server momentum."""
    for row in read_rows(results / "factorial.csv"):
        is_of_case = (row["data"], row["attack"], float(row["share"])) == (data, attack, share)
        is_shown = row["weights"] in _KEYS and row["bounds"] in _BOUNDS
        if is_of_case and is_shown and float(row["momentum"]) == 0:
            bar = _KEYS[row["weights"]], _BOUNDS[row["bounds"]]
            yield bar, float(row["last-ten"])


def _of_protocol(
    results: Path, table: str, column: str, bounded: str, descent: str
) -> Iterator[Point]:
    """Yield a column of the paper, from three files.

    Its own cells have no bounds. Of all three, rows with pixels scaled by the data's own mean and
    measured on a CPU are shown.
    """
    for row in _on_like_terms(results / table):
        if row["column"] == column and row["row"] in _KEYS:
            yield (_KEYS[row["row"]], False), _last_ten(row)
    for row in _on_like_terms(results / bounded):
        if row["rule.bounds"] in _BOUNDS:
            yield (_KEYS[row["rule.weights"]], _BOUNDS[row["rule.bounds"]]), _last_ten(row)
    for row in _on_like_terms(results / descent):
        if row["strategy"] == "influence-descent" and row["server-optimizer"] == "off":
            yield (_KEYS["influence-descent"], False), _last_ten(row)


def _on_like_terms(path: Path) -> Iterator[Mapping[str, str]]:
    """Yield a file's rows that can stand beside each other in one case."""
    for row in read_rows(path):
        if row["normalization"] == "data" and not row.get("gpu"):
            yield row


def _last_ten(row: Mapping[str, str]) -> float:
    """Return a run's test accuracy in percent."""
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
    """Return the picture.

    Parameters
    ----------
    results : Path
        The folder with the rows.
    """
    title = "Test accuracy in %, mean of the last ten rounds and of three to five seeds"
    by_case = [(case, case.read(results)) for case in CASES]
    finding = glance_finding([figures for _, figures in by_case])
    panels = [DotPanel(case.title, case.words, _lines(figures)) for case, figures in by_case]
    plot = DotPlot(panels, 0.0, 100.0, across=3)
    entries: list[Entry] = [(look, "filled", name) for name, look in METHODS.items()]
    marks = (
        "Filled: with bounds on the length of updates and on the loss after a step; hollow: "
        "without. Bars: deviation over seeds."
    )
    lacking = 0
    for _, figures in by_case:
        lacking += 2 * len(METHODS) - len(figures)
    num_points = 2 * len(METHODS) * len(CASES)
    caption = f"All {num_points} points are measured."
    if lacking:
        caption = f"Not measured: {lacking} of {num_points} points."

    def draw(sheet: Sheet) -> str:
        return plot.draw(sheet, title, finding, entries, marks)

    return Picture("at-a-glance", title, finding, caption, draw)


def glance_finding(cases: Sequence[Mapping[Bar, MeanStd]]) -> str:
    """Return what bounds bring each method, and how often FedIF is above FedAvg.

    Parameters
    ----------
    cases : sequence of mapping
        Of each case the accuracies in percent, by method and bounds.
    """
    sentences = []
    for method in METHODS:
        gains = _differences(cases, (method, True), (method, False))
        if gains:
            sentences.append(
                f"Bounds bring {method} {statistics.median(gains):.1f} points in the median of "
                f"{len(gains)} cases, {max(gains):.1f} at most."
            )
    for words, is_bounded in (("With bounds", True), ("Without bounds", False)):
        leads = _differences(cases, ("FedIF", is_bounded), ("FedAvg", is_bounded))
        ahead = sum(lead > 0 for lead in leads)
        sentences.append(f"{words} FedIF is above FedAvg in {ahead} of {len(leads)} cases.")
    return " ".join(sentences)


def _differences(cases: Sequence[Mapping[Bar, MeanStd]], first: Bar, second: Bar) -> list[float]:
    """Return by how much one mean is above another, in the cases that have both."""
    comparable = [figures for figures in cases if first in figures and second in figures]
    return [figures[first].mean - figures[second].mean for figures in comparable]


def _lines(figures: Mapping[Bar, MeanStd]) -> list[Line]:
    lines = []
    for method, look in METHODS.items():
        dots = []
        for is_bounded in (True, False):
            figure = figures.get((method, is_bounded))
            if figure is not None:
                kind: Kind = "filled" if is_bounded else "hollow"
                bounds = "with bounds" if is_bounded else "without bounds"
                note = f"{method} {bounds}: {figure.shown('.1f')}"
                up = 0.35 if is_bounded else -0.35
                dots.append(Dot(look, kind, figure.mean, note, figure.std or 0.0, up))
        lines.append(Line(method, dots))
    return lines
