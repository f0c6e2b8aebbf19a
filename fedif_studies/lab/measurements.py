"""What was measured: read from the directories of complete runs, kept as rows of a CSV file."""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedif_flower.run.config import RunConfig, subject_of
from fedif_flower.run.folder import JsonFile, RunFolder
from fedif_flower.settings import Scalar, Settings
from fedif_flower.storage import make_folder, write_atomically
from fedif_flower.strategies.config import PaceSettings
from fedif_flower.tasks.task import metric_key
from fedif_studies.lab.cells import LABEL

# Where a run wrote and read, and how long it was patient: no part of what it measured.
PATHS = ("output-dir", "run-name", "data-dir", "pace.timeout", "checkpoint-every", "resume")
LAST = 10
ACCURACY = "accuracy"
_DECLARED: list[type[Settings]] = [RunConfig, PaceSettings, *RunConfig.sections().values()]
_TEXTS = {
    str(field.alias)
    for declared in _DECLARED
    for field in declared.model_fields.values()
    if field.annotation not in (bool, int, float)
}


@dataclass(frozen=True)
class Accuracy:
    """A run's accuracy, in [0, 1], or what its task has in its place.

    Single rounds swing, so three figures are given.

    Attributes
    ----------
    last : float
        After the last round.
    last_ten : float
        Mean over the last ten rounds that were evaluated.
    best : float
        The highest of any round; the lowest where lower is better.
    """

    last: float
    last_ten: float
    best: float

    @classmethod
    def of(cls, values: list[float], *, higher_is_better: bool = True) -> Accuracy:
        """Return the figures of one run's rounds."""
        best = max(values) if higher_is_better else min(values)
        return cls(values[-1], statistics.fmean(values[-LAST:]), best)


@dataclass(frozen=True)
class Measurement:
    """One complete run.

    Attributes
    ----------
    config : Mapping[str, Scalar]
        Its settings under their kebab-case keys.
    data : str
        What its data set is called.
    test, validation : Accuracy
        Accuracies on the two parts of the test split.
    figures : Mapping[str, float]
        Its seconds, counts and shares, by name.
    machine : str
        What it ran on.
    run_dir : Path, optional
        Where its rounds are; ``None`` if only its row was kept.
    metric : str
        What ``test`` and ``validation`` are about: ``"accuracy"``, or the task's own.
    higher_is_better : bool
        Its direction.
    """

    config: Mapping[str, Scalar]
    data: str
    test: Accuracy
    validation: Accuracy
    figures: Mapping[str, float]
    machine: str
    run_dir: Path | None = None
    metric: str = ACCURACY
    higher_is_better: bool = True

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
        key = metric_key(self.metric)
        return _curve(self.run_dir, f"{split}_{key}") if self.run_dir else []


# Names of figures in a row, and where summary.json has them.
_FIGURES = {
    "seconds": "seconds",
    "train-seconds-per-client": "train_seconds_per_client",
    "train-seconds-total": "train_seconds_total",
    "aggregation-seconds-per-round": "aggregation_seconds_per_round",
    "evaluations-per-round": "evaluations_per_round",
    "malicious-weight-share": "malicious_weight_share",
    "detection-auc": "detection_auc",
}
_ACCURACIES = {
    f"{split}-{name}": (split, field)
    for split in ("test", "validation")
    for name, field in (("last", "last"), ("last-ten", "last_ten"), ("best", "best"))
}


def find_measurements(directories: Iterable[Path]) -> list[Measurement]:
    """Return every complete run in or under the directories, each only once."""
    found = {
        path.parent.resolve()
        for directory in directories
        for path in directory.rglob(RunFolder(directory).summary.path.name)
        if RunFolder(path.parent).is_complete()
    }
    read = (read_measurement(run_dir) for run_dir in sorted(found))
    return [measurement for measurement in read if measurement is not None]


