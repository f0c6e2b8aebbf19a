"""``fedif list``: the names that keys of the run config may have, with a line on each."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

from fedif_flower.attacks import ATTACKS
from fedif_flower.errors import ConfigError
from fedif_flower.local_methods import LOCAL_METHODS
from fedif_flower.registry import Registry
from fedif_flower.strategies.config import SCREENS, SERVER_OPTIMIZERS
from fedif_flower.strategies.registry import STRATEGIES
from fedif_flower.tables import ResultTable
from fedif_flower.tasks.config import TASKS


def listing() -> Iterator[ResultTable]:
    """Yield a table of names for each key of the run config that takes a name."""
    for registry in (TASKS, ATTACKS, LOCAL_METHODS, SCREENS, SERVER_OPTIMIZERS, STRATEGIES):
        heading = [registry.key, "what it is", "from"]
        lines = []
        for name, source in registry.sources().items():
            lines.append([name, line_of(registry, name), source])
        yield ResultTable(f'{registry.key}="..."', heading, lines, num_labels=3)


def line_of(registry: Registry, name: str) -> str:
    """Return one line on what a name stands for: the first paragraph of its docstring."""
    try:
        registry.require_one(name)
        kind = registry[name]
    except ConfigError as error:  # The error is shown as the line, so that others are listed too.
        return str(error)
    documented = inspect.getdoc(kind) or f"a {registry.kind} of its own"
    first_paragraph = documented.split("\n\n")[0]
    line = " ".join(first_paragraph.split())
    without_markup = re.sub(r":\w+:`~?[\w.]*?(\w+)`|``", r"\1", line).removesuffix(".")
    noun = re.sub("^Return (the )?", "", without_markup)  # The docstring of a function.
    words = noun[:1].upper() + noun[1:]
    if kind.__module__.startswith("flwr."):
        return f"Flower's: {words}"
    return words
