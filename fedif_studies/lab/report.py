"""Reports on grids that are no table of the paper."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from rich.console import Console

from fedif_flower.settings import Scalar
from fedif_flower.storage import make_folder
from fedif_flower.tables import ResultTable
from fedif_studies.lab.curves import plot_curves
from fedif_studies.lab.measurements import ACCURACY, PATHS, Measurement, to_row, write_csv
from fedif_studies.lab.table import FIGURES, MeanStd, write_table

Point = tuple[tuple[str, Scalar], ...]
_HEADING = ("seeds", *FIGURES.values(), "detection AUC")


def report_sweep(
    name: str,
    measurements: Sequence[Measurement],
    output_dir: Path,
    console: Console,
    swept: Collection[str] | None = None,
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
    swept : collection of str, optional
        The keys that were varied; others that differ follow from them. ``None``: all that differ.
    """
    axes = [key for key in varying(measurements) if swept is None or key in swept]
    points = by_point(measurements, axes)
    lines = [_line(point, found) for point, found in points.items()]
    table = ResultTable(name, [*axes, *_HEADING], lines, num_labels=len(axes))
    folder = output_dir / name
    make_folder(folder)
    drawn = plot_curves(
        {_label(p): found for p, found in points.items()}, folder / "accuracy.png", name
    )
    picture = [f"![{measurements[0].metric} over rounds](accuracy.png)"] if drawn else []
    about = dict.fromkeys(_about(measurement) for measurement in measurements)
    path = write_table(table, folder, [" ".join(about), ""], picture)
    write_csv(folder / "results.csv", [to_row(m) for found in points.values() for m in found])
    table.print(console)
    console.print(f"Report: {path.absolute()}", soft_wrap=True, highlight=False)
    return folder


def report_sweeps(measurements: Sequence[Measurement], output_dir: Path, console: Console) -> None:
    """Report on the runs of each folder as on a sweep; see :func:`report_sweep`."""
    folders: dict[str, list[Measurement]] = {}
    for measurement in measurements:
        folder = measurement.run_dir.parent.name if measurement.run_dir else "runs"
        folders.setdefault(folder, []).append(measurement)
    for name, found in folders.items():
        report_sweep(name, found, output_dir, console)


def varying(measurements: Sequence[Measurement]) -> list[str]:
    """Return the settings, the seed aside, in which those runs differ that have them."""
    keys = dict.fromkeys(key for m in measurements for key in m.config)
    ignored = {*PATHS, "seed"}
    return [key for key in keys if key not in ignored and len(_values(key, measurements)) > 1]


def _values(key: str, measurements: Sequence[Measurement]) -> set[str]:
    """Return a setting's values; a section's key counts where the section was chosen."""
    return {repr(m.config.get(key)) for m in measurements if "." not in key or key in m.config}


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
    percent = found[0].metric == ACCURACY
    scale, form = (100, ".2f") if percent else (1, ".4g")
    line += [_shown([scale * getattr(m.test, f) for m in found], form) for f in FIGURES]
    aucs = [m.figures["detection-auc"] for m in found if "detection-auc" in m.figures]
    return [*line, _shown(aucs, ".3f")]


def _about(measurement: Measurement) -> str:
    """Return what a table's figures are."""
    if measurement.metric == ACCURACY:
        return "Test accuracies in percent."
    better = "higher" if measurement.higher_is_better else "lower"
    return f"Test {measurement.metric}; {better} is better."


def _shown(values: Sequence[float], form: str) -> str:
    return MeanStd.of(values).shown(form) if values else "-"


def _label(point: Point) -> str:
    return ", ".join(str(value) for _, value in point) or "all runs"
