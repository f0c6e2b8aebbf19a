"""What was measured: read from the directories of complete runs, kept as rows of a CSV file."""

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
from fedif_studies.lab.cells import LABEL

# Where a run wrote and read, and how long it was patient: no part of what it measured.
PATHS = ("output-dir", "run-name", "data-dir", "pace.timeout", "checkpoint-every", "resume")
ACCURACY = "accuracy"
# Single rounds swing, so three figures are given of each split, and what a table calls them.
ACCURACIES: Mapping[str, str] = MappingProxyType(
    {"last": "last round", "last-ten": "mean of last ten", "best": "best round"}
)
SPLITS = ("test", "validation")
_TEN = 10
_OF_SPLITS = tuple(f"{split}-{name}" for split, name in itertools.product(SPLITS, ACCURACIES))
# As summary.json names them, with underscores.
_OF_SUMMARY = (
    "seconds",
    "train-seconds-per-client",
    "train-seconds-total",
    "aggregation-seconds-per-round",
    "evaluations-per-round",
    "malicious-weight-share",
    "detection-auc",
)
_NO_SETTINGS = {
    "data",
    "machine",
    "processor",
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
        Its settings under their kebab-case keys; of an app of its own those that are known.
    data : str
        What its data set is called.
    figures : Mapping[str, float]
        Accuracies in [0, 1] on both parts of the test split, or what its task has in their place,
        as ``test-last-ten``; seconds, counts and shares, by name.
    machine : str
        What it ran on.
    run_dir : Path, optional
        Where its rounds are; ``None`` if only its row was kept.
    metric : str
        The metric that accuracies are in: ``"accuracy"``, or the first of the task's own.
    higher_is_better : bool
        Its direction.
    revision : str
        Of the code that ran, or ``code-`` and its hash where no more was written down. A run that
        was stopped, and went on with other code, has all of them: ``old and new``.
    reconstructed : str
        What was filled in afterwards: revision, seed or a setting, see
        :func:`~fedif_studies.rows.add_rows`.
    processor : str
        What the CPU is called.
    gpu : str
        What the GPU is called that it was computed on; empty: on the CPU.
    group : str
        The table or sweep that it was run for; empty: a run of its own, or only its row was kept.
    num_averaged : int
        How many of its last ten rounds were evaluated, and are in their mean; ten where only its
        row was kept.
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
    gpu: str = ""
    group: str = ""
    num_averaged: int = field(default=_TEN, compare=False)

    @property
    def seed(self) -> int:
        """The seed that everything random was drawn from."""
        return int(self.config["seed"])

    @property
    def rounds(self) -> int:
        """How many rounds it ran."""
        return int(self.config["num-server-rounds"])

    def curve(self, split: str) -> list[tuple[int, float]]:
        """Return (round, metric) for every evaluated round; split: "test" or "validation"."""
        if self.run_dir is None:
            return []
        rows: Sequence[Mapping[str, str]] = RunFolder(self.run_dir).rounds.read()
        column = f"{split}_{metric_key(self.metric)}"
        return [(int(row["round"]), float(row[column])) for row in rows if row.get(column)]


def configs_of(measurements: Iterable[Measurement]) -> list[Mapping[str, Scalar]]:
    """Return the settings of runs."""
    return [measurement.config for measurement in measurements]


def metrics_of(measurements: Iterable[Measurement]) -> list[str]:
    """Return the metrics that runs are measured by, each once, in the order of their coming."""
    return list(dict.fromkeys(measurement.metric for measurement in measurements))


def figures_of(measurements: Iterable[Measurement], name: str) -> list[float]:
    """Return a figure of those runs that have it."""
    return [m.figures[name] for m in measurements if name in m.figures]


def find_measurements(directories: Iterable[Path]) -> list[Measurement]:
    """Return every complete run with a run config in or under the directories, each only once.

    They come in the order in which they were completed: of two runs of a cell the later one counts.
    What earlier attempts at a run left in its folder is left out.
    """
    run_dirs = set()
    for directory in directories:
        for path in directory.rglob(RunFolder(directory).summary.path.name):
            folder = RunFolder(path.parent)
            if folder.is_put_aside() or not folder.is_complete():
                continue
            if not _is_of_own_app(folder.summary.read()):
                run_dirs.add(path.parent.resolve())
    in_order = sorted(run_dirs, key=_when_completed)
    measurements = [read_measurement(run_dir) for run_dir in in_order]
    return [measurement for measurement in measurements if measurement is not None]


def _when_completed(run_dir: Path) -> tuple[float, Path]:
    """Return when a run's last file was written; the folder tells those of a moment apart."""
    return RunFolder(run_dir).summary.path.stat().st_mtime, run_dir


def read_measurement(run_dir: Path) -> Measurement | None:
    """Return what a complete run measured; ``None`` if it never evaluated its model.

    Raises
    ------
    ConfigError
        If the folder is another program's, or of a version that wrote other files.
    """
    with refused_as(ConfigError, f"{run_dir} holds no run that can be read"):
        return _read_complete(run_dir)


def _read_complete(run_dir: Path) -> Measurement | None:
    """Return what a run measured: its figures, its settings, and what its cell's label says."""
    folder = RunFolder(run_dir)
    summary = folder.summary.read()
    metric, higher_is_better = _metric_of(summary)
    figures = _summary_figures(summary)
    rounds = [row for row in folder.rounds.read() if int(row["round"])]  # 0: before the first one.
    num_averaged = 0
    for split in SPLITS:
        column = f"{split}_{metric_key(metric)}"
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
        gpu=_gpu_used(machine),
        group=str(label.get("group") or ""),
        num_averaged=num_averaged,
    )


