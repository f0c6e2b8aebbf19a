"""The bouts of the arena: each is a run of a rule under an attack by a share of the clients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from types import MappingProxyType

from fedif_flower.attacks import ATTACKS as REGISTERED_ATTACKS
from fedif_flower.errors import ConfigError
from fedif_flower.registry import Registry
from fedif_flower.run.outside_code import modules_behind
from fedif_flower.run.provenance import modules_hash
from fedif_flower.settings import Scalar
from fedif_flower.strategies.registry import STRATEGIES
from fedif_flower.tasks.data.datasets import load_dataset
from fedif_studies.arena.figures import read_figures
from fedif_studies.lab.bounded import RULE, bounds_of, can_be_attributed
from fedif_studies.lab.cells import find_data
from fedif_studies.lab.filling import fill, missing
from fedif_studies.lab.run import federated
from fedif_studies.names import NAMES
from fedif_studies.rows import Row

CLEAN = "none"  # The attack of a bout without one.
DIGITS = "digits"

# The settings of each rule. They were chosen before anything was measured, and are the same under
# every attack.
RULES: Mapping[str, Mapping[str, Scalar]] = MappingProxyType(
    {
        "FedAvg": {"rule.weights": "fedavg"},
        "FedIF": {"rule.weights": "fedif"},
        "influence descent": {"rule.weights": "influence-descent"},
        "AutoBANT": {"rule.weights": "autobant"},
        "FLTrust": {"rule.weights": "fltrust"},
        "Krum": {"rule.weights": "krum"},
        "bucketing + Krum": {"rule.weights": "krum", "bucketing": 2},
        "median": {"rule.weights": "median"},
        "NNM + RFA": {"rule.weights": "rfa", "neighbour-mixing": True},
        "FLAME": {"rule.weights": "flame"},
        "AlignIns": {"rule.weights": "align-ins"},
        "FoolsGold": {"rule.weights": "fools-gold"},
        "SignGuard": {"rule.weights": "sign-guard"},
        "DeepSight": {"rule.weights": "deep-sight"},
        "screen + FedAvg": {"rule.weights": "fedavg", "screen": NAMES["trigger-inversion"]},
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
        # Its default patience, 50 rounds, is longer than a bout: it would never judge its effect.
        "PoisonedFL": {"attack": "poisoned-fl", "poisoned-fl.patience": 10},
        "mimic": {"attack": "mimic"},
        "Sybils": {"attack": "sybils"},
        "trust then harm": {"attack": "fedif_studies.attacks.trust_then_harm:TrustThenHarm"},
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
# Chosen before anything was measured: every attack is made at the middle share, and those of
# AT_EVERY_SHARE at the other shares, too.
MIDDLE = 0.2
AT_EVERY_SHARE = (
    "label noise",
    "sign flip",
    "ALIE",
    "Min-Max",
    "PoisonedFL",
    "trust then harm",
    "pixel trigger",
    "Neurotoxin",
    "descending backdoor",
)
# Ten clients take part in a round, on digits and on images alike.
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
    }
)


def setup(dataset: str = DIGITS, data_dir: str = "") -> dict[str, Scalar]:
    """Return the settings that all bouts share: 50 clients on digits, else 100 with LeNet-5.

    Rules that assume a share of malicious clients assume the largest of ``SHARES``.
    """
    sizes = _DIGITS if dataset == DIGITS else _IMAGES
    data_settings, _ = find_data(dataset, data_dir)
    return {"assumed-malicious-fraction": max(SHARES), **sizes, **data_settings}


def name_of_data(dataset: str, data_dir: str = "") -> str:
    """Return the name of a data set in rows and tables.

    The name of a folder of images has a hash of the images, as two folders are two data sets.
    """
    _, name = find_data(dataset, data_dir)
    if dataset != "image-folder":
        return name
    images = load_dataset(dataset, data_dir)
    return f"{name} {images.fingerprint[:8]}"


def bouts(
    data: str, seeds: Iterable[int], rules: str = "", attacks: str = "", shares: str = ""
) -> list[Row]:
    """Return the bouts of rules under attacks: all of the first seed, then those of the next.

    If neither attacks nor shares are given, every attack is made at the share ``MIDDLE``, and the
    attacks of ``AT_EVERY_SHARE`` at the other shares, too. Every rule is also played without an
    attack. If a rule or an attack is a user's own, the column ``code`` has a hash of its modules,
    so that another edition of the code is another bout.

    Parameters
    ----------
    data : str
        The name of the data set in rows.
    seeds : iterable of int
        The seeds of each bout.
    rules, attacks : str
        Names of the arena or of a run config, divided by commas; empty for all of the arena.
    shares : str
        Shares of malicious clients, divided by commas; empty for ``SHARES``.

    Raises
    ------
    ConfigError
        If a name is not known, or a share is not a number above 0 and below 1.
    """
    rule_names = _names(rules, RULES, STRATEGIES, "strategies")
    attack_names = _names(attacks, ATTACKS, REGISTERED_ATTACKS, "attacks")
    points = [(CLEAN, 0.0)]
    for attack, share in product(attack_names, _shares(shares) if shares else SHARES):
        is_asked_for = bool(attacks or shares)
        if is_asked_for or attack in AT_EVERY_SHARE or share == MIDDLE:
            points.append((attack, share))
    own_rules = _own_objects(rule_names, RULES, STRATEGIES)
    own_attacks = _own_objects(attack_names, ATTACKS, REGISTERED_ATTACKS)
    rows: list[Row] = []
    for seed, (attack, share), rule in product(seeds, points, rule_names):
        bout = {"data": data, "seed": seed, "attack": attack, "share": share, "rule": rule}
        if own_rules or own_attacks:
            bout["code"] = _code_of(own_rules.get(rule), own_attacks.get(attack))
        rows += [{**bout, "bounds": bounds} for bounds in bounds_of(_weights(rule))]
    return rows


def _own_objects(
    names: Iterable[str], of_arena: Iterable[str], registered: Registry
) -> dict[str, object]:
    """Return the objects of those names that are a user's own, by name."""
    others = set(names) - set(of_arena)
    return {name: registered.load(name) for name in others if registered.is_own(name)}


