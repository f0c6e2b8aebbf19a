"""Run config: every setting of one federation, parsed once, checked completely, then immutable.

The settings are declared in the rooms that use them; this file adds a run's own and reads them all
from Flower's run config. ``fedif_flower.run.reference`` writes their defaults into
``pyproject.toml``, where ``flwr run`` looks for them, and their meaning into the documentation.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self

from pydantic import model_validator

from fedif_flower.attacks.registry import needs_collusion
from fedif_flower.messages.client_config import ClientConfig
from fedif_flower.registry import Registry
from fedif_flower.run.completeness import CompletenessRule
from fedif_flower.run.logs import FORMATS
from fedif_flower.run.masking_config import MASKABLE, MaskingConfig
from fedif_flower.sections import setting_of
from fedif_flower.settings import AUTO, RefusedValueError, Scalar, setting
from fedif_flower.strategies.config import StrategyConfig, default_clipping
from fedif_flower.strategies.registry import STRATEGIES
from fedif_flower.tasks.config import IMAGES, OWN
from fedif_flower.tasks.registry import TASKS

# Settings of the built-in task, which another task does not read.
IMAGE_FIELDS = ("dataset", "normalization", "model", "dirichlet_alpha")
IMAGE_KEYS = tuple(name.replace("_", "-") for name in IMAGE_FIELDS)

# Settings of parts that the library does not have: without such a part they are refused.
OF_PARTS = ("masking", "metrics_port", "require_signatures", "receipts", "publish_gradients")


class RunConfig(ClientConfig, StrategyConfig, MaskingConfig):
    """Every setting of one federation; ``docs/configuration.md`` describes each key."""

    registries: ClassVar[Mapping[str, Registry]] = MappingProxyType(
        {**ClientConfig.registries, **StrategyConfig.registries}
    )

    num_server_rounds: int = setting(100, "rounds T", ge=1)
    eval_every: int = setting(1, "evaluate every so many rounds, and after the last", ge=1)
    output_dir: str = setting(
        "runs", "path; results go to `output-dir/run-name/`", changes_result=False
    )
    run_name: str = setting(
        AUTO,
        "`auto`: strategy, data set, attack and a hash of the settings",
        pattern=r"^([^/\\\x00]*[^/\\\x00.][^/\\\x00]*|\.{3,})$",
        allowed="a folder's name, or 'auto'",
        changes_result=False,
    )
    metrics_port: int = setting(
        0,
        "a port on which the server says its figures to Prometheus while the run goes on, at "
        "`/metrics`; 0: none",
        ge=0,
        le=65535,
        changes_result=False,
    )
    metrics_host: str = setting(
        "127.0.0.1",
        "the address of that port; whoever reaches it may read the figures",
        pattern=r"^[^\s/]+$",
        allowed="an address of this machine; 0.0.0.0 or ::, all of them",
        changes_result=False,
    )
    metrics_members: bool = setting(
        False,
        "each member's weight, weight score and replies by name, for at most 1,000 members",
        changes_result=False,
    )
    log_format: str = setting(
        "text",
        "how the package's log looks; `json`: a line of JSON for each message. The environment's "
        "`FEDIF_LOG_FORMAT` comes first",
        choices=FORMATS,
        changes_result=False,
    )
    round_timeout: float = setting(
        3600.0,
        "seconds a round waits; whoever answered by then counts",
        gt=0,
        changes_result=False,
    )
    start_without: str = setting(
        "nobody",
        "`nobody`: a run does not begin while a member that is online cannot take part ([what each "
        "checks](consortium.md#a-run)); `unfit`: it begins all the same",
        choices=("nobody", "unfit"),
        changes_result=False,
    )
    least_participation: float = setting_of(CompletenessRule, "least_participation")
    checkpoint_every: int = setting(
        10,
        "rounds between checkpoints, the last two of which are kept; 0: none",
        ge=0,
        changes_result=False,
    )
    resume: str = setting(
        "",
        "`auto`, or a path: go on from the run's last good checkpoint, or from a file; another "
        "configuration's is refused",
        changes_result=False,
    )

    overwrite: bool = setting(
        False,
        "a run of the same `run-name` is replaced, whatever it came to; else it is refused",
        changes_result=False,
    )
    keep_updates: bool = setting(
        False,
        "with `attribution`: keep every round's updates in `updates/`, from which `fedif replay` "
        "recomputes who contributed what; each round takes as much as its updates and two models "
        "more, and the log says at the start how much that is; signed replies are kept as they "
        "came as well, which takes as much as their updates again",
        changes_result=False,
    )
    require_signatures: bool = setting(
        False,
        "a reply that its member did not sign is refused: each node needs a "
        "[guard](member-policy.md), which signs ([receipts](consortium.md))",
        is_new=True,
    )
    receipts: bool = setting(
        False,
        "with `attribution`, where clients are real nodes: each gets receipts for its own lines of "
        "the records, by which it sees whether they are rewritten later",
        changes_result=False,
    )
    publish_gradients: bool = setting(
        False,
        "each model goes to the members with the gradient of the validation loss at it, for "
        "`fedif inspect` on their own hosts ([what that gives away](methods/local-methods.md))",
        changes_result=False,
    )
    statement_budget: str = setting(
        "",
        "what the statement at the end of a deployed run shares out, such as `1000` or `1000.50`; "
        "empty: it states shares alone",
        pattern=r"^([0-9]{1,12}(\.[0-9]{1,2})?)?$",
        allowed="an amount such as '1000' or '1000.50'",
        changes_result=False,
    )
    statement_contact: str = setting(
        "",
        "whom members may ask about that statement: its pages say it",
        pattern=r"^[^\x00-\x1f\x7f]{0,200}$",
        allowed="at most 200 printable characters",
        changes_result=False,
    )

    @classmethod
    def from_run_config(cls, run_config: Mapping[str, Scalar]) -> Self:
        """Parse and check a Flower run config; settings that are ``"auto"`` are resolved.

        ``num-clients = "auto"`` becomes its default: whoever calls this simulates so many. A
        ServerApp counts its nodes first, see :func:`~fedif_flower.run.preflight.read_config`.

        Parameters
        ----------
        run_config : mapping of str to bool, int, float or str
            Values by key; a key that is not there has its default.

        Raises
        ------
        ConfigError
            Naming the key, its value and what is allowed.
        """
        values: dict[str, Any] = {**cls.defaults(), **run_config}
        if values["num-clients"] == AUTO:
            values["num-clients"] = cls.model_fields["num_clients"].default
        if values["learning-rate"] == AUTO:
            values["learning-rate"] = 0.05 if values["dataset"] == "digits" else 0.001
        if (values["dataset"], values["strategy"]) == ("fashion-mnist", "fedif"):
            tuned = values["fedif.gamma"] == AUTO
            values["fedif.gamma"] = 0.4 if tuned else values["fedif.gamma"]
        if values["assumed-malicious-fraction"] == AUTO:
            share = values["malicious-fraction"]
            # One that is not allowed is an error of the key that was set.
            fits = isinstance(share, int | float) and 0 <= share <= 1
            default = cls.model_fields["assumed_malicious_fraction"].default
            values["assumed-malicious-fraction"] = share if fits else default
        if values["update-clipping"] == AUTO:
            values["update-clipping"] = default_clipping(
                values["strategy"], is_paid=bool(values["statement-budget"])
            )
        config = cls(**values)
        return config.replace(run_name=config.auto_name) if config.run_name == AUTO else config

    @property
    def auto_name(self) -> str:
        """What ``run-name = "auto"`` stands for: strategy, data, attack, a hash of the settings."""
        parts = self.strategy, self.subject, self.attack
        name = "-".join(re.sub(r"[^\w.-]+", "-", part) for part in parts)
        return f"{name}-{self.digest()[:8]}"

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.task not in TASKS and not self.task.startswith(OWN):
            raise RefusedValueError("task", ", ".join([*TASKS, TASKS.also]))
        for name in IMAGE_FIELDS if self.task != IMAGES else ():
            if getattr(self, name) != type(self).model_fields[name].default:
                raise RefusedValueError(name, f"only with task {IMAGES!r}: others have their own")
        if self.dataset == "image-folder" and not self.data_dir:
            raise RefusedValueError(
                "data_dir", "the folder's path, which dataset 'image-folder' needs"
            )
        if self.keep_updates and self.attribution == "off":
            raise RefusedValueError("keep_updates", "false with attribution = 'off'")
        if self.receipts and self.attribution == "off":
            raise RefusedValueError("receipts", "false with attribution = 'off'")
        if self.publish_gradients and self.secret_validation:
            raise RefusedValueError("publish_gradients", "false with secret-validation")
        sampled = self.clients_per_round
        if self.min_valid_replies > sampled:
            raise RefusedValueError("min_valid_replies", f"<= the {sampled} clients of a round")
        _refuse_unmaskable(self)
        return self

    @property
    def subject(self) -> str:
        """What it is about, as results call it: the data set, or the task."""
        return subject_of(self.to_mapping())

    @property
    def data_path(self) -> Path | None:
        """Where the server's data lie, if that is said."""
        return Path(self.data_dir) if self.data_dir else None

    @property
    def clients_per_round(self) -> int:
        """The paper's m = max(C * K, 1); in buffered rounds the replies of a step."""
        if self.rounds == "buffered":
            return self.buffer_size
        return max(int(self.fraction_train * self.num_clients + 1e-9), 1)

    @property
    def run_dir(self) -> Path:
        """Where this run writes its results, absolute."""
        return Path(self.output_dir).expanduser().absolute() / self.run_name

    def identity(self) -> dict[str, Scalar]:
        """Return every setting that can change a result (not where or when it is written)."""
        ignored = () if self.task == IMAGES else IMAGE_KEYS
        return {key: value for key, value in super().identity().items() if key not in ignored}

    def digest(self) -> str:
        """Return a hash of every setting that can change a result."""
        return hashlib.sha256(json.dumps(self.identity(), sort_keys=True).encode()).hexdigest()


