"""What was measured: read from the directories of complete runs, kept as rows of a CSV file."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fedif_flower.errors import ConfigError
from fedif_flower.foreign import refused_as
from fedif_flower.run.config import subject_of
from fedif_flower.run.folder import JsonFile, RunFolder
from fedif_flower.run.report import of_last_ten
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
_OF_SPLITS = tuple(f"{split}-{name}" for split in SPLITS for name in ACCURACIES)
# As summary.json names them, with underscores.
_OF_SUMMARY = (
    *("seconds", "train-seconds-per-client", "train-seconds-total"),
    *("aggregation-seconds-per-round", "evaluations-per-round"),
    *("malicious-weight-share", "detection-auc"),
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
        What accuracies are of: ``"accuracy"``, or the task's own.
    higher_is_better : bool
        Its direction.
    revision : str
        Of the code that ran, or ``code-`` and its hash where no more was written down.
    reconstructed : str
        Which of revision and seed were filled in afterwards, see
        :func:`~fedif_studies.rows.add_rows`.
    processor : str
        What the CPU is called.
    gpu : str
        What the GPU is called that it was computed on; empty: on the CPU.
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
        return _curve(self.run_dir, split, self.metric) if self.run_dir else []


def find_measurements(directories: Iterable[Path]) -> list[Measurement]:
    """Return every complete run with a run config in or under the directories, each only once."""
    found = {
        path.parent.resolve()
        for directory in directories
        for path in directory.rglob(RunFolder(directory).summary.path.name)
        if RunFolder(path.parent).is_complete()
        and not _is_own_app_s(RunFolder(path.parent).summary.read())
    }
    read = (read_measurement(run_dir) for run_dir in sorted(found))
    return [measurement for measurement in read if measurement is not None]


def read_measurement(run_dir: Path) -> Measurement | None:
    """Return what a complete run measured; ``None`` if it never evaluated its model.

    Raises
    ------
    ConfigError
        If the folder is another program's, or of a version that wrote other files.
    """
    with refused_as(ConfigError, f"{run_dir} holds no run that can be read"):
        return _measurement(run_dir)


def _measurement(run_dir: Path) -> Measurement | None:
    summary = RunFolder(run_dir).summary.read()
    metric, higher_is_better = ACCURACY, True
    if summary.get("test_accuracy") is None and (own := summary.get("metrics")):
        metric = next(iter(own))
        higher_is_better = own[metric]["higher_is_better"]
    figures = {name: summary.get(name.replace("-", "_")) for name in _OF_SUMMARY}
    rows = [row for row in RunFolder(run_dir).rounds.read() if int(row["round"])]
    for split in SPLITS:
        column = f"{split}_{metric_key(metric)}"
        values = [float(row[column]) for row in rows if row.get(column)]
        if not values:
            return None
        best = max(values) if higher_is_better else min(values)
        of_last = statistics.fmean(map(float, of_last_ten(rows, column)))
        of_split = (values[-1], of_last, best)
        figures |= {f"{split}-{n}": v for n, v in zip(ACCURACIES, of_split, strict=True)}
    label = JsonFile(run_dir / LABEL).read() if (run_dir / LABEL).exists() else {}
    own = _is_own_app_s(summary)
    config = RunFolder(run_dir).settings() if own else summary["config"]
    machine = summary.get("machine", {})
    parts = [f"{machine['cores']} cores"] if machine.get("cores") else []
    parts += [str(machine[key]) for key in ("processor", "gpu") if machine.get(key)]
    parts += [f"{key} {machine[key]}" for key in ("python", "torch", "flwr") if machine.get(key)]
    return Measurement(
        config=config,
        data=label.get("data") or subject_of(config),
        figures={name: float(value) for name, value in figures.items() if value is not None},
        machine=", ".join(parts),
        run_dir=run_dir,
        metric=metric,
        higher_is_better=higher_is_better,
        revision=label.get("revision") or _code_of(RunFolder(run_dir)),
        processor=label.get("processor") or str(machine.get("processor") or ""),
        gpu=_gpu_used(machine),
    )


def _gpu_used(machine: Mapping[str, Any]) -> str:
    """Return the GPU that a run was computed on; empty: there was none, or it was left alone."""
    device = str(machine.get("device") or "")
    on_gpu = device == AUTO or device.startswith("cuda")
    return str(machine.get("gpu") or "") if on_gpu else ""


def _is_own_app_s(summary: Mapping[str, Any]) -> bool:
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
    settings = {k: v for k, v in measurement.config.items() if k not in PATHS}
    return row | {k: v if isinstance(v, str) else json.dumps(v) for k, v in settings.items()}


def from_row(row: Mapping[str, str]) -> Measurement:
    """Read what :func:`to_row` wrote; cells of other columns are taken for settings."""
    names = (*_OF_SPLITS, *_OF_SUMMARY)
    return Measurement(
        config={k: _setting(v) for k, v in row.items() if k not in _NO_SETTINGS and v},
        data=row["data"],
        figures={name: float(row[name]) for name in names if row[name]},
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
    parts = [part for part in machine.split(", ") if not part.endswith(" cores")]
    return parts[0] if parts else ""


def _setting(text: str) -> Scalar:
    try:
        value: Scalar = json.loads(text)
    except json.JSONDecodeError:
        return text
    return value


def _curve(run_dir: Path, split: str, metric: str) -> list[tuple[int, float]]:
    column = f"{split}_{metric_key(metric)}"
    rows: Sequence[Mapping[str, str]] = RunFolder(run_dir).rounds.read()
    return [(int(row["round"]), float(row[column])) for row in rows if row.get(column)]
