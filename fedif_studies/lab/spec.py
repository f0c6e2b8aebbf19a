"""A user's own sweep: a TOML file of settings, in which every list of values is an axis."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from fedif_flower.errors import ConfigError, require
from fedif_flower.foreign import read_toml
from fedif_flower.run.config import RunConfig
from fedif_flower.run.own_sections import OWN_SECTIONS
from fedif_flower.sections import section_names
from fedif_flower.settings import Scalar
from fedif_studies.lab.cells import Cell, make_cell

# Keys that no sweep may name, and why.
_REFUSED = {
    "output-dir": "each cell has its own",
    "run-name": "each cell has its own",
    "resume": "each cell has its own",
    "overwrite": "--again measures cells again that are complete",
}
# Sections that every cell takes, such as [validation]. Any other section belongs to a strategy, an
# attack or another part that a key names, and only cells that choose the part take it.
_OF_EVERY_CELL = frozenset(kind.section_name() for kind in OWN_SECTIONS)
Point = dict[str, Scalar]
"""The settings that tell a cell from the others of its sweep: its seed, a value on every axis."""
Place = tuple[tuple[str, Scalar], ...]
"""A point in a form that can be hashed: no two cells may have the same place."""


def read_sweep(path: Path, defaults: Mapping[str, Scalar], output_dir: Path) -> list[Cell]:
    """Return the cells of a sweep: the product over its axes, seeds varying slowest.

    Parameters
    ----------
    path : Path
        A TOML file of run-config keys. A list of values is an axis; ``seeds = N`` stands for
        ``seed = [0, ..., N - 1]``; ``name`` names the sweep, which by default is called like the
        file. Each table ``[[cells]]`` is a grid: its own keys, and the keys above all tables.
        Without such tables the whole file is one grid.
    defaults : Mapping[str, Scalar]
        A complete run config. It has the values of all keys that the file leaves out.
    output_dir : Path
        Results go to ``<output_dir>/<name>/``.

    Raises
    ------
    ConfigError
        If the file cannot be read, or a key, an axis or a value is not allowed.
    """
    spec = read_toml(path)
    name = _pop_name(spec, path)
    _replace_seeds(spec)
    if not spec:
        raise ConfigError(f"sweep {str(path)!r} is empty; allowed: keys of a run config, and lists")
    shared, grids = _shared_and_grids(spec)
    for key in sorted(set(shared).union(*grids)):
        if key in _REFUSED:
            raise ConfigError(f"{key} in {str(path)!r}: {_REFUSED[key]}")
    axes: dict[str, list[Scalar]] = {}
    fixed = dict(defaults)
    for key, value in shared.items():
        if isinstance(value, list):
            axes[key] = _axis(key, value)
        else:
            fixed[key] = value
    seeds = axes.pop("seed", [fixed["seed"]])
    cells: list[Cell] = []
    places: set[Place] = set()
    used: set[str] = set()
    for point in _points(seeds, axes, grids):
        _add_place(point, places, path)
        settings = _settings_of(point, fixed)
        used |= settings.keys()
        cells.append(make_cell(name, _cell_name(point), settings, output_dir))
    for key in shared:
        if key not in used:
            raise ConfigError(f"{key} in {str(path)!r}; allowed: keys that some cell takes")
    return cells


def _add_place(point: Point, places: set[Place], path: Path) -> None:
    """Add a cell's place to ``places``; raise ConfigError if an earlier cell has the same."""
    place = tuple(point.items())
    if place in places:
        raise ConfigError(f"{str(path)!r} names the cell {_cell_name(point)!r} twice")
    places.add(place)


