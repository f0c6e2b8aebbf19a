"""Anyone's own grid: a TOML file of settings, where every list is an axis."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

from fedif_flower.errors import ConfigError
from fedif_flower.foreign import read_toml
from fedif_flower.run.config import RunConfig
from fedif_flower.sections import section_name
from fedif_flower.settings import Scalar, unknown_key
from fedif_studies.lab.cells import Cell, make_cell

_OWN_KEYS = ("name", "seeds")


def read_sweep(path: Path, defaults: Mapping[str, Scalar], output_dir: Path) -> list[Cell]:
    """Return the cells of a sweep: the product over its axes, seeds varying slowest.

    Parameters
    ----------
    path : Path
        A TOML file of run-config keys. A list of values is an axis; ``seeds = N`` stands for
        ``seed = [0, ..., N - 1]``; ``name`` names the sweep, else the file does. Each table
        ``[[cells]]`` is a grid of its own keys and those above it; without any, there is one grid.
    defaults : Mapping[str, Scalar]
        A complete run config, for every key that the file leaves out.
    output_dir : Path
        Results go to ``<output>/<name>/``.

    Raises
    ------
    ConfigError
        If the file cannot be read, or a key, an axis or a value is not allowed.
    """
    spec = read_toml(path)
    name = spec.pop("name", path.stem)
    if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+", name) or name.startswith("."):
        raise ConfigError(f"name = {name!r}; allowed: letters, digits, '-', '_', '.'")
    if not spec:
        raise ConfigError(f"sweep {str(path)!r} is empty; allowed: keys of a run config, and lists")
    if "seeds" in spec:
        spec["seed"] = _seeds(spec)
    grids = [flatten(grid) for grid in _grids(spec)]
    spec = flatten(spec)
    # Those of sections are checked where it is known what they belong to.
    plain = {key for key in set(spec).union(*grids) if "." not in key}
    if unknown := sorted(plain - set(defaults)):
        raise ConfigError(f"{str(path)!r}: {unknown_key(unknown[0], [*_OWN_KEYS, *defaults])}")
    axes = {key: _axis(key, value) for key, value in spec.items() if isinstance(value, list)}
    # Whole grids of one seed after the other: what is complete can be compared at any time.
    seeds = axes.pop("seed", [spec.get("seed", defaults["seed"])])
    fixed = {**defaults, **{key: value for key, value in spec.items() if key not in axes}}
    cells: dict[str, Cell] = {}
    used: set[str] = set()
    for seed, grid in product(seeds, grids):
        own = {key: value if isinstance(value, list) else [value] for key, value in grid.items()}
        points = {**axes, **{key: _axis(key, values) for key, values in own.items()}}
        for values in product(*points.values()):
            point = {"seed": seed, **dict(zip(points, values, strict=True))}
            cell = _cell_name(point)
            if cell in cells:
                raise ConfigError(f"{str(path)!r} names the cell {cell!r} twice")
            settings = {**fixed, **point}
            # What is fixed for one strategy or attack is said once for all cells.
            others = {key for key in fixed.keys() - point.keys() if not chosen(key, settings)}
            used |= spec.keys() - others
            kept = {key: value for key, value in settings.items() if key not in others}
            cells[cell] = make_cell(name, cell, kept, output_dir)
    if unused := [key for key in spec if key not in used]:
        raise ConfigError(f"{unused[0]} in {str(path)!r}; allowed: keys that some cell takes")
    return list(cells.values())


def flatten(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with sections' keys in full, as Flower does: ``[fedif] gamma`` is one key."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        inner = value if isinstance(value, dict) else None
        flat |= {key: value} if inner is None else {f"{key}.{k}": v for k, v in inner.items()}
    return flat


def chosen(key: str, settings: Mapping[str, Scalar]) -> bool:
    """Tell whether a key is no section's, or one of a section that these settings choose."""
    keys = (field.replace("_", "-") for field in RunConfig.registries)
    names = {section_name(str(settings[key])) for key in keys}
    return "." not in key or key.partition(".")[0] in names


def swept_keys(path: Path) -> set[str]:
    """Return the keys that a sweep varies: its axes, and those of its tables."""
    spec = read_toml(path)
    grids = [flatten(grid) for grid in spec.pop("cells", [])]
    spec = flatten(spec)
    return {key for key, value in spec.items() if isinstance(value, list)}.union(*grids)


def _grids(spec: dict[str, Any]) -> list[dict[str, Any]]:
    grids = spec.pop("cells", [{}])
    if not isinstance(grids, list) or not all(isinstance(grid, dict) for grid in grids):
        raise ConfigError("cells: allowed: tables [[cells]] of run-config keys")
    if any("seed" in grid or "seeds" in grid for grid in grids):
        raise ConfigError("seed or seeds in [[cells]]; allowed: above them, for all")
    return grids


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
