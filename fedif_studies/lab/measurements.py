"""Measurements of complete runs: read from the runs' folders, and kept as rows of a CSV file."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fedif_flower.errors import ConfigError
from fedif_flower.foreign import refused_as
from fedif_flower.run.config import subject_of
from fedif_flower.run.figures import best_of, of_last_ten
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.machine import MPS
from fedif_flower.run.record_files import JsonFile
from fedif_flower.settings import AUTO, Scalar
from fedif_flower.tasks.task import metric_key
from fedif_studies.lab.cells import CLAIMS, LABEL

# Settings that change nothing about what a run measures: its folders, how long it waits for
# clients, how often it saves, and whether it goes on.
PATHS = ("output-dir", "run-name", "data-dir", "pace.timeout", "checkpoint-every", "resume")
ACCURACY = "accuracy"
# The figures of each split, and their headings in a table. They are three since the accuracy varies
# from one round to the next.
ACCURACIES: Mapping[str, str] = MappingProxyType(
    {"last": "last round", "last-ten": "mean of last ten", "best": "best round"}
)
SPLITS = ("test", "validation")
_TEN = 10
_OF_SPLITS = tuple(f"{split}-{name}" for split, name in itertools.product(SPLITS, ACCURACIES))
# Figures of summary.json, which has underscores in these names.
_OF_SUMMARY = (
    "seconds",
    "train-seconds-per-client",
    "train-seconds-total",
    "aggregation-seconds-per-round",
    "evaluations-per-round",
    "malicious-weight-share",
    "detection-auc",
)
# Columns of a row that are not settings of the run.
_NO_SETTINGS = {
    "data",
    "machine",
    "processor",
    "threads",
    "gpu",
    "revision",
    "reconstructed",
    "metric",
    "higher-is-better",
    *_OF_SPLITS,
    *_OF_SUMMARY,
}


@dataclass(frozen=True)
class Measurement:
    """One complete run.

    Attributes
    ----------
    config : Mapping[str, Scalar]
        Its settings under their kebab-case keys. For a user's own app, these are the settings that
        the run recorded.
    data : str
        The name of its data set.
    figures : Mapping[str, float]
        Figures by name. Those such as ``test-last-ten`` are accuracies in [0, 1] on the two parts
        of the test split, or values of ``metric``; the others are seconds, counts and shares.
    machine : str
        The machine that it ran on, in words.
    run_dir : Path, optional
        The run's folder; ``None`` if only its row was kept.
    metric : str
        The metric of the figures by split: ``"accuracy"``, or the first of the task's own metrics.
    higher_is_better : bool
        Whether higher values of ``metric`` are better.
    revision : str
        The revision of the code that ran, or ``code-`` and a hash of the code where the run
        recorded no revision. A run that was stopped, and went on with other code, has all
        revisions: ``old and new``.
    reconstructed : str
        What was filled in after the measurement: the revision, the seed, a setting or the threads,
        see :func:`~fedif_studies.rows.add_rows`.
    processor : str
        The name of the CPU.
    threads : str
        How many torch threads its server had; empty if that was not recorded.
    gpu : str
        The name of the GPU that computed it; empty if the CPU did.
    group : str
        The table or sweep that it was run for. Empty if it was run alone, or only its row was kept.
    num_averaged : int
        How many of its last ten rounds were evaluated: their mean is the figure ``last-ten``. Ten
        if only its row was kept.
    """

    config: Mapping[str, Scalar]
    data: str
    figures: Mapping[str, float]
    machine: str
    run_dir: Path | None = None
    metric: str = ACCURACY
    higher_is_better: bool = True
    revision: str = ""
    reconstructed: str = ""
    processor: str = ""
    threads: str = ""
    gpu: str = ""
    group: str = ""
    num_averaged: int = field(default=_TEN, compare=False)

    @property
    def seed(self) -> int:
        """The seed of everything random in the run."""
        return int(self.config["seed"])

    @property
    def rounds(self) -> int:
        """The number of rounds that it ran."""
        return int(self.config["num-server-rounds"])

    def curve(self, split: str) -> list[tuple[int, float]]:
        """Return (round, metric) of every evaluated round, on the split "test" or "validation"."""
        if self.run_dir is None:
            return []
        rows: Sequence[Mapping[str, str]] = RunFolder(self.run_dir).rounds.read()
        column = _column(split, self.metric)
        return [(int(row["round"]), float(row[column])) for row in rows if row.get(column)]


def configs_of(measurements: Iterable[Measurement]) -> list[Mapping[str, Scalar]]:
    """Return the settings of runs."""
    return [measurement.config for measurement in measurements]


def metrics_of(measurements: Iterable[Measurement]) -> list[str]:
    """Return the metrics that runs are measured by, each once, in the order of the runs."""
    return list(dict.fromkeys(measurement.metric for measurement in measurements))


def figures_of(measurements: Iterable[Measurement], name: str) -> list[float]:
    """Return the values of a figure, from those runs that have it."""
    return [m.figures[name] for m in measurements if name in m.figures]


def find_measurements(directories: Iterable[Path]) -> list[Measurement]:
    """Return the measurement of every complete run in or under the directories, each once.

    A run of a user's own app has no run config and is left out, and so are the earlier attempts
    that a run's folder keeps, and runs that shall replace a cell's result but have not done so. The
    order is that of completion, so that the later of two runs of a cell comes last and can take the
    place of the earlier one.
    """
    run_dirs = set()
    for directory in directories:
        for path in directory.rglob(RunFolder(directory).summary.path.name):
            if CLAIMS in path.relative_to(directory).parts:
                continue
            folder = RunFolder(path.parent)
            if folder.is_put_aside() or not folder.is_complete():
                continue
            if not _is_of_own_app(folder.summary.read()):
                run_dirs.add(path.parent.resolve())
    in_order = sorted(run_dirs, key=_when_completed)
    measurements = [read_measurement(run_dir) for run_dir in in_order]
    return [measurement for measurement in measurements if measurement is not None]


def _when_completed(run_dir: Path) -> tuple[float, Path]:
    """Return when a run's summary was written, and its folder, which orders runs of one moment."""
    return RunFolder(run_dir).summary.path.stat().st_mtime, run_dir