def _settings_of(point: Point, fixed: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return a cell's settings: its point, and those of the fixed settings that it takes.

    The file may fix a setting of one strategy or attack above all cells. A cell with another
    strategy or attack leaves it out.
    """
    settings = {**fixed, **point}
    return {
        key: value for key, value in settings.items() if key in point or is_taken(key, settings)
    }


def _pop_name(spec: dict[str, Any], path: Path) -> str:
    """Remove the sweep's name from ``spec`` and return it; by default, return the file's name."""
    name = spec.pop("name", path.stem)
    is_name = isinstance(name, str) and re.fullmatch(r"[\w-][\w.-]*", name)
    allowed = "letters, digits, '-', '_', and '.' but not first; by default, the file's name"
    require(bool(is_name), "name", name, allowed)
    return str(name)


def _replace_seeds(spec: dict[str, Any]) -> None:
    """Replace ``seeds = N`` in ``spec`` by the axis ``seed = [0, ..., N - 1]``."""
    seeds = spec.pop("seeds", None)
    if seeds is None:
        return
    is_count = type(seeds) is int and seeds > 0 and "seed" not in spec
    require(is_count, "seeds", seeds, "an integer >= 1, without seed beside it")
    spec["seed"] = list(range(seeds))


def _points(
    seeds: Sequence[Scalar],
    axes: Mapping[str, Sequence[Scalar]],
    grids: Sequence[Mapping[str, Any]],
) -> Iterator[Point]:
    """Yield all points of the first seed, then those of the next.

    A sweep that is stopped early has then measured every combination with the same seeds.
    """
    for seed, grid in product(seeds, grids):
        grid_axes = dict(axes)
        for key, value in grid.items():
            if isinstance(value, list):
                grid_axes[key] = _axis(key, value)
            else:
                grid_axes[key] = _axis(key, [value])
        for values in product(*grid_axes.values()):
            yield {"seed": seed, **dict(zip(grid_axes, values, strict=True))}


def flatten(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table in which ``[fedif] gamma`` is the key ``fedif.gamma``, as Flower writes it."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if not isinstance(value, dict):
            flat[key] = value
            continue
        for name, setting in value.items():
            flat[f"{key}.{name}"] = setting
    return flat


def is_taken(key: str, settings: Mapping[str, Scalar]) -> bool:
    """Tell whether a cell with these settings takes a key.

    It takes the keys of no section, the keys of sections that every cell has, and the keys of the
    strategy, attack or other part that the settings name.
    """
    prefix, dot, _ = key.partition(".")
    if not dot or prefix in _OF_EVERY_CELL:
        return True
    for registry in RunConfig.registries.values():
        if prefix in section_names(registry, str(settings[registry.key])):
            return True
    return False


def swept_keys(path: Path) -> set[str]:
    """Return the keys that a sweep varies: its axes, and all keys of its ``[[cells]]`` tables."""
    shared, grids = _shared_and_grids(read_toml(path))
    axes = {key for key, value in shared.items() if isinstance(value, list)}
    return axes.union(*grids)


def _shared_and_grids(spec: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the keys above the ``[[cells]]`` tables, and these tables; by default an empty one."""
    grids = spec.pop("cells", [{}])
    if not _are_tables(grids) or any("seed" in grid or "seeds" in grid for grid in grids):
        raise ConfigError("cells: allowed: tables [[cells]] of run-config keys; seeds above them")
    return flatten(spec), [flatten(grid) for grid in grids]


def _are_tables(grids: object) -> bool:
    """Tell whether the value is a list of tables, one or more."""
    if not isinstance(grids, list) or not grids:
        return False
    return all(isinstance(grid, dict) for grid in grids)


def _axis(key: str, values: list[Any]) -> list[Scalar]:
    """Return the values of an axis; raise ConfigError if one cannot be a setting's value."""
    are_values = bool(values) and all(isinstance(value, Scalar) for value in values)
    require(are_values, key, values, "a list of one or more values")
    return values


def _cell_name(point: Mapping[str, Scalar]) -> str:
    parts = [f"{key}-{value}" for key, value in point.items() if key != "seed"]
    parts.append(f"seed{point['seed']}")
    # A value may hold any character, as a path does. Names that are equal once they are cut belong
    # to different directories nevertheless: a hash of all settings follows the name.
    return "_".join(re.sub(r"[^\w.-]", "-", part).strip(".") for part in parts)[:120]
