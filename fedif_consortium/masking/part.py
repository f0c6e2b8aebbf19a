"""The part of a run that masks updates: its settings, its intake, and its keeper of masks."""

from __future__ import annotations

import logging
import secrets
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord
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
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.messages.models import model_arrays
from fedif_flower.messages.workspace import AcceptedReply
from fedif_flower.round import ModelVectors, RoundUpdates
from fedif_flower.run.config import RunConfig
from fedif_flower.run.part import NOTHING, Built, RunContext, RunPart
from fedif_flower.run.record_files import JsonFile
from fedif_flower.server.loop import ScreenedStrategy
from fedif_flower.server.run import Callback
from fedif_flower.settings import Settings, in_section, quiet_setting, setting
from fedif_flower.strategies.fedif import FedIF
from fedif_flower.strategies.registry import strategy_class

logger = logging.getLogger(__name__)
MOST_SECONDS = 600.0  # The longest time to wait for one answer of the keeper.


class MaskingSettings(Settings, alias_generator=in_section("masking")):
    """Whether updates are masked, and where the keeper of the masks is."""

    mode: Literal["off", "trial", "keeper"] = setting(
        "off",
        "**experimental**; `keeper`: the server sees no update as long as it follows the protocol, "
        "and a keeper that somebody else runs has the masks (`docs/methods/masked-rounds.md`); "
        "`trial`: the same, with a keeper beside the server; this protects nobody. For `fedif`, "
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
        needs_keeper = self.mode == "keeper"
        allowed = "needed with mode 'keeper'" if needs_keeper else "empty without mode 'keeper'"
        for name in ("keeper_url", "keeper_certificate", "client_certificate", "client_key"):
            value = getattr(self, name)
            require(bool(value) == needs_keeper, name, value, allowed)
        return self


@dataclass(frozen=True)
class Masking:
    """Makes the intake of a strategy that sees no update, with the keeper of the masks."""

    keeper: AnyKeeper

    def __call__(self, settings: IntakeSettings) -> MaskedIntake:
        """Return an intake of masked replies."""
        return MaskedIntake(settings, self.keeper)


class MaskedIntake(Intake):
    """Takes in masked replies, whose updates nobody sees.

    Parameters
    ----------
    settings : IntakeSettings
        How far replies are believed, and how long they are waited for.
    keeper : Keeper or HttpKeeper
        The keeper of the masks.
    """

    is_plain = False
    asks_once = True  # The keeper answers for one sum of a model, so no round can be done again.

    def __init__(self, settings: IntakeSettings, keeper: AnyKeeper) -> None:
        super().__init__(settings)
        self._keeper = keeper

    def require(self, host: ScreenedStrategy, grid: Grid, initial_arrays: ArrayRecord) -> None:
        """Raise ConfigError if strategy or model cannot be masked, see :func:`require_maskable`."""
        require_maskable(host, initial_arrays)
        super().require(host, grid, initial_arrays)

    def make_workspace(self) -> MaskedWorkspace:
        """Return the workspace that takes in a round's masked replies."""
        layout = self.host.model.layout
        terms = MaskingTerms(
            run=secrets.randbits(63),
            keys=[spec.name for spec in layout.trainable],
            max_length=self.host.stages.max_length,
            trial_secret=self._keeper.trial_secret,
        )
        return MaskedWorkspace(layout, self._keeper, terms)

    @property
    def _masked_workspace(self) -> MaskedWorkspace:
        workspace = self.workspace
        assert isinstance(workspace, MaskedWorkspace)  # make_workspace
        return workspace

    def open(self, server_round: int, members: Sequence[ClientNode], config: ConfigRecord) -> None:
        """Begin a round; add its terms of masking to the settings that all its members get."""
        super().open(server_round, members, config)
        self._masked_workspace.tell_terms(config, server_round)

    def updates(
        self,
        server_round: int,
        accepted: Sequence[AcceptedReply],
        received: ModelVectors,
        device: torch.device,
        seed: int,
    ) -> RoundUpdates:
        """Return the accepted replies as a round's updates, which nobody sees.

        Raises
        ------
        KeeperError
            If the keeper did not open the round.
        """
        updates = super().updates(server_round, accepted, received, device, seed)
        return replace(updates, unseen=self._masked_workspace.opened_round())


def require_maskable(strategy: ScreenedStrategy, initial_arrays: ArrayRecord) -> None:
    """Raise ConfigError if a strategy has to see updates, or a model has more than parameters."""
    obstacle = _obstacle_of(strategy) or _obstacle_in(initial_arrays)
    if obstacle:
        raise ConfigError(f"masking: {obstacle}")


def _obstacle_of(strategy: ScreenedStrategy) -> str:
    """Return why a strategy, or a part of it, has to see updates; empty if it does not."""
    if strategy.reads_updates:
        return f"{type(strategy).__name__} weighs by the updates themselves"
    reason = strategy.stages.why_updates_are_read()
    if reason:
        return reason
    for callback in strategy.callbacks:
        reason = callback.why_updates_are_read(strategy)
        if reason:
            return reason
    method = type(strategy.setup.local_method)
    if method is not LocalMethod:
        return f"{method.__name__}: members train by SGD alone"
    if strategy.setup.pace.late_rounds:
        return "late replies cannot be discounted"
    return ""


def _obstacle_in(initial_arrays: ArrayRecord) -> str:
    """Return why a model cannot be trained in masked rounds; empty if it can."""
    for name in initial_arrays:
        if is_statistic(name):
            return f"{name!r} is a batch-norm statistic, which cannot be masked"
    for name, array in initial_arrays.items():
        # A masked entry has 8 bytes, four times as many as a float16: the server would refuse such
        # a reply as too large.
        if array.dtype == "float16":
            return f"{name!r} is of float16"
    return ""


class MaskedRounds(RunPart):
    """``masking.mode = "keeper"``: the server sees no update."""

    settings = MaskingSettings

    def fits(self, config: RunConfig) -> None:
        """Raise ConfigError for an attack with accomplices, who need each other's updates."""
        mode = config.section(MaskingSettings).mode
        is_allowed = mode == "off" or not needs_collusion(config, config.seed)
        allowed = f"no accomplices with masking.mode = {mode!r}"
        require(is_allowed, "attack", config.attack, allowed)

    def build(self, run: RunContext) -> Built:
        """Return the intake with its keeper, and the callback that records the keeper.

        Raises
        ------
        ConfigError
            If the keeper's policy would refuse this run's rounds, or a file cannot be used.
        KeeperError
            If the keeper does not answer.
        """
        settings = run.config.section(MaskingSettings)
        if settings.mode == "off":
            return NOTHING
        logger.warning(
            "masked rounds are experimental: a server that does not follow the protocol, or one in "
            "league with the keeper, can come by updates (docs/methods/masked-rounds.md)"
        )
        keeper: AnyKeeper
        if settings.mode == "trial":
            logger.warning("masked for trial: a keeper beside the server protects nobody")
            keeper = TrialKeeper()
        else:
            keeper = _keeper_elsewhere(settings, run)
        name = settings.keeper_url or "beside the server, for trial"
        logger.info("masked: the keeper of the masks is %s", name)
        _require_answers(keeper.policy, run.config, run.loaded.validation.num_params)
        return Built(
            setup={"intake": Masking(keeper)},
            callbacks=[KeeperRecord(run.folder.masking, keeper, name)],
            instructions={MASKING_KEY: settings.mode},
        )

    def refuse(self, strategy: ScreenedStrategy, run: RunContext) -> None:
        """Raise ConfigError if strategy or model cannot be masked, see :func:`require_maskable`."""
        if isinstance(strategy.setup.intake, Masking):
            require_maskable(strategy, model_arrays(run.loaded.model))


def _keeper_elsewhere(settings: MaskingSettings, run: RunContext) -> HttpKeeper:
    """Return the keeper at the run's ``masking.keeper-url``."""
    context = trusting(
        ssl.PROTOCOL_TLS_CLIENT,
        trusted=settings.keeper_certificate,
        certificate=settings.client_certificate,
        key=settings.client_key,
        keys="masking.keeper-certificate, client-certificate, client-key",
    )
    seconds = min(run.config.pace.timeout, MOST_SECONDS)
    keeper = HttpKeeper(settings.keeper_url, context, seconds)
    keeper.on_answer = run.report_wait
    return keeper


def _require_answers(policy: KeeperPolicy, config: RunConfig, num_params: int) -> None:
    """Raise ConfigError if a keeper's policy would refuse a run's rounds, or its last ones.

    The policy's limits of a sum are checked for a round with as few replies as a round may have,
    and its limit of vectors for the products that a round takes. Its limit of a day is checked for
    the whole run, which may be over within one day.
    """
    strategy = strategy_class(config.strategy)
    is_fedif = strategy is not None and issubclass(strategy, FedIF)
    members = config.fewest_replies
    # FedIF's lowest normalised score is 0. So in the first round one member has no weight.
    members_with_weight = max(members - 1, 1) if is_fedif else members
    # If the policy refuses equal weights, it refuses all others too.
    equal_weights, _ = encode_weights(np.ones(members_with_weight))
    try:
        policy.check_weights(equal_weights, ["each"] * members_with_weight)
    except KeeperError as error:
        shares = f"{members_with_weight} of {members} have weight"
        raise ConfigError(f"{config.closes_by}: {shares}: {error}") from error

    vectors_a_round = 0
    if is_fedif:
        vectors_a_round += 1  # The validation gradient.
    if config.attribution != "off":
        vectors_a_round += 1
    try:
        policy.check_count(vectors_a_round)
    except KeeperError as error:
        raise ConfigError(f"strategy, attribution = {config.attribution!r}: {error}") from error
    try:
        policy.check_known(config.num_server_rounds * vectors_a_round, num_params)
    except KeeperError as error:
        raise ConfigError(f"num-server-rounds = {config.num_server_rounds}: {error}") from error


class KeeperRecord(Callback):
    """Writes the keeper's name, and the last hash of its log, into ``masking.json``."""

    def __init__(self, file: JsonFile, keeper: AnyKeeper, name: str) -> None:
        self._file = file
        self._keeper = keeper
        self._name = name

    def on_end(self) -> None:
        """Have the keeper delete the last round's seeds, and record its log's last hash."""
        last_hash = ""
        try:
            last_hash = self._keeper.close()
        except KeeperError as error:
            logger.error("the keeper's last hash is not in the records: %s", error)
        self._file.write({"keeper": self._name, "log": last_hash})
