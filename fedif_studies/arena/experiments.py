"""The arena: every strategy under every attack, at several shares of malicious clients."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import MappingProxyType

from fedif_flower.attacks import ATTACKS as REGISTERED_ATTACKS
from fedif_flower.errors import ConfigError
from fedif_flower.registry import Registry
from fedif_flower.settings import Scalar
from fedif_flower.strategies.registry import STRATEGIES as REGISTERED_STRATEGIES
from fedif_flower.strategies.registry import WITHOUT_COEFFICIENTS
from fedif_studies.lab.cells import Cell, make_cell
from fedif_studies.lab.data import find_data

CLEAN = "none"
DIGITS = "digits"

# Settings by name, chosen before anything was measured and the same under every attack.
STRATEGIES: Mapping[str, Mapping[str, Scalar]] = MappingProxyType(
    {
        "FedAvg": {"strategy": "fedavg"},
        "FedIF": {"strategy": "fedif"},
        "influence descent": {"strategy": "influence-descent"},
        "AutoBANT": {"strategy": "autobant"},
        "FLTrust": {"strategy": "fltrust"},
        "Krum": {"strategy": "krum"},
        "bucketing + Krum": {"strategy": "krum", "bucketing": 2},
        "median": {"strategy": "median"},
        "NNM + RFA": {"strategy": "rfa", "neighbour-mixing": True},
        "FLAME": {"strategy": "flame"},
        "AlignIns": {"strategy": "align-ins"},
        "FoolsGold": {"strategy": "fools-gold"},
        "SignGuard": {"strategy": "sign-guard"},
        "DeepSight": {"strategy": "deep-sight"},
        "screen + FedAvg": {"strategy": "fedavg", "screen": "trigger-inversion"},
    }
)
ATTACKS: Mapping[str, Mapping[str, Scalar]] = MappingProxyType(
    {
        "label noise": {"attack": "label-noise"},
        "on and off": {"attack": "label-noise", "attack-period": 5},
        "sign flip": {"attack": "sign-flip"},
        "scaling x10": {"attack": "scaling"},
        "ALIE": {"attack": "alie"},
        "IPM": {"attack": "ipm"},
        "Min-Max": {"attack": "min-max"},
        "Min-Sum": {"attack": "min-sum"},
        "Fang": {"attack": "fang"},
        "PoisonedFL": {"attack": "poisoned-fl", "poisoned-fl.patience": 10},
        "mimic": {"attack": "mimic"},
        "Sybils": {"attack": "sybils"},
        "trust then harm": {"attack": "trust-then-harm"},
        "returns the model": {"attack": "free-rider"},
        "pixel trigger": {"attack": "pixel-trigger"},
        "distributed trigger": {"attack": "distributed-trigger"},
        "model replacement": {"attack": "model-replacement"},
        "Neurotoxin": {"attack": "neurotoxin"},
        "edge case": {"attack": "edge-case"},
        "descending backdoor": {"attack": "descending-backdoor"},
    }
)
SHARES = (0.1, 0.2, 0.4)
# Chosen in advance: all attacks at one share, and these at the others too.
MIDDLE = 0.2
AT_EVERY_SHARE = (
    *("label noise", "sign flip", "ALIE", "Min-Max", "PoisonedFL", "trust then harm"),
    *("pixel trigger", "Neurotoxin", "descending backdoor"),
)
# What a robust rule is told to expect, whatever the true share is: the largest of SHARES.
_COMMON: Mapping[str, Scalar] = MappingProxyType(
    {
        "assumed-malicious-fraction": max(SHARES),
        "checkpoint-every": 0,
        "device": "cpu",
    }
)
_DIGITS: Mapping[str, Scalar] = MappingProxyType(
    {"num-server-rounds": 40, "num-clients": 50, "fraction-train": 0.2}
)
_IMAGES: Mapping[str, Scalar] = MappingProxyType(
    {
        "num-server-rounds": 30,
        "num-clients": 100,
        "fraction-train": 0.1,
        "model": "lenet5",
        "local-epochs": 1,
        "learning-rate": 0.01,
        "eval-every": 5,
    }
)


@dataclass(frozen=True, order=True)
class Experiment:
    """One strategy under one attack by a share of the clients; without attack the share is 0."""

    strategy: str
    attack: str
    share: float


@dataclass(frozen=True)
class Setup:
    """What the experiments have in common.

    Attributes
    ----------
    title : str
        What the data set is called on the page.
    settings : mapping
        Run-config keys that no experiment changes.
    """

    title: str
    settings: Mapping[str, Scalar]

    @property
    def clients_per_round(self) -> int:
        """How many clients train in a round."""
        return round(float(self.settings["fraction-train"]) * int(self.settings["num-clients"]))


def find_setup(dataset: str = DIGITS, data_dir: str = "") -> Setup:
    """Return what is in common: 50 clients on digits, on any other data set 100 with LeNet-5.

    Parameters
    ----------
    dataset : str
        As in a run config.
    data_dir : str
        Where its files are.
    """
    own = _DIGITS if dataset == DIGITS else _IMAGES
    found, title = find_data(dataset, data_dir)
    return Setup(title, {**_COMMON, **own, **found})


def experiments(
    strategies: Iterable[str] = STRATEGIES,
    attacks: Iterable[str] = ATTACKS,
    shares: Sequence[float] = SHARES,
) -> list[Experiment]:
    """Return every experiment: those without an attack first, then attack by attack."""
    named = list(strategies)
    attacked = [Experiment(s, a, share) for a, share, s in product(attacks, shares, named)]
    return [Experiment(strategy, CLEAN, 0.0) for strategy in named] + attacked


def choose_experiments(
    strategies: str = "", attacks: str = "", shares: str = ""
) -> list[Experiment]:
    """Return the experiments of lists divided by commas; an empty list stands for all names.

    Where neither attacks nor shares are given, some are left out: every attack is made at the
    middle share, and at the others those of ``AT_EVERY_SHARE``.

    Raises
    ------
    ConfigError
        If a name is not known, or a share is no number above 0 and below 1.
    """
    found = experiments(
        _named(strategies, STRATEGIES, REGISTERED_STRATEGIES, "strategies"),
        _named(attacks, ATTACKS, REGISTERED_ATTACKS, "attacks"),
        _shares(shares) if shares else SHARES,
    )
    if attacks or shares:
        return found
    always = (CLEAN, *AT_EVERY_SHARE)
    return [one for one in found if one.share == MIDDLE or one.attack in always]


def _named(names: str, known: Iterable[str], registered: Registry, what: str) -> list[str]:
    allowed = list(known)
    chosen = [name.strip() for name in names.split(",") if name.strip()] or allowed
    for name in chosen:
        if name == CLEAN or (name not in allowed and name not in registered):
            also = f"and the names of `fedif list`, {registered.also} among them"
            raise ConfigError(f"{what} = {name!r}; allowed: {', '.join(allowed)}, {also}")
        if name not in allowed and registered.is_own(name):
            registered.load(name)  # One that cannot be imported is said before anything runs.
    return chosen


def _shares(text: str) -> list[float]:
    try:
        shares = [float(part) for part in text.split(",")]
    except ValueError:
        shares = []
    if not shares or not all(0 < share < 1 for share in shares):
        raise ConfigError(f"shares = {text!r}; allowed: numbers above 0 and below 1, as in 0.2,0.4")
    return shares


def arena_cells(
    wanted: Sequence[Experiment],
    seeds: int,
    defaults: Mapping[str, Scalar],
    output_dir: Path,
    setup: Setup,
) -> dict[tuple[Experiment, int], Cell]:
    """Return the cell of each experiment and seed, seeds varying slowest.

    Contributions are attributed by Simpson's rule wherever a strategy gives coefficients.

    Parameters
    ----------
    wanted : sequence of Experiment
        As :func:`experiments` returns them.
    seeds : int
        >= 1: the seeds 0, 1 ...
    defaults : Mapping[str, Scalar]
        A complete run config; what the arena sets itself is not read from it.
    output_dir : Path
        Results go to ``<output>/arena/``.
    setup : Setup
        What they have in common.
    """
    cells = {}
    for seed, one in product(range(seeds), wanted):
        # Names that are not the page's are those of a run config.
        attack = ATTACKS.get(one.attack, {"attack": one.attack})
        strategy = STRATEGIES.get(one.strategy, {"strategy": one.strategy})
        settings = {
            **defaults,
            **setup.settings,
            "attribution": "off" if strategy["strategy"] in WITHOUT_COEFFICIENTS else "simpson",
            **strategy,
            **attack,
            "malicious-fraction": one.share,
            "seed": seed,
        }
        name = f"{one.strategy}_{one.attack}_{one.share:g}_seed{seed}"
        name = re.sub(r"[ :/]", "-", name)
        cells[one, seed] = make_cell("arena", name, settings, output_dir, setup.title)
    return cells
