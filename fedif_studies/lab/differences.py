"""In what runs differ: in settings, in the bounds on their updates, in data and code."""

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
    """Return the settings, the seed aside, in which those runs differ that have them.

    Where a run wrote and read counts only if it is one of the keys that were ``swept``: another
    folder has other data then.
    """
    return varying_in(configs_of(measurements), swept)


def varying_in(configs: Sequence[Settings], swept: Collection[str]) -> list[str]:
    """Return the settings in which those configs differ that have them; see :func:`varying`."""
    keys = dict.fromkeys(itertools.chain.from_iterable(configs))
    # That a run took the place of another is no part of what it measured either.
    ignored = {*PATHS}.difference(swept) | {"overwrite", "seed", STAGES_KEY}
    return [key for key in keys if key not in ignored and _varies(key, configs)]


def _varies(key: str, configs: Sequence[Settings]) -> bool:
    """Return whether a setting differs; a section's key counts where the section was chosen."""
    if "." in key:
        configs = [config for config in configs if key in config]
    return len({repr(config.get(key)) for config in configs}) > 1


def bounds_in_words(settings: Mapping[str, Any]) -> str:
    """Return the bounds that a run had on its updates."""
    if STAGES_KEY in settings:  # Of an app of its own.
        return str(settings[STAGES_KEY])
    strategy = str(settings["strategy"])
    stages = list(map(repr, configured_bounds(strategy, _clipping(settings))))
    if strategy == RULE and settings["rule.bounds"] != "none":
        stages.insert(0, f"rule.bounds = {settings['rule.bounds']}")
    return " + ".join(stages) or "none"


def bounds_and_whose(settings: Mapping[str, Any]) -> str:
    """Return the bounds that a run had, and whether they came with its strategy."""
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
    """Tell whether runs differ in their bounds by more than the axes say."""
    first_bounds: dict[float, str] = {}  # Of the first run with that clipping.
    for config in configs_of(measurements):
        # Where clipping is an axis, its column says already that these bounds differ.
        clipping = _clipping(config) if _CLIPPING in axes else 0.0
        bounds = bounds_in_words(config)
        if first_bounds.setdefault(clipping, bounds) != bounds:
            return True
    return False


def other_origins(measurements: Sequence[Measurement]) -> list[str]:
    """Return what else than settings may be behind differences of runs: their data and code.

    What a run left no record of is not compared. A task may draw its data from the seed, so data
    are compared among runs of one seed.
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
        remarks.append(f"Not all runs had the same data: there are {most} different sets of them.")
    if len(versions) > 1:
        remarks.append(f"Not all runs were made by the same code: {len(versions)} versions of it.")
    return remarks


def _origin_of(measurement: Measurement) -> dict[str, Any]:
    """Return where a run's result comes from, as far as it wrote that down."""
    if measurement.run_dir is None:
        return {}
    return RunFolder(measurement.run_dir).provenance.read_if_there()
