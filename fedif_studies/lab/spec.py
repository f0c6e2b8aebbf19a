"""Anyone's own grid: a TOML file of settings, where every list is an axis."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

from fedif_flower.errors import ConfigError, require
from fedif_flower.foreign import read_toml
from fedif_flower.run.config import RunConfig
from fedif_flower.sections import section_names
from fedif_flower.settings import Scalar
from fedif_studies.lab.cells import Cell, make_cell

_OF_CELLS = {
    **dict.fromkeys(("output-dir", "run-name", "resume"), "each cell has its own"),
    "overwrite": "--again measures cells again that are complete",
}


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
    name, seeds = spec.pop("name", path.stem), spec.pop("seeds", None)
    is_name = isinstance(name, str) and re.fullmatch(r"[\w-][\w.-]*", name)
    require(bool(is_name), "name", name, "letters, digits, '-', '_', '.'")
    if seeds is not None:
        is_count = type(seeds) is int and seeds > 0 and "seed" not in spec
        require(is_count, "seeds", seeds, "an integer >= 1, without seed beside it")
        spec["seed"] = list(range(seeds))
    if not spec:
        raise ConfigError(f"sweep {str(path)!r} is empty; allowed: keys of a run config, and lists")
    spec, grids = _parts(spec)
    if taken := sorted(_OF_CELLS.keys() & set(spec).union(*grids)):
        raise ConfigError(f"{taken[0]} in {str(path)!r}: {_OF_CELLS[taken[0]]}")
    axes = {key: _axis(key, value) for key, value in spec.items() if isinstance(value, list)}
    # Whole grids of one seed after the other: what is complete can be compared at any time.
    all_seeds = axes.pop("seed", [spec.get("seed", defaults["seed"])])
    fixed = {**defaults, **{key: value for key, value in spec.items() if key not in axes}}
    cells: dict[tuple[tuple[str, Scalar], ...], Cell] = {}
    used: set[str] = set()
    for seed, grid in product(all_seeds, grids):
        own = {k: _axis(k, v if isinstance(v, list) else [v]) for k, v in grid.items()}
        points = {**axes, **own}
        for values in product(*points.values()):
            point = {"seed": seed, **dict(zip(points, values, strict=True))}
            place, cell = tuple(point.items()), _cell_name(point)
            if place in cells:
                raise ConfigError(f"{str(path)!r} names the cell {cell!r} twice")
            settings = {**fixed, **point}
            # What is fixed for one strategy or attack is said once for all cells.
            others = {key for key in fixed.keys() - point.keys() if not chosen(key, settings)}
            used |= spec.keys() - others
            kept = {key: value for key, value in settings.items() if key not in others}
            cells[place] = make_cell(name, cell, kept, output_dir)
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
    if "." not in key:
        return True
    prefix = key.partition(".")[0]
    return any(
        prefix in section_names(registry, str(settings[registry.key]))
        for registry in RunConfig.registries.values()
    )


def swept_keys(path: Path) -> set[str]:
    """Return the keys that a sweep varies: its axes, and those of its tables."""
    spec, grids = _parts(read_toml(path))
    return {key for key, value in spec.items() if isinstance(value, list)}.union(*grids)


def _parts(spec: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return what stands above the tables of cells, and these; without any, one that is empty."""
    grids = spec.pop("cells", [{}])
    are_tables = isinstance(grids, list) and all(isinstance(grid, dict) for grid in grids)
    if not are_tables or any(grid.keys() & {"seed", "seeds"} for grid in grids):
        raise ConfigError("cells: allowed: tables [[cells]] of run-config keys; seeds above them")
    return flatten(spec), [flatten(grid) for grid in grids]


def _axis(key: str, values: list[Any]) -> list[Scalar]:
    are_values = bool(values) and all(isinstance(value, Scalar) for value in values)
    require(are_values, key, values, "a list of one or more values")
    return values


def _cell_name(point: Mapping[str, Scalar]) -> str:
    parts = [f"{key}-{value}" for key, value in point.items() if key != "seed"]
    parts.append(f"seed{point['seed']}")
    # A value may be anything, such as a path; what is cut off is in the hash behind it.
    return "_".join(re.sub(r"[^\w.-]", "-", part).strip(".") for part in parts)[:120]