def _summary_figures(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of a run's summary that it has."""
    figures = {}
    for name in _OF_SUMMARY:
        value = summary.get(name.replace("-", "_"))
        if value is not None:
            figures[name] = float(value)
    return figures


def _split_figures(
    rounds: Sequence[Mapping[str, str]], split: str, column: str, *, higher_is_better: bool
) -> dict[str, float]:
    """Return the figures of a split with a value in at least one round."""
    values = [float(row[column]) for row in rounds if row.get(column)]
    last_ten = map(float, of_last_ten(rounds, column))
    best = best_of(values, higher_is_better=higher_is_better)
    return {
        f"{split}-last": values[-1],
        f"{split}-last-ten": statistics.fmean(last_ten),
        f"{split}-best": math.nan if best is None else best,
    }


def last_ten_remarks(measurements: Iterable[Measurement]) -> list[str]:
    """Return what must be said of means of the last ten rounds; nothing if all are of ten."""
    counts = sorted({measurement.num_averaged for measurement in measurements})
    if not counts or counts[0] == _TEN:
        return []
    words = str(counts[0])
    if len(counts) > 1:
        words += f" to {counts[-1]}"
    return [f"Evaluated of the last ten rounds, and in their mean: {words}."]


def _metric_of(summary: Mapping[str, Any]) -> tuple[str, bool]:
    """Return the metric that a run is measured by, and whether higher is better.

    It is what results show first: the task's first metric with a figure of each split, and
    accuracy where it has none.
    """
    for metric, figures in summary.get("metrics", {}).items():
        if None not in figures.values():
            return metric, figures["higher_is_better"]
    return ACCURACY, True


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
    """Return the GPU that a run was computed on; empty: there was none, or it was left alone."""
    device = str(machine.get("device") or "")
    gpu = str(machine.get("gpu") or "")
    if device == "mps":
        return gpu or MPS  # Earlier runs did not name it.
    if device == AUTO or device.startswith("cuda"):
        return gpu
    return ""


def _is_of_own_app(summary: Mapping[str, Any]) -> bool:
    """Tell whether a run's summary is of an app of its own, which has no run config."""
    return "config" not in summary and "title" in summary


def _code_of(folder: RunFolder) -> str:
    """Return what a run without a label says of the code that ran; empty: nothing."""
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
    row["gpu"] = measurement.gpu
    row["revision"] = measurement.revision
    if measurement.reconstructed:
        row["reconstructed"] = measurement.reconstructed
    for key, setting in measurement.config.items():
        if key not in PATHS:
            row[key] = setting if isinstance(setting, str) else json.dumps(setting)
    return row


def from_row(row: Mapping[str, str]) -> Measurement:
    """Read what :func:`to_row` wrote; cells of other columns are taken for settings."""
    config = {}
    for column, text in row.items():
        if text and column not in _NO_SETTINGS:
            config[column] = _setting(text)
    figures = {}
    for name in (*_OF_SPLITS, *_OF_SUMMARY):
        if row[name]:
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
        gpu=row.get("gpu", ""),
    )


def _processor_in(machine: str) -> str:
    """Return the processor in a machine's words, ``"2 cores, x86_64, python 3.11.7, ..."``."""
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