def subject_of(settings: Mapping[str, Scalar]) -> str:
    """Return what a run with these settings is about: the data set, or the task."""
    task = str(settings.get("task", IMAGES))
    return str(settings["dataset"]) if task == IMAGES else task.rpartition(":")[2]


def default_run_config() -> dict[str, Scalar]:
    """Return every key of a run config with its default."""
    return RunConfig.defaults()


def _refuse_unmaskable(config: RunConfig) -> None:
    """Raise RefusedValueError for what needs to see updates, in a run in which nobody does."""
    if config.masking == "off":
        return
    words = f"with masking = {config.masking!r}"
    refused = {
        "strategy": (
            not STRATEGIES.is_own(config.strategy) and config.strategy not in MASKABLE,
            f"{', '.join(MASKABLE)} {words}: others look at each update",
        ),
        "keep_updates": (config.keep_updates, f"false {words}: there are no updates to keep"),
        "bucketing": (config.bucketing > 1, f"1 {words}: groups have no masks of their own"),
        "late_rounds": (
            bool(config.late_rounds) or config.rounds == "buffered",
            f"0 {words}, and rounds that are not buffered: a late vector has the mask of its round",
        ),
        "neighbour_mixing": (config.neighbour_mixing, f"false {words}"),
        "screen": (config.screen != "off", f"'off' {words}"),
        "attribution": (
            config.attribution == "adaptive",
            f"'off', 'trapezoid', 'simpson' or 'gauss2' {words}: one product with each update",
        ),
        "attribution_per_class": (
            config.attribution_per_class,
            f"false {words}: each class takes a product with each update",
        ),
        "server_optimizer": (
            config.server_optimizer != "off" and config.attribution != "off",
            f"'off' {words} and attribution: it takes products with updates of many rounds",
        ),
        "attack": (
            needs_collusion(config, config.seed),
            f"others {words}: accomplices would have to see each other's updates",
        ),
    }
    for name, (is_refused, allowed) in refused.items():
        if is_refused:
            raise RefusedValueError(name, allowed)
