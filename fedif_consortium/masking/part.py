"""Masked runs, in which the server sees no update: their settings, and who keeps the masks."""

from __future__ import annotations

import logging
import secrets
import ssl
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import Grid
from pydantic import model_validator

from fedif_consortium.masking.boxes import MaskingTerms
from fedif_consortium.masking.keeper import TrialKeeper
from fedif_consortium.masking.keeper_client import AnyKeeper, HttpKeeper, trusting
from fedif_consortium.masking.masked_reply import MASKING_KEY
from fedif_consortium.masking.masked_round import MaskedWorkspace
from fedif_consortium.masking.policy import KeeperPolicy
from fedif_consortium.masking.ring import encode_weights
from fedif_flower.attacks.registry import needs_collusion
from fedif_flower.errors import ConfigError, KeeperError, require
from fedif_flower.intake.intake import Intake, IntakeSettings
from fedif_flower.local_methods import LocalMethod
from fedif_flower.messages.arrays import is_statistic
from fedif_flower.messages.models import model_arrays
from fedif_flower.run.config import RunConfig
from fedif_flower.run.folder import JsonFile
from fedif_flower.run.part import NOTHING, Built, RunContext, RunPart
from fedif_flower.server.loop import ScreenedStrategy
from fedif_flower.server.run import Callback
from fedif_flower.settings import Settings, in_section, quiet_setting, setting
from fedif_flower.strategies.fedif import FedIF
from fedif_flower.strategies.registry import strategy_class

logger = logging.getLogger(__name__)


class MaskingSettings(Settings, alias_generator=in_section("masking")):
    """Whether the server sees updates, and who keeps the masks if it does not."""

    mode: Literal["off", "trial", "keeper"] = setting(
        "off",
        "**experimental**; `keeper`: the server sees no update as long as it follows the protocol, "
        "and a keeper that somebody else runs has the masks (`docs/methods/masked-rounds.md`); "
        "`trial`: the same with one beside the server, which protects nobody. For `fedif`, "
        "`fedavg` and `fedprox`",
    )
    keeper_url: str = quiet_setting(
        "",
        'with `masking.mode = "keeper"`: where the keeper answers',
        pattern=r"^(https://\S+)?$",
        allowed="a URL that begins with https://",
    )
    keeper_certificate: str = quiet_setting(
        "", "with `masking.keeper-url`: path of the keeper's certificate, which alone is trusted"
    )
    client_certificate: str = quiet_setting(
        "",
        "with `masking.keeper-url`: path of the certificate with which this server shows who it is",
    )
    client_key: str = quiet_setting(
        "", "with `masking.keeper-url`: path of that certificate's private key"
    )

    @model_validator(mode="after")
    def _has_a_keeper(self) -> Self:
        words = "needed with" if self.mode == "keeper" else "empty without"
        for name in ("keeper_url", "keeper_certificate", "client_certificate", "client_key"):
            fits = bool(getattr(self, name)) == (self.mode == "keeper")
            require(fits, name, getattr(self, name), f"{words} mode 'keeper'")
        return self


@dataclass(frozen=True)
class Masking:
    """Makes the intake of a strategy that sees no update; ``keeper`` answers for the masks."""

    keeper: AnyKeeper

    def __call__(self, settings: IntakeSettings) -> MaskedIntake:
        """Return the intake."""
        return MaskedIntake(settings, self.keeper)


class MaskedIntake(Intake):
    """Takes in masked replies, whose updates nobody sees.

    Parameters
    ----------
    settings : IntakeSettings
        How far replies are believed, and waited for.
    keeper : AnyKeeper
        Answers for the masks.
    """

    is_plain = False
    asks_once = True  # The keeper answers for a model's sums once.

    def __init__(self, settings: IntakeSettings, keeper: AnyKeeper) -> None:
        super().__init__(settings)
        self._keeper = keeper

    def require(self, host: ScreenedStrategy, grid: Grid, initial_arrays: ArrayRecord) -> None:
        """Raise ConfigError where updates, or more than parameters, would have to be seen."""
        require_maskable(host, initial_arrays)
        super().require(host, grid, initial_arrays)

    def make_workspace(self) -> MaskedWorkspace:
        """Return room for a round's masked replies."""
        layout = self.host.model.layout
        terms = MaskingTerms(
            run=secrets.randbits(63),
            keys=[spec.name for spec in layout.trainable],
            max_length=self.host.stages.max_length,
            trial_secret=self._keeper.trial_secret,
        )
        return MaskedWorkspace(layout, self._keeper, terms)