def read_measurement(run_dir: Path) -> Measurement | None:
    """Return a complete run's measurement; ``None`` if it lacks evaluations on a split.

    Raises
    ------
    ConfigError
        If the folder belongs to another program, or to a version that wrote other files.
    """
    with refused_as(ConfigError, f"{run_dir} holds no run that can be read"):
        return _read_complete(run_dir)


def _read_complete(run_dir: Path) -> Measurement | None:
    """Return a run's measurement, from its rounds, its summary and its cell's label."""
    folder = RunFolder(run_dir)
    summary = folder.summary.read()
    # Round 0 is the model before training.
    rounds = [row for row in folder.rounds.read() if int(row["round"])]
    metric, higher_is_better = _metric_of(summary, rounds)
    figures = _summary_figures(summary)
    num_averaged = 0
    for split in SPLITS:
        column = _column(split, metric)
        last_ten = of_last_ten(rounds, column)
        if not last_ten:
            return None
        num_averaged = len(last_ten)
        figures |= _split_figures(rounds, split, column, higher_is_better=higher_is_better)
    config = folder.settings() if _is_of_own_app(summary) else summary["config"]
    machine = summary.get("machine", {})
    # A cell of a grid has a label; any other run has none.
    label = JsonFile(run_dir / LABEL).read_if_there()
    return Measurement(
        config=config,
        data=label.get("data") or subject_of(config),
        figures=figures,
        machine=_words_for(machine),
        run_dir=run_dir,
        metric=metric,
        higher_is_better=higher_is_better,
        revision=label.get("revision") or _code_of(folder),
        processor=label.get("processor") or str(machine.get("processor") or ""),
        threads=label.get("threads", ""),
        gpu=_gpu_used(machine),
        group=str(label.get("group") or ""),
        num_averaged=num_averaged,
    )


