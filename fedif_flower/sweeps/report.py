"""Reports on grids that are no table of the paper."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable

from fedif_flower.run.config import Scalar
from fedif_flower.run.recorder import write_atomically
from fedif_flower.sweeps.curves import plot_curves
from fedif_flower.sweeps.measurements import PATHS, Measurement, to_row, write_csv
from paper.compare import FIGURES, MeanStd

Point = tuple[tuple[str, Scalar], ...]
_HEADING = ("seeds", "last round", "mean of last ten", "best round", "detection AUC")


def report_sweep(
    name: str, measurements: Sequence[Measurement], output_dir: Path, console: Console
) -> Path:
    """Write and print a line per combination of the settings that differ; return the directory.

    Parameters
    ----------
    name : str
        The sweep; its report goes to ``<output>/<name>/``.
    measurements : sequence of Measurement
        Its runs, one or more.
    output_dir : Path
        As above.
    console : Console
        Where it is shown.
    """
    axes = varying(measurements)
    points = by_point(measurements, axes)
    heading = [*axes, *_HEADING]
    lines = [_line(point, found) for point, found in points.items()]
    folder = output_dir / name
    folder.mkdir(parents=True, exist_ok=True)
    bars = ["---"] * len(axes) + ["---:"] * len(_HEADING)
    rows = [f"| {' | '.join(row)} |" for row in (heading, bars, *lines)]
    text = [f"# {name}", "", "Test accuracies in percent.", "", *rows, ""]
    if plot_curves(
        {_label(p): found for p, found in points.items()}, folder / "accuracy.png", name
    ):
        text += ["![accuracy over rounds](accuracy.png)", ""]
    write_atomically(folder / "table.md", lambda p: p.write_text("\n".join(text)))
    write_csv(folder / "table.csv", [dict(zip(heading, line, strict=True)) for line in lines])
    write_csv(folder / "results.csv", [to_row(m) for found in points.values() for m in found])
    shown = RichTable(title=name)
    for title in heading:
        shown.add_column(title, justify="left" if title in axes else "right")
    for line in lines:
        shown.add_row(*line)
    console.print(shown)
    console.print(f"Report: {(folder / 'table.md').absolute()}", soft_wrap=True, highlight=False)
    return folder


def varying(measurements: Sequence[Measurement]) -> list[str]:
    """Return the settings, the seed aside, in which runs differ."""
    keys = dict.fromkeys(key for m in measurements for key in m.config)
    ignored = {*PATHS, "seed"}
    return [
        key
        for key in keys
        if key not in ignored and len({repr(m.config.get(key)) for m in measurements}) > 1
    ]


def by_point(
    measurements: Sequence[Measurement], axes: Sequence[str]
) -> dict[Point, list[Measurement]]:
    """Return the runs of each combination of the axes' values, ordered by seed."""
    points: dict[Point, list[Measurement]] = {}
    for measurement in sorted(measurements, key=lambda m: m.seed):
        point = tuple((axis, measurement.config.get(axis, "")) for axis in axes)
        points.setdefault(point, []).append(measurement)
    return points


def _line(point: Point, found: Sequence[Measurement]) -> list[str]:
    line = [str(value) for _, value in point] + [str(len(found))]
    line += [_shown([100 * getattr(m.test, f) for m in found], ".2f") for f in FIGURES]
    aucs = [m.figures["detection-auc"] for m in found if "detection-auc" in m.figures]
    return [*line, _shown(aucs, ".3f")]


def _shown(values: Sequence[float], form: str) -> str:
    if not values:
        return "-"
    spread = MeanStd.of(values)
    text = format(spread.mean, form)
    return text if spread.std is None else f"{text} ± {format(spread.std, form)}"


def _label(point: Point) -> str:
    return ", ".join(str(value) for _, value in point) or "all runs"
