"""Run config and node config: parsed once, checked completely, then immutable.

The defaults live in ``[tool.flwr.app.config]`` of ``pyproject.toml`` and nowhere else. The server
sends its checked configuration with every message, so a client cannot run with another one.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import Field, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, cast

from fedif_flower.attacks import ATTACKS, AttackConfig
from fedif_flower.client.training import PRECISIONS, Precision, TrainingConfig
from fedif_flower.errors import ConfigError
from fedif_flower.strategies.krum import DISTANCES
from fedif_flower.strategies.registry import STRATEGIES
from fedif_flower.tasks.data import DATASETS, NORMALIZATIONS
from fedif_flower.tasks.models import MODELS
from fedif_flower.valuation.ledger import WEIGHT_SCOPES
from fedif_flower.valuation.shapley import ESTIMATORS

Scalar = bool | int | float | str
AUTO = "auto"
_NEUTRAL = frozenset(
    (
        *("output-dir", "run-name", "data-dir", "round-timeout", "max-failed-rounds"),
        *("checkpoint-every", "resume"),
    )
)
_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?|mps")


def _key(
    *,
    minimum: float = -math.inf,
    maximum: float = math.inf,
    above: float = -math.inf,
    choices: tuple[str, ...] = (),
    auto: bool = False,
) -> Any:
    limits = {"minimum": minimum, "maximum": maximum, "above": above}
    return field(metadata={"limits": limits, "choices": choices, "auto": auto})


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Every setting of one federation; ``docs/configuration.md`` describes each key."""

    num_server_rounds: int = _key(minimum=1)
    fraction_train: float = _key(above=0, maximum=1)
    num_clients: int = _key(minimum=1)
    local_epochs: int = _key(minimum=1)
    batch_size: int = _key(minimum=1)
    learning_rate: float = _key(above=0, auto=True)
    momentum: float = _key(minimum=0, maximum=1)
    precision: str = _key(choices=PRECISIONS)
    dataset: str = _key(choices=tuple(DATASETS))
    data_dir: str
    output_dir: str
    run_name: str
    normalization: str = _key(choices=tuple(NORMALIZATIONS))
    model: str = _key(choices=(AUTO, *MODELS))
    dirichlet_alpha: float = _key(above=0)
    strategy: str = _key(choices=tuple(STRATEGIES))
    gamma: float = _key(above=0, maximum=1, auto=True)
    weight_normalization: bool
    round_normalization: bool
    smooth_update: bool
    weight_scope: str = _key(choices=WEIGHT_SCOPES)
    proximal_mu: float = _key(minimum=0)
    update_clipping: float = _key(minimum=0)
    krum_distances: str = _key(choices=DISTANCES)
    shapley_estimator: str = _key(choices=tuple(ESTIMATORS))
    shapley_samples: int = _key(minimum=1)
    shapley_utility: str = _key(choices=("accuracy", "loss"))  # No data set here has a score.
    attack: str = _key(choices=tuple(ATTACKS))
    malicious_fraction: float = _key(minimum=0, maximum=1)
    assumed_malicious_fraction: float = _key(minimum=0, maximum=1, auto=True)
    poison_ratio_min: float = _key(minimum=0, maximum=1)
    poison_ratio_max: float = _key(minimum=0, maximum=1)
    gradient_noise_std: float = _key(minimum=0)
    pgd_epsilon: float = _key(minimum=0, maximum=1)
    pgd_step_size: float = _key(above=0, maximum=1)
    pgd_steps: int = _key(minimum=1)
    seed: int = _key(minimum=0)
    device: str
    threads_per_client: int = _key(minimum=1)
    eval_every: int = _key(minimum=1)
    round_timeout: float = _key(above=0)
    min_valid_replies: int = _key(minimum=1)
    max_failed_rounds: int = _key(minimum=1)
    max_num_examples: int = _key(minimum=0)
    checkpoint_every: int = _key(minimum=0)
    resume: str

    @classmethod
    def from_run_config(cls, run_config: Mapping[str, Scalar]) -> RunConfig:
        """Parse and check a Flower run config; settings that are ``"auto"`` are resolved.

        Raises
        ------
        ConfigError
            Naming the key, its value and what is allowed.
        """
        known = {_kebab(f.name): f for f in fields(cls)}
        if unknown := sorted(set(run_config) - set(known)):
            raise ConfigError(f"unknown key {unknown[0]!r}; known keys: {', '.join(known)}")
        if missing := sorted(set(known) - set(run_config)):
            raise ConfigError(f"key {missing[0]!r} is missing; pyproject.toml has its default")
        values = dict(run_config)
        dataset, strategy = values["dataset"], values["strategy"]
        if values["learning-rate"] == AUTO:
            values["learning-rate"] = 0.05 if dataset == "digits" else 0.001
        if values["gamma"] == AUTO:
            tuned = dataset == "fashion-mnist" and strategy == "fedif"
            values["gamma"] = 0.4 if tuned else 0.3
        if values["assumed-malicious-fraction"] == AUTO:
            values["assumed-malicious-fraction"] = values["malicious-fraction"]
        checked = {f.name: _checked(key, values[key], f) for key, f in known.items()}
        config = cls(**checked)
        config._check_combinations()
        if config.run_name == AUTO:
            name = f"{config.strategy}-{config.dataset}-{config.attack}-{config.digest()[:8]}"
            config = replace(config, run_name=name)
        return config

    def _check_combinations(self) -> None:
        if not _DEVICE.fullmatch(self.device):
            raise _refused("device", self.device, "auto, cpu, cuda, cuda:N, mps")
        if self.dataset == "image-folder" and not self.data_dir:
            raise ConfigError("data-dir = '': dataset 'image-folder' needs the folder's path")
        if self.poison_ratio_min > self.poison_ratio_max:
            raise _refused(
                "poison-ratio-min",
                self.poison_ratio_min,
                f"<= poison-ratio-max = {self.poison_ratio_max}",
            )
        if self.run_name in ("", ".", "..") or re.search(r"[/\\\0]", self.run_name):
            raise _refused("run-name", self.run_name, "a folder's name, or 'auto'")
        sampled = self.clients_per_round
        if self.min_valid_replies > sampled:
            raise _refused(
                "min-valid-replies", self.min_valid_replies, f"<= the {sampled} clients of a round"
            )

    @property
    def clients_per_round(self) -> int:
        """The paper's m = max(C * K, 1)."""
        return max(int(self.fraction_train * self.num_clients + 1e-9), 1)

    @property
    def run_dir(self) -> Path:
        """Where this run writes its results, absolute."""
        return Path(self.output_dir).expanduser().absolute() / self.run_name

    @property
    def training(self) -> TrainingConfig:
        """What a client needs for its local training (the proximal term comes by message)."""
        return TrainingConfig(
            local_epochs=self.local_epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            momentum=self.momentum,
            precision=cast(Precision, self.precision),
        )

    @property
    def attacks(self) -> AttackConfig:
        """How malicious clients behave, and how many there are."""
        return AttackConfig(**{f.name: getattr(self, f.name) for f in fields(AttackConfig)})

    def to_run_config(self) -> dict[str, Scalar]:
        """Return the settings under their kebab-case keys."""
        return {_kebab(name): value for name, value in asdict(self).items()}

    def to_json(self) -> str:
        """Return the settings as a JSON object, for a message or a file."""
        return json.dumps(self.to_run_config())

    @classmethod
    def from_json(cls, text: str) -> RunConfig:
        """Parse what :meth:`to_json` wrote."""
        return cls.from_run_config(json.loads(text))

    def identity(self) -> dict[str, Scalar]:
        """Return every setting that can change a result (not where or when it is written)."""
        settings = {k: v for k, v in self.to_run_config().items() if k not in _NEUTRAL}
        # Results from before there was a choice keep their names.
        before = {
            "precision": "float32",
            "normalization": "data",
            "krum-distances": "parameters",
            "update-clipping": 0.0,
            "assumed-malicious-fraction": settings["malicious-fraction"],
        }
        for key, value in before.items():
            if settings[key] == value:
                del settings[key]
        return settings

    def digest(self) -> str:
        """Return a hash of every setting that can change a result."""
        return hashlib.sha256(json.dumps(self.identity(), sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class NodeConfig:
    """What a SuperNode says of itself in ``--node-config`` (or the simulation for it).

    Attributes
    ----------
    partition_id : int
        Which client this is: what it draws at random depends on it.
    num_partitions : int, optional
        The clients share one data set, of which this one has part ``partition_id`` of so many.
    data_dir : str, optional
        With ``num_partitions``: where this node has the shared data set. Without: images of its
        own, a tree ``train/<class>/``, and it trains on all of them.
    attack : str, optional
        This node misbehaves in this way, whatever the run config says (for tests and demos).
    """

    partition_id: int
    num_partitions: int | None = None
    data_dir: str | None = None
    attack: str | None = None

    @classmethod
    def from_node_config(cls, node_config: Mapping[str, Scalar]) -> NodeConfig:
        """Parse and check a Flower node config.

        Raises
        ------
        ConfigError
            Naming the key, its value and what is allowed.
        """
        known = {_kebab(f.name): f for f in fields(cls)}
        if unknown := sorted(set(node_config) - set(known)):
            raise ConfigError(f"unknown node-config key {unknown[0]!r}; known: {', '.join(known)}")
        if "partition-id" not in node_config:
            raise ConfigError("node-config needs partition-id: which client this is, from 0")
        for key, wanted in (("partition-id", int), ("num-partitions", int), ("data-dir", str)):
            if key in node_config and type(node_config[key]) is not wanted:
                allowed = "an integer" if wanted is int else "a string"
                raise _refused(key, node_config[key], allowed)
        node = cls(**{known[key].name: value for key, value in node_config.items()})  # type: ignore[arg-type]
        if node.num_partitions is None and not node.data_dir:
            raise ConfigError(
                "node-config needs num-partitions (a part of a data set that all clients share) "
                "or data-dir (images of this client's own)"
            )
        most = math.inf if node.num_partitions is None else node.num_partitions
        if not 0 <= node.partition_id < most:
            raise _refused("partition-id", node.partition_id, f"0 <= partition-id < {most}")
        if node.attack is not None and node.attack not in ATTACKS:
            raise _refused("attack", node.attack, ", ".join(ATTACKS))
        return node


def default_run_config(project_dir: Path) -> dict[str, Scalar]:
    """Return ``[tool.flwr.app.config]`` of a project's ``pyproject.toml``."""
    with (project_dir / "pyproject.toml").open("rb") as file:
        config: dict[str, Scalar] = tomllib.load(file)["tool"]["flwr"]["app"]["config"]
    return config


def parse_overrides(text: str) -> dict[str, Scalar]:
    """Parse ``KEY=VALUE ...`` as ``flwr run --run-config`` does, but refuse what it would skip.

    Raises
    ------
    ConfigError
        If the text is not a list of pairs, strings being quoted.
    """
    pair = re.compile(r"""\s*([\w.-]+)=("[^"]*"|'[^']*'|[^\s"']\S*)(?=\s|$)""")
    values: dict[str, Scalar] = {}
    position, text = 0, text.strip()
    while position < len(text):
        match = pair.match(text, position)
        if match is None:
            raise ConfigError(
                f"cannot read {text[position:].strip()!r}; expected KEY=VALUE pairs separated by "
                "spaces, strings in quotes: 'num-server-rounds=5 strategy=\"fedif\"'"
            )
        try:
            values[match[1]] = tomllib.loads(f"value = {match[2]}")["value"]
        except tomllib.TOMLDecodeError:
            raise ConfigError(
                f"{match[1]} = {match[2]}: not a number or true/false; strings need quotes"
            ) from None
        position = match.end()
    return values


def _kebab(name: str) -> str:
    return name.replace("_", "-")


def _refused(key: str, value: object, allowed: str) -> ConfigError:
    return ConfigError(f"{key} = {value!r}; allowed: {allowed}")


def _checked(key: str, value: Any, spec: Field[Any]) -> Any:
    """Return ``value`` in the field's own type, or raise ConfigError."""
    auto = " or 'auto'" if spec.metadata.get("auto") else ""
    if spec.type == "str":
        choices = spec.metadata.get("choices")
        if not isinstance(value, str):
            raise _refused(key, value, "a string")
        if choices and value not in choices:
            raise _refused(key, value, ", ".join(choices))
        return value
    if spec.type == "bool":
        if not isinstance(value, bool):
            raise _refused(key, value, "true, false")
        return value
    wanted = "an integer" if spec.type == "int" else "a number"
    fits = isinstance(value, int) or (spec.type == "float" and isinstance(value, float))
    if isinstance(value, bool) or not fits or not math.isfinite(value):
        raise _refused(key, value, wanted + auto)
    limits = spec.metadata["limits"]
    if value < limits["minimum"] or value > limits["maximum"] or value <= limits["above"]:
        raise _refused(key, value, f"{wanted} {_describe(limits)}{auto}")
    return float(value) if spec.type == "float" else value


def _describe(limits: Mapping[str, float]) -> str:
    words = {"above": ">", "minimum": ">=", "maximum": "<="}
    shown = [f"{words[name]} {limits[name]:g}" for name in words if math.isfinite(limits[name])]
    return " and ".join(shown)