def _summary_figures(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return those of the summary's figures that have a value."""
    figures = {}
    for name in _OF_SUMMARY:
        value = summary.get(name.replace("-", "_"))
        if value is not None:
            figures[name] = float(value)
    return figures


def _split_figures(
    rounds: Sequence[Mapping[str, str]], split: str, column: str, *, higher_is_better: bool
) -> dict[str, float]:
    """Return the figures of a split, which has a value in at least one round."""
    values = [float(row[column]) for row in rounds if row.get(column)]
    last_ten = map(float, of_last_ten(rounds, column))
    best = best_of(values, higher_is_better=higher_is_better)
    return {
        f"{split}-last": values[-1],
        f"{split}-last-ten": statistics.fmean(last_ten),
        f"{split}-best": math.nan if best is None else best,
    }


def last_ten_remarks(measurements: Iterable[Measurement]) -> list[str]:
    """Return a remark if a mean of the last ten rounds is of fewer; nothing if all are of ten."""
    counts = sorted({measurement.num_averaged for measurement in measurements})
    if not counts or counts[0] == _TEN:
        return []
    words = str(counts[0])
    if len(counts) > 1:
        words += f" to {counts[-1]}"
    return [f"The mean of the last ten rounds includes only the evaluated ones: {words}."]


def _metric_of(summary: Mapping[str, Any], rounds: Sequence[Mapping[str, str]]) -> tuple[str, bool]:
    """Return the metric that a run is measured by, and whether higher is better.

    It is the first of the task's own metrics that was measured on every split, or else accuracy. A
    metric that became NaN was measured, although the summary has no figure for it.
    """
    for metric, figures in summary.get("metrics", {}).items():
        if all(of_last_ten(rounds, _column(split, metric)) for split in SPLITS):
            return metric, figures["higher_is_better"]
    return ACCURACY, True


def _column(split: str, metric: str) -> str:
    """Return the column of ``rounds.csv`` with a metric on a split."""
    return f"{split}_{metric_key(metric)}"


def _words_for(machine: Mapping[str, Any]) -> str:
    """Return a machine in words: ``"2 cores, x86_64, python 3.11.7, ..."``."""
    forms = {
        "cores": "{} cores",
        "processor": "{}",
        "gpu": "{}",
        "python": "python {}",
        "torch": "torch {}",
        "flwr": "flwr {}",
    }
    words = [form.format(machine[key]) for key, form in forms.items() if machine.get(key)]
    return ", ".join(words)


def _gpu_used(machine: Mapping[str, Any]) -> str:
    """Return the name of the GPU that computed a run; empty if the CPU did."""
    device = str(machine.get("device") or "")
    gpu = str(machine.get("gpu") or "")
    if device == "mps":
        return gpu or MPS  # Earlier versions did not record the name of such a GPU.
    if device == AUTO or device.startswith("cuda"):
        return gpu
    return ""


def _is_of_own_app(summary: Mapping[str, Any]) -> bool:
    """Tell whether a summary belongs to a run of a user's own app, which has no run config."""
    return "config" not in summary and "title" in summary


def _code_of(folder: RunFolder) -> str:
    """Return a hash of the code that ran, for a run without a label; empty if it has none."""
    if not folder.provenance.path.is_file():
        return ""
    return f"code-{folder.provenance.read()['code_sha256'][:12]}"


def to_row(measurement: Measurement) -> dict[str, str]:
    """Return a measurement as a line of a CSV file."""
    row = {"data": measurement.data}
    if measurement.metric != ACCURACY:
        row["metric"] = measurement.metric
        row["higher-is-better"] = json.dumps(measurement.higher_is_better)
    for names, form in ((_OF_SPLITS, ".6f"), (_OF_SUMMARY, ".6g")):
        for name in names:
            value = measurement.figures.get(name)
            row[name] = "" if value is None else format(value, form)
    row["machine"] = measurement.machine
    row["processor"] = measurement.processor
    row["threads"] = measurement.threads
    row["gpu"] = measurement.gpu
    row["revision"] = measurement.revision
    if measurement.reconstructed:
        row["reconstructed"] = measurement.reconstructed
    for key, setting in measurement.config.items():
        if key not in PATHS:
            row[key] = setting if isinstance(setting, str) else json.dumps(setting)
    return row


def from_row(row: Mapping[str, str]) -> Measurement:
    """Read a line that :func:`to_row` wrote; any column that it does not know is a setting."""
    config = {}
    for column, text in row.items():
        if text and column not in _NO_SETTINGS:
            config[column] = _setting(text)
    figures = {}
    for name in (*_OF_SPLITS, *_OF_SUMMARY):
        if row.get(name):  # Earlier rows lack figures that are newer.
            figures[name] = float(row[name])
    return Measurement(
        config=config,
        data=row["data"],
        figures=figures,
        machine=row["machine"],
        metric=row.get("metric") or ACCURACY,
        higher_is_better=row.get("higher-is-better") != "false",
        revision=row.get("revision", ""),
        reconstructed=row.get("reconstructed", ""),
        processor=row.get("processor") or _processor_in(row["machine"]),
        threads=row.get("threads", ""),
        gpu=row.get("gpu", ""),
    )


def _processor_in(machine: str) -> str:
    """Return the processor in the words for a machine, ``"2 cores, x86_64, python 3.11.7, ..."``.

    Earlier rows have no column for it.
    """
    for word in machine.split(", "):
        if not word.endswith(" cores"):
            return word
    return ""


def _setting(text: str) -> Scalar:
    try:
        value: Scalar = json.loads(text)
    except json.JSONDecodeError:
        return text
    return value
