"""Differences between runs of the same seed."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import NamedTuple

from fedif_flower.run import plots
from fedif_flower.run.palette import BLACK, line_style
from fedif_flower.storage import make_folder
from fedif_flower.tables import ResultTable
from fedif_studies.lab.measurements import ACCURACY, Measurement

_WIDTH = 32  # Characters in a line of text beside or below the picture; longer text is broken.


class Pairs(NamedTuple):
    """The differences between one combination of settings and the first one, by seed.

    A positive difference means that this combination's metric is higher.
    """

    name: str
    by_seed: Mapping[int, float]

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return statistics.fmean(self.by_seed.values())


class Paired(NamedTuple):
    """The differences between the first combination of settings and the others.

    Attributes
    ----------
    first : str
        The name of the first combination of settings.
    others : sequence of Pairs
        The differences of each other combination that shares a seed with the first.
    metric : str
        The metric that the differences are in; accuracies are in percent.
    left_out : int
        How many runs have the same settings and seed as a later run, which counts instead.
    unmatched : int
        How many runs have a seed that the first combination lacks.
    seedless : int
        How many runs have no known seed, as they belong to a user's own app.
    """

    first: str
    others: Sequence[Pairs]
    metric: str
    left_out: int = 0
    unmatched: int = 0
    seedless: int = 0

    @property
    def unit(self) -> str:
        """The unit of the differences."""
        return "points" if self.metric == ACCURACY else self.metric

    @property
    def title(self) -> str:
        """The title of the differences."""
        return f"{self.unit} beyond {self.first}, mean of the last ten rounds"


def pair_runs(measurements: Sequence[Measurement], keys: Sequence[str]) -> Paired | None:
    """Return differences in the mean of the last ten rounds, between runs of the same seed.

    Parameters
    ----------
    measurements : sequence of Measurement
        The runs. Where several have the same settings and seed, the last one counts. A run of a
        user's own app has no seed, and is in no difference.
    keys : sequence of str
        The settings in which the runs differ, without the seed.

    Returns
    -------
    Paired, optional
        ``None`` if no other combination of settings shares a seed with the first run's.
    """
    seeded = [measurement for measurement in measurements if "seed" in measurement.config]
    if not seeded:
        return None
    by_name = _last_by_seed(seeded, keys)
    first, *rest = by_name
    reference = by_name[first]
    others = []
    num_kept = len(reference)
    unmatched = 0
    for name in rest:
        by_seed = by_name[name]
        shared = sorted(by_seed.keys() & reference.keys())
        num_kept += len(by_seed)
        unmatched += len(by_seed) - len(shared)
        if shared:
            differences = {seed: by_seed[seed] - reference[seed] for seed in shared}
            others.append(Pairs(name, differences))
    if not others:
        return None
    return Paired(
        first,
        others,
        seeded[0].metric,
        left_out=len(seeded) - num_kept,
        unmatched=unmatched,
        seedless=len(measurements) - len(seeded),
    )


def _last_by_seed(
    measurements: Iterable[Measurement], keys: Sequence[str]
) -> dict[str, dict[int, float]]:
    """Return means of the last ten rounds by combination of settings, then by seed.

    Accuracies are in percent. The last run with the same settings and seed counts.
    """
    by_name: dict[str, dict[int, float]] = {}
    for measurement in measurements:
        name = ", ".join(f"{key} = {measurement.config.get(key, '')}" for key in keys)
        scale = 100 if measurement.metric == ACCURACY else 1
        value = scale * measurement.figures["test-last-ten"]
        by_name.setdefault(name, {})[measurement.seed] = value
    return by_name


def paired_remarks(paired: Paired) -> list[str]:
    """Return a remark for each kind of run that is in no difference, if there are such runs."""
    remarks = []
    if paired.left_out:
        remarks.append(
            "Of runs with the same settings and seed the last one counts in the differences; "
            f"left out: {paired.left_out}."
        )
    if paired.unmatched:
        remarks.append(
            f"Runs with a seed that {paired.first} lacks are in no difference: {paired.unmatched}."
        )
    if paired.seedless:
        remarks.append(
            f"Runs of apps of their own tell no seed and are in no difference: {paired.seedless}."
        )
    return remarks


def _seeds_of(paired: Paired) -> list[int]:
    """Return every seed that some difference has, in order."""
    seeds: set[int] = set()
    for pairs in paired.others:
        seeds.update(pairs.by_seed)
    return sorted(seeds)


def paired_table(paired: Paired) -> ResultTable:
    """Return a table of differences: a line per combination of settings, a column per seed."""
    form = "+.2f" if paired.metric == ACCURACY else "+.4g"
    seeds = _seeds_of(paired)
    heading = ["settings", *(f"seed {seed}" for seed in seeds), "mean", "higher in"]
    lines = []
    for pairs in paired.others:
        line = [pairs.name]
        for seed in seeds:
            if seed in pairs.by_seed:
                line.append(format(pairs.by_seed[seed], form))
            else:
                line.append("-")
        num_higher = sum(difference > 0 for difference in pairs.by_seed.values())
        line.append(format(pairs.mean, form))
        line.append(f"{num_higher} of {len(pairs.by_seed)}")
        lines.append(line)
    return ResultTable(paired.title, heading, lines, num_labels=1)


def plot_pairs(paired: Paired, path: Path) -> None:
    """Draw a line for each combination of settings: a point for each seed, and a bar at their mean.

    Parameters
    ----------
    paired : Paired
        The differences.
    path : Path
        The PNG file.
    """
    figure = plots.new_figure(1.4 + 0.45 * len(paired.others))
    axes = figure.subplots()
    axes.axvline(0.0, color=BLACK, linewidth=0.9)
    for index, seed in enumerate(_seeds_of(paired)):
        places = []
        values = []
        for place, pairs in enumerate(paired.others):
            if seed in pairs.by_seed:
                places.append(place)
                values.append(pairs.by_seed[seed])
        axes.plot(values, places, linestyle="none", label=f"seed {seed}", **line_style(index))
    for place, pairs in enumerate(paired.others):
        axes.vlines(pairs.mean, place - 0.3, place + 0.3, color=BLACK, linewidth=1.6)
    names = [fill(pairs.name, _WIDTH) for pairs in paired.others]
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(paired.others) - 0.5, -0.5)  # The first combination is on top.
    axes.set(xlabel=fill(f"{paired.title}; bar: mean over seeds", 2 * _WIDTH))
    plots.dress(axes)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize="small")
    make_folder(path.parent)
    plots.save_figure(figure, path)
