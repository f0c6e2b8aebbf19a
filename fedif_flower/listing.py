"""``fedif list``: what tasks, attacks and strategies there are, a line for each."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import flwr.serverapp.strategy as flower
from rich.table import Table

import fedif_flower.strategies as ours
from fedif_flower.attacks import ATTACKS
from fedif_flower.attacks.registry import AttackConfig
from fedif_flower.errors import ConfigError
from fedif_flower.registry import Found, Registry
from fedif_flower.strategies.registry import STRATEGIES
from fedif_flower.tasks.registry import TASKS

# What the built-in names build; the first line of each one's documentation is shown.
_STRATEGIES: dict[str, Any] = {
    "fedif": ours.FedIF,
    "fedavg": ours.FedAvg,
    "fedprox": ours.FedProx,
    "influence-descent": ours.InfluenceDescent,
    "afedsv": ours.AFedSV,
    "fedsv": ours.FedSV,
    "s-fedavg": ours.SFedAvg,
    "leave-one-out": ours.LeaveOneOut,
    "shapfed": ours.ShapFed,
    "fltrust": ours.FLTrust,
    "fedadp": ours.FedAdp,
    "rfa": ours.RFA,
    "krum": ours.Krum,
    "median": ours.Median,
    "trimmed-mean": ours.TrimmedMean,
    "centred-clipping": ours.CentredClipping,
    "dnc": ours.DnC,
    "flame": ours.Flame,
    "align-ins": ours.AlignIns,
    "oracle": ours.OracleExclusion,
    "multikrum": flower.MultiKrum,
    "fedmedian": flower.FedMedian,
    "fedtrimmedavg": flower.FedTrimmedAvg,
    "bulyan": flower.Bulyan,
}


def listing() -> Iterator[Table]:
    """Yield a table for each key of the run config that names something."""
    for registry in (TASKS, ATTACKS, STRATEGIES):
        table = Table(title=f'{registry.kind}="..."', title_justify="left")
        for column in (registry.kind, "what it is", "from"):
            table.add_column(column)
        for found in registry.found():
            table.add_row(found.name, line_of(registry, found), found.source)
        yield table


def line_of(registry: Registry[Any], found: Found) -> str:
    """Return one line on what a name stands for: the first of its documentation."""
    try:
        kind = _kind(registry, found.name)
    except ConfigError as error:  # One package that cannot be imported hides no other.
        return str(error)
    if registry is TASKS and not inspect.isroutine(kind):
        return "a task of its own"
    line = (inspect.getdoc(kind) or "").split("\n\n")[0].replace("\n", " ")
    whose = "Flower's: " if kind.__module__.startswith("flwr.") else ""
    line = re.sub(r":math:`([^`]*)`", lambda formula: _plain(formula[1]), line)
    return whose + re.sub(r":\w+:`~?[\w.]*?(\w+)`|``", r"\1", line).removesuffix(".")


def _plain(formula: str) -> str:
    """Return a short formula of TeX for a terminal."""
    formula = re.sub(r"\\[lr]Vert ?", "|", formula.replace("\\leftarrow", "="))
    return re.sub(r"[\\{}]", "", formula.replace("\\,", " ").replace("\\setminus", "without"))


def _kind(registry: Registry[Any], name: str) -> Any:
    """Return what documents a name."""
    if registry.is_own(name):
        return registry.load(name)
    if registry is ATTACKS:
        return type(ATTACKS[name](AttackConfig(attack=name), 1.0))
    return _STRATEGIES[name] if registry is STRATEGIES else registry[name]
