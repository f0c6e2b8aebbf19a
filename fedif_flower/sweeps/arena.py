"""The arena: every strategy under every attack, at several shares of malicious clients."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import MappingProxyType

from fedif_flower.run.rows import read_rows
from fedif_flower.settings import Scalar
from fedif_flower.sweeps.cells import SUMMARY, Cell, find_result, make_cell

CLEAN = "none"

# Settings by name, chosen before anything was measured and the same under every attack.
STRATEGIES: Mapping[str, Mapping[str, Scalar]] = MappingProxyType(
    {
        "FedAvg": {"strategy": "fedavg"},
        "FedIF": {"strategy": "fedif"},
        "influence descent": {"strategy": "influence-descent"},
        "FLTrust": {"strategy": "fltrust"},
        "Krum": {"strategy": "krum"},
        "median": {"strategy": "median"},
        "NNM + RFA": {"strategy": "rfa", "neighbour-mixing": True},
        "FLAME": {"strategy": "flame"},
        "AlignIns": {"strategy": "align-ins"},
    }
)
ATTACKS: Mapping[str, Mapping[str, Scalar]] = MappingProxyType(
    {
        "label noise": {"attack": "label-noise"},
        "sign flip": {"attack": "sign-flip"},
        "scaling x10": {"attack": "scaling"},
        "ALIE": {"attack": "alie"},
        "Min-Max": {"attack": "min-max"},
        "Fang": {"attack": "fang"},
        "pixel trigger": {"attack": "pixel-trigger"},
    }
)
SHARES = (0.2, 0.4)
# The largest share that is tried: what a robust rule is told to expect, whatever the true one is.
BASE: Mapping[str, Scalar] = MappingProxyType(
    {
        "dataset": "digits",
        "num-clients": 50,
        "fraction-train": 0.2,
        "num-server-rounds": 40,
        "assumed-malicious-fraction": max(SHARES),
        "checkpoint-every": 0,
        "device": "cpu",
    }
)


@dataclass(frozen=True, order=True)
class Bout:
    """One strategy under one attack by a share of the clients; without attack the share is 0."""

    strategy: str
    attack: str
    share: float


@dataclass(frozen=True)
class Figures:
    """What a bout led to, mean over the seeds; ``None`` where a figure is not defined.

    Attributes
    ----------
    accuracy : float
        Test accuracy, mean of the last ten rounds, in [0, 1].
    attack_success : float, optional
        Share of triggered test images that get the target class, after the last round.
    malicious_weight : float, optional
        Share of all weight that malicious clients got.
    detection_auc : float, optional
        How well low mean weights tell malicious clients from honest ones, in [0, 1].
    aggregation_seconds : float
        Per round.
    """

    accuracy: float
    attack_success: float | None
    malicious_weight: float | None
    detection_auc: float | None
    aggregation_seconds: float


def bouts(
    strategies: Iterable[str] = STRATEGIES,
    attacks: Iterable[str] = ATTACKS,
    shares: Sequence[float] = SHARES,
) -> list[Bout]:
    """Return every bout: those without an attack first, then attack by attack."""
    named = list(strategies)
    fought = [Bout(s, a, share) for a, share, s in product(attacks, shares, named)]
    return [Bout(strategy, CLEAN, 0.0) for strategy in named] + fought


def arena_cells(
    wanted: Sequence[Bout], seeds: int, defaults: Mapping[str, Scalar], output_dir: Path
) -> dict[tuple[Bout, int], Cell]:
    """Return the cell of each bout and seed, seeds varying slowest.

    Parameters
    ----------
    wanted : sequence of Bout
        As :func:`bouts` returns them.
    seeds : int
        >= 1: the seeds 0, 1 ...
    defaults : Mapping[str, Scalar]
        A complete run config; what the arena sets itself is not read from it.
    output_dir : Path
        Results go to ``<output>/arena/``.
    """
    cells = {}
    for seed, bout in product(range(seeds), wanted):
        attack = ATTACKS[bout.attack] if bout.attack != CLEAN else {"attack": "none"}
        settings = {
            **defaults,
            **BASE,
            **STRATEGIES[bout.strategy],
            **attack,
            "malicious-fraction": bout.share,
            "seed": seed,
        }
        name = f"{bout.strategy}_{bout.attack}_{bout.share:g}_seed{seed}".replace(" ", "-")
        cells[bout, seed] = make_cell("arena", name, settings, output_dir)
    return cells


def measured(cells: Mapping[tuple[Bout, int], Cell]) -> dict[Bout, Figures]:
    """Return what the complete bouts led to; a bout counts once all of its seeds are there."""
    found: dict[Bout, list[Figures | None]] = {}
    for (bout, _), cell in cells.items():
        run_dir = find_result(cell)
        found.setdefault(bout, []).append(None if run_dir is None else read_figures(run_dir))
    complete = {bout: [f for f in seeds if f is not None] for bout, seeds in found.items()}
    return {bout: _mean(own) for bout, own in complete.items() if len(own) == len(found[bout])}


def read_figures(run_dir: Path) -> Figures:
    """Return one run's figures."""
    summary = json.loads((run_dir / SUMMARY).read_text())
    return Figures(
        accuracy=summary["test_accuracy_last_ten"],
        attack_success=summary["attack_success"],
        malicious_weight=summary["malicious_weight_share"],
        detection_auc=weight_auc(read_rows(run_dir / "clients.csv")),
        aggregation_seconds=summary["aggregation_seconds_per_round"],
    )


def weight_auc(rows: Iterable[Mapping[str, str]]) -> float | None:
    """Return how well low mean weights tell malicious clients from honest ones, in [0, 1].

    Parameters
    ----------
    rows : iterable of mapping
        Lines of ``clients.csv``. ``None`` where there are no weights, or only one kind of client.
    """
    weights: dict[str, list[float]] = {}
    malicious: dict[str, bool] = {}
    for row in rows:
        if row["weight"] and math.isfinite(float(row["weight"])):
            weights.setdefault(row["client_id"], []).append(float(row["weight"]))
            malicious[row["client_id"]] = row["malicious"] == "1"
    if len(set(malicious.values())) < 2:
        return None
    # Imported here: it takes a second, of every client and command line.
    from sklearn.metrics import roc_auc_score

    means = [-sum(own) / len(own) for own in weights.values()]
    return float(roc_auc_score([malicious[client] for client in weights], means))


def _mean(seeds: Sequence[Figures]) -> Figures:
    def mean(name: str) -> float | None:
        values = [getattr(figures, name) for figures in seeds]
        return None if None in values else sum(values) / len(values)

    accuracy, seconds = mean("accuracy"), mean("aggregation_seconds")
    return Figures(
        accuracy=accuracy or 0.0,
        attack_success=mean("attack_success"),
        malicious_weight=mean("malicious_weight"),
        detection_auc=mean("detection_auc"),
        aggregation_seconds=seconds or 0.0,
    )