def require_maskable(strategy: ScreenedStrategy, initial_arrays: ArrayRecord) -> None:
    """Raise ConfigError where updates, or more than parameters, would have to be seen."""
    method = type(strategy.setup.local_method)
    obstacles = []
    if strategy.reads_updates:
        obstacles.append(f"{type(strategy).__name__} weighs by the updates themselves")
    obstacles.append(strategy.stages.why_updates_are_read())
    obstacles += [callback.why_updates_are_read(strategy) for callback in strategy.callbacks]
    if method is not LocalMethod:
        obstacles.append(f"{method.__name__}: members train by SGD alone")
    if strategy.setup.pace.late_rounds:
        obstacles.append("late replies cannot be discounted")
    obstacles += [f"{key!r} is a statistic" for key in initial_arrays if is_statistic(key)]
    # Of 8 bytes each, a masked reply must not be taken for a flood.
    obstacles += [
        f"{key!r} is of float16"
        for key, array in initial_arrays.items()
        if array.dtype == "float16"
    ]
    for obstacle in obstacles:
        if obstacle:
            raise ConfigError(f"masking: {obstacle}")


class MaskedRounds(RunPart):
    """``masking.mode = "keeper"``: the server sees no update."""

    settings = MaskingSettings

    def fits(self, config: RunConfig) -> None:
        """Raise ConfigError for accomplices, who look at each other's updates."""
        mode = config.section(MaskingSettings).mode
        alone = mode == "off" or not needs_collusion(config, config.seed)
        require(alone, "attack", config.attack, f"no accomplices with masking.mode = {mode!r}")

    def build(self, run: RunContext) -> Built:
        """Return who keeps the masks, and the record of what is asked.

        Raises
        ------
        ConfigError
            If the keeper's policy refuses every round of this run, or a file cannot be used.
        KeeperError
            If the keeper does not answer.
        """
        own = run.config.section(MaskingSettings)
        if own.mode == "off":
            return NOTHING
        logger.warning(
            "masked rounds are experimental: a server that does not follow the protocol, or one in "
            "league with the keeper, can come by updates (docs/methods/masked-rounds.md)"
        )
        keeper: AnyKeeper
        if own.mode == "trial":
            logger.warning("masked for trial: a keeper beside the server protects nobody")
            keeper = TrialKeeper()
        else:
            files = own.keeper_certificate, own.client_certificate, own.client_key
            keys = "masking.keeper-certificate, client-certificate, client-key"
            context = trusting(ssl.PROTOCOL_TLS_CLIENT, *files, keys)
            # For one answer ten minutes at most.
            keeper = HttpKeeper(own.keeper_url, context, min(run.config.pace.timeout, 600.0))
            keeper.on_answer = run.waited
        name = own.keeper_url or "beside the server, for trial"
        logger.info("masked: who has the masks is %s", name)
        _require_answers(keeper.policy, run.config, run.loaded.validation.num_params)
        return Built(
            setup={"intake": Masking(keeper)},
            callbacks=[KeeperRecord(run.folder.masking, keeper, name)],
            told={MASKING_KEY: own.mode},
        )

    def refuse(self, strategy: ScreenedStrategy, run: RunContext) -> None:
        """Raise ConfigError where updates, or more than parameters, would have to be seen."""
        if isinstance(strategy.setup.intake, Masking):
            require_maskable(strategy, model_arrays(run.loaded.model))


def _require_answers(policy: KeeperPolicy, config: RunConfig, num_params: int) -> None:
    """Raise ConfigError if a keeper's policy refuses every round of a run."""
    # The least of FedIF's normalised scores is 0, and in the first round its member's weight.
    kind = strategy_class(config.strategy)
    more = int(kind is not None and issubclass(kind, FedIF))
    members = config.clients_per_round
    weights, _ = encode_weights(np.ones(max(members - more, 1)))  # None are more alike.
    vectors = config.num_server_rounds * (more + (config.attribution != "off"))
    where = f"fraction-train = {config.fraction_train}: {len(weights)} of {members} have weight"
    try:
        policy.check_weights(weights, ["each"] * len(weights))
        where = f"num-server-rounds = {config.num_server_rounds}"
        policy.check_known(vectors, num_params)
    except KeeperError as error:
        raise ConfigError(f"{where}: {error}") from error


class KeeperRecord(Callback):
    """Writes who keeps a run's masks, and where the keeper's log ended, into ``masking.json``."""

    def __init__(self, file: JsonFile, keeper: AnyKeeper, name: str) -> None:
        self._file, self._keeper, self._name = file, keeper, name

    def on_end(self) -> None:
        """Let the keeper forget the last round, and write down its log's last hash."""
        last_hash = ""
        try:
            last_hash = self._keeper.close()
        except KeeperError as error:
            logger.error("the keeper's last hash is not in the records: %s", error)
        self._file.write({"keeper": self._name, "log": last_hash})
