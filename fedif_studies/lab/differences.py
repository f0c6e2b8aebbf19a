"""Differences between runs: in settings, in bounds on updates, in data and in code."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from fedif_flower.run.folder import RunFolder
from fedif_flower.run.known_settings import STAGES_KEY
from fedif_flower.run.provenance import CODE
from fedif_flower.settings import Scalar
from fedif_flower.strategies.config import configured_bounds, default_clipping
from fedif_studies.lab.bounded import RULE
from fedif_studies.lab.measurements import PATHS, Measurement, configs_of

Settings = Mapping[str, Scalar]
_CLIPPING = "update-clipping"


def varying(measurements: Sequence[Measurement], swept: Collection[str] = ()) -> list[str]:
    """Return the settings, other than the seed, in which runs differ.

    Settings of a section are compared only among the runs that have them. Settings such as paths
    (:data:`~fedif_studies.lab.measurements.PATHS`) count only if they are among the keys that were
    ``swept``: another ``data-dir``, for example, then means other data.
    """
    return varying_in(configs_of(measurements), swept)


def varying_in(configs: Sequence[Settings], swept: Collection[str]) -> list[str]:
    """Return the settings in which run configs differ, as :func:`varying` does for runs."""
    keys = dict.fromkeys(itertools.chain.from_iterable(configs))
    # Whether a run overwrote another one changes nothing about what it measured either.
    ignored = {*PATHS}.difference(swept) | {"overwrite", "seed", STAGES_KEY}
    return [key for key in keys if key not in ignored and _varies(key, configs)]


def _varies(key: str, configs: Sequence[Settings]) -> bool:
    """Return whether a setting differs; a section's key is compared among configs that have it."""
    if "." in key:
        configs = [config for config in configs if key in config]
    return len({repr(config.get(key)) for config in configs}) > 1


def bounds_in_words(settings: Mapping[str, Any]) -> str:
    """Return the bounds that a run had on its updates, in words."""
    if STAGES_KEY in settings:  # A run of a user's own app recorded its stages.
        return str(settings[STAGES_KEY])
    strategy = str(settings["strategy"])
    stages = list(map(repr, configured_bounds(strategy, _clipping(settings))))
    if strategy == RULE and settings["rule.bounds"] != "none":
        stages.insert(0, f"rule.bounds = {settings['rule.bounds']}")
    return " + ".join(stages) or "none"


def bounds_and_whose(settings: Mapping[str, Any]) -> str:
    """Return a run's bounds in words, with "by default" if they are its strategy's defaults."""
    words = bounds_in_words(settings)
    strategy = str(settings.get("strategy", ""))
    if STAGES_KEY in settings or (strategy == RULE and settings["rule.bounds"] != "none"):
        return words
    if _clipping(settings) == default_clipping(strategy):
        words += ", by default"
    return words


def _clipping(settings: Mapping[str, Any]) -> float:
    return float(settings.get(_CLIPPING, 0.0))


def have_other_bounds(measurements: Iterable[Measurement], axes: Collection[str]) -> bool:
    """Tell whether runs differ in their bounds in a way that the axes' columns do not show."""
    first_bounds: dict[float, str] = {}  # The bounds of the first run with each clipping.
    for config in configs_of(measurements):
        # Where clipping is an axis, its column says already that these bounds differ.
        clipping = _clipping(config) if _CLIPPING in axes else 0.0
        bounds = bounds_in_words(config)
        if first_bounds.setdefault(clipping, bounds) != bounds:
            return True
    return False


def other_origins(measurements: Sequence[Measurement]) -> list[str]:
    """Return remarks if runs had different data or code, to which differences may be due as well.

    Runs without a record of their data or code are not compared. A task may draw its data from the
    seed, so data are compared among runs of the same seed.
    """
    data_by_seed: dict[object, set[str]] = defaultdict(set)
    versions = set()
    for measurement in measurements:
        origin = _origin_of(measurement)
        if "data_fingerprint" in origin:
            data_by_seed[measurement.config.get("seed")].add(origin["data_fingerprint"])
        if CODE in origin:
            versions.add(origin[CODE])
    remarks = []
    most = max(map(len, data_by_seed.values()), default=0)
    if most > 1:
        remarks.append(f"Not all runs of a seed had the same data: {most} different sets, by hash.")
    if len(versions) > 1:
        remarks.append(f"Not all runs were made by the same code: {len(versions)} versions of it.")
    return remarks


def _origin_of(measurement: Measurement) -> dict[str, Any]:
    """Return a run's record of its data and code; empty if it has none."""
    if measurement.run_dir is None:
        return {}
    return RunFolder(measurement.run_dir).provenance.read_if_there()