def _code_of(rule: object, attack: object) -> str:
    """Return a hash of the modules behind a user's own rule and attack; empty without these.

    ``None`` stands for a rule or an attack of the library or the arena.
    """
    own_objects = [own_object for own_object in (rule, attack) if own_object is not None]
    if not own_objects:
        return ""
    return modules_hash(modules_behind(own_objects))[:12]


def play(
    path: Path,
    all_bouts: Sequence[Row],
    common: Mapping[str, Scalar],
    jobs: int,
    *,
    again: bool = False,
) -> bool:
    """Play the bouts that have no row in the file, and return whether all have one now.

    See :func:`~fedif_studies.lab.filling.fill` for ``jobs`` and ``again``. ``common`` are the
    settings that all bouts share.

    Raises
    ------
    ConfigError, DataError
        If there is no such data set, or it cannot be read. This is checked once, before each bout
        would fail by itself.
    """
    if again or missing(path, all_bouts):
        load_dataset(str(common["dataset"]), str(common["data-dir"]))
    return fill(path, all_bouts, partial(measure, dict(common)), jobs=jobs, again=again)


def measure(common: Mapping[str, Scalar], bout: Row) -> list[Row]:
    """Play a bout and return its figures.

    If the rule gives updates coefficients, contributions are attributed by Simpson's rule.
    """
    rule = bout["rule"]
    attack = bout["attack"]
    attributed = can_be_attributed(_weights(rule))
    settings: dict[str, Scalar] = {
        **common,
        "strategy": RULE,
        "update-clipping": 0.0,
        "rule.bounds": bout["bounds"],
        "attribution": "simpson" if attributed else "off",
        # A name that is not the arena's is a name in a run config.
        **RULES.get(rule, {"rule.weights": rule}),
        **ATTACKS.get(attack, {"attack": attack}),
        "malicious-fraction": bout["share"],
        "seed": bout["seed"],
    }
    with federated(settings) as run:
        return [read_figures(run)]


def _weights(rule: str) -> str:
    """Return a rule's name in a run config."""
    if rule not in RULES:
        return rule
    return str(RULES[rule]["rule.weights"])


def _names(text: str, of_arena: Iterable[str], registered: Registry, option: str) -> list[str]:
    """Return the names in an option's text, or all names of the arena if it is empty.

    Raises
    ------
    ConfigError
        If a name is neither the arena's nor one that a run config may have.
    """
    arena_names = list(of_arena)
    names = [name.strip() for name in text.split(",") if name.strip()] or arena_names
    for name in names:
        if name == CLEAN and option == "attacks":
            raise ConfigError(
                f"attacks = {name!r}; allowed: attacks; a bout without one is always played"
            )
        is_of_arena = name in arena_names
        if name == CLEAN or not (is_of_arena or name in registered):
            also = f"and the names of `fedif list`, {registered.also} among them"
            raise ConfigError(f"{option} = {name!r}; allowed: {', '.join(arena_names)}, {also}")
        if not is_of_arena and registered.is_own(name):
            registered.load(name)  # If it cannot be imported, raise an error before anything runs.
    return names


def _shares(text: str) -> list[float]:
    try:
        shares = [float(part) for part in text.split(",")]
    except ValueError:
        shares = []
    if not shares or not all(0 < share < 1 for share in shares):
        raise ConfigError(f"shares = {text!r}; allowed: numbers above 0 and below 1, as in 0.2,0.4")
    return shares