def read_measurement(run_dir: Path) -> Measurement | None:
    """Return what a complete run measured; ``None`` if it never evaluated its model."""
    summary = RunFolder(run_dir).summary.read()
    metric, higher_is_better = _metric(summary)
    test, validation = (
        [v for round_, v in _curve(run_dir, f"{split}_{metric_key(metric)}") if round_ > 0]
        for split in ("test", "validation")
    )
    if not test or not validation:
        return None
    config = summary["config"]
    label = run_dir / LABEL
    data = JsonFile(label).read()["data"] if label.exists() else subject_of(config)
    figures = {name: summary.get(key) for name, key in _FIGURES.items()}
    return Measurement(
        config=config,
        data=data,
        test=Accuracy.of(test, higher_is_better=higher_is_better),
        validation=Accuracy.of(validation, higher_is_better=higher_is_better),
        figures={name: float(value) for name, value in figures.items() if value is not None},
        machine=_machine(summary.get("machine", {})),
        run_dir=run_dir,
        metric=metric,
        higher_is_better=higher_is_better,
    )


def _metric(summary: Mapping[str, Any]) -> tuple[str, bool]:
    """Return by what a run is measured, and whether higher is better."""
    if summary.get("test_accuracy") is None and (own := summary.get("metrics")):
        name = next(iter(own))
        return name, own[name]["higher_is_better"]
    return ACCURACY, True


def to_row(measurement: Measurement) -> dict[str, str]:
    """Return a measurement as a line of a CSV file."""
    row = {"data": measurement.data}
    if measurement.metric != ACCURACY:
        row["metric"] = measurement.metric
        row["higher-is-better"] = json.dumps(measurement.higher_is_better)
    for column, (split, field) in _ACCURACIES.items():
        row[column] = f"{getattr(getattr(measurement, split), field):.6f}"
    for name in _FIGURES:
        value = measurement.figures.get(name)
        row[name] = "" if value is None else f"{value:.6g}"
    row["machine"] = measurement.machine
    settings = {k: v for k, v in measurement.config.items() if k not in PATHS}
    return row | {k: v if isinstance(v, str) else json.dumps(v) for k, v in settings.items()}


def from_row(row: Mapping[str, str]) -> Measurement:
    """Read what :func:`to_row` wrote; cells of other columns are taken for settings."""
    known = {"data", "machine", "metric", "higher-is-better", *_ACCURACIES, *_FIGURES}
    accuracies: dict[str, dict[str, float]] = {"test": {}, "validation": {}}
    for column, (split, field) in _ACCURACIES.items():
        accuracies[split][field] = float(row[column])
    return Measurement(
        config={k: _setting(k, v) for k, v in row.items() if k not in known and v},
        data=row["data"],
        test=Accuracy(**accuracies["test"]),
        validation=Accuracy(**accuracies["validation"]),
        figures={name: float(row[name]) for name in _FIGURES if row[name]},
        machine=row["machine"],
        metric=row.get("metric") or ACCURACY,
        higher_is_better=json.loads(row.get("higher-is-better") or "true"),
    )


def _setting(key: str, text: str) -> Scalar:
    try:
        value: Scalar = text if key in _TEXTS else json.loads(text)
    except json.JSONDecodeError:  # Of an entry that is not built in.
        return text
    return value


def write_csv(path: Path, rows: list[dict[str, str]]) -> None:
    """Write rows as a CSV file; its columns are those of all rows, in order of appearance."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    make_folder(path.parent)
    write_atomically(path, text.getvalue())


def _curve(run_dir: Path, column: str) -> list[tuple[int, float]]:
    rows = RunFolder(run_dir).rounds.read()
    return [(int(row["round"]), float(row[column])) for row in rows if row.get(column)]


def _machine(machine: Mapping[str, Any]) -> str:
    parts = [f"{machine[key]} {key}" for key in ("cores",) if machine.get(key)]
    parts += [str(machine[key]) for key in ("processor", "gpu") if machine.get(key)]
    parts += [f"{key} {machine[key]}" for key in ("python", "torch", "flwr") if machine.get(key)]
    return ", ".join(parts)
