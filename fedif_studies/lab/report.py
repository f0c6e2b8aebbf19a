"""A table of a sweep: a line for each combination of the settings that differ."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from rich.console import Console

from fedif_flower.settings import Scalar
from fedif_flower.tables import ResultTable
from fedif_studies.lab.curves import plot_curves
from fedif_studies.lab.measurements import ACCURACIES, ACCURACY, PATHS, Measurement, to_row
from fedif_studies.lab.table import MeanStd, write_table
from fedif_studies.rows import add_rows

Point = tuple[Scalar, ...]


def report_sweep(
    name: str,
    measurements: Sequence[Measurement],
    folder: Path,
    console: Console,
    swept: Collection[str],
) -> None:
    """Write and print a line per combination of the settings that differ.

    Parameters
    ----------
    name : str
        The sweep.
    measurements : sequence of Measurement
        Its runs, one or more.
    folder : Path
        Its report goes there.
    console : Console
        Where it is shown.
    swept : collection of str
        The keys that were varied; others that differ follow from them.
    """
    axes = [key for key in varying(measurements) if key in swept]
    points: dict[Point, list[Measurement]] = {}
    for one in sorted(measurements, key=lambda m: m.seed):
        points.setdefault(tuple(one.config.get(axis, "") for axis in axes), []).append(one)
    heading = [*axes, "seeds", *ACCURACIES.values(), "detection AUC"]
    lines = [_line(point, found) for point, found in points.items()]
    series = {", ".join(map(str, p)) or "all runs": found for p, found in points.items()}
    picture = folder / "accuracy.png"
    drawn = plot_curves(series, picture, name)
    about = " ".join(dict.fromkeys(map(_about, measurements)))
    table = ResultTable(name, heading, lines, num_labels=len(axes))
    write_table(table, folder, console, [about], [picture] * drawn)
    rows = [to_row(one) for found in points.values() for one in found]
    add_rows(folder / "results.csv", rows, anew=True)


def varying(measurements: Sequence[Measurement]) -> list[str]:
    """Return the settings, the seed aside, in which those runs differ that have them."""
    keys = dict.fromkeys(key for m in measurements for key in m.config)
    ignored = {*PATHS, "seed"}
    return [key for key in keys if key not in ignored and len(_values(key, measurements)) > 1]


def _values(key: str, measurements: Sequence[Measurement]) -> set[str]:
    """Return a setting's values; a section's key counts where the section was chosen."""
    return {repr(m.config.get(key)) for m in measurements if "." not in key or key in m.config}


def scale_of(metric: str) -> tuple[int, str]:
    """Return by what a metric is multiplied in tables, and its format; accuracies: percent."""
    return (100, ".2f") if metric == ACCURACY else (1, ".4g")


def _line(point: Point, found: Sequence[Measurement]) -> list[str]:
    scale, form = scale_of(found[0].metric)
    line = [*map(str, point), str(len(found))]
    means = (MeanStd.of([scale * m.figures[f"test-{n}"] for m in found]) for n in ACCURACIES)
    line += [mean.shown(form) for mean in means]
    aucs = [m.figures["detection-auc"] for m in found if "detection-auc" in m.figures]
    return [*line, MeanStd.of(aucs).shown(".3f") if aucs else "-"]


def _about(measurement: Measurement) -> str:
    """Return what a table's figures are."""
    if measurement.metric == ACCURACY:
        return "Test accuracies in percent."
    better = "higher" if measurement.higher_is_better else "lower"
    return f"Test {measurement.metric}; {better} is better."
