"""Anyone's own grid: a TOML file of settings, where every list is an axis."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

from fedif_flower.errors import ConfigError
from fedif_flower.settings import Scalar
from fedif_flower.sweeps.cells import Cell, make_cell

_OWN_KEYS = ("name", "seeds")


def read_sweep(path: Path, defaults: Mapping[str, Scalar], output_dir: Path) -> list[Cell]:
    """Return the cells of a sweep: the product over its axes, seeds varying slowest.

    Parameters
    ----------
    path : Path
        A TOML file of run-config keys. A list of values is an axis; ``seeds = N`` stands for
        ``seed = [0, ..., N - 1]``; ``name`` names the sweep, else the file does.
    defaults : Mapping[str, Scalar]
        A complete run config, for every key that the file leaves out.
    output_dir : Path
        Results go to ``<output>/<name>/``.

    Raises
    ------
    ConfigError
        If the file cannot be read, or a key, an axis or a value is not allowed.
    """
    try:
        spec: dict[str, Any] = tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"sweep {str(path)!r}: {error}") from error
    name = spec.pop("name", path.stem)
    if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+", name) or name.startswith("."):
        raise ConfigError(f"name = {name!r}; allowed: letters, digits, '-', '_', '.'")
    if "seeds" in spec:
        spec["seed"] = _seeds(spec)
    if unknown := sorted(set(spec) - set(defaults)):
        allowed = ", ".join([*_OWN_KEYS, *defaults])
        raise ConfigError(f"unknown key {unknown[0]!r} in {str(path)!r}; allowed: {allowed}")
    axes = {key: _axis(key, value) for key, value in spec.items() if isinstance(value, list)}
    # Whole grids of one seed after the other: what is complete can be compared at any time.
    axes = {"seed": axes.pop("seed", [spec.get("seed", defaults["seed"])]), **axes}
    fixed = {key: value for key, value in spec.items() if key not in axes}
    cells = []
    for values in product(*axes.values()):
        point = dict(zip(axes, values, strict=True))
        cells.append(make_cell(name, _cell_name(point), {**defaults, **fixed, **point}, output_dir))
    return cells


def _seeds(spec: dict[str, Any]) -> list[int]:
    seeds = spec.pop("seeds")
    if "seed" in spec:
        raise ConfigError("seeds and seed are both given; allowed: one of them")
    if type(seeds) is not int or seeds < 1:
        raise ConfigError(f"seeds = {seeds!r}; allowed: an integer >= 1")
    return list(range(seeds))


def _axis(key: str, values: list[Any]) -> list[Scalar]:
    if not values or any(not isinstance(value, bool | int | float | str) for value in values):
        raise ConfigError(f"{key} = {values!r}; allowed: a list of one or more values")
    if len({repr(value) for value in values}) < len(values):
        raise ConfigError(f"{key} = {values!r}; allowed: every value once")
    return values


def _cell_name(point: Mapping[str, Scalar]) -> str:
    parts = [f"{key}-{value}" for key, value in point.items() if key != "seed"]
    parts.append(f"seed{point['seed']}")
    # A value may be anything, such as a path.
    return "_".join(re.sub(r"[^\w.-]", "-", part).strip(".") for part in parts)[:120]
