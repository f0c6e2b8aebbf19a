"""Masked runs, in which the server sees no update: their settings, and who keeps the masks."""

from __future__ import annotations

import logging
import ssl
from typing import Literal, Self

from pydantic import model_validator

from fedif_consortium.masking.keeper_client import HttpKeeper, trusting
from fedif_consortium.masking.masked_reply import MASKING_KEY
from fedif_consortium.masking.policy import KeeperPolicy
from fedif_consortium.masking.workspace import Masking, trial_masking
from fedif_flower.attacks.registry import needs_collusion
from fedif_flower.errors import ConfigError, KeeperError, RefusedByPolicyError, require
from fedif_flower.messages.models import model_arrays
from fedif_flower.run.config import CreditSettings, RunConfig, UpdatesSettings
from fedif_flower.run.part import NOTHING, Built, RunContext, RunPart
from fedif_flower.settings import RefusedValueError, Settings, in_section, setting
from fedif_flower.strategies.base import ScreenedStrategy
from fedif_flower.strategies.callbacks import Callback
from fedif_flower.strategies.reports import RoundReport

logger = logging.getLogger(__name__)

MOST_KEEPER_SECONDS = 600.0  # For one answer.
TRIAL = "beside the server, for trial"
EXPERIMENTAL = (
    "masked rounds are experimental: a server that follows the protocol learns lengths, scores, a "
    "few random sums and the sum of all updates, and no update; one that does not can come by "
    "updates, for example by having a model trained twice and taking two sums apart, and one in "
    "league with the keeper, or with all members but one, sees them as if there were no masks"
)
_OF_KEEPER = ("keeper_url", "keeper_certificate", "client_certificate", "client_key")


class MaskingSettings(Settings, alias_generator=in_section("masking")):
    """Whether the server sees updates, and who keeps the masks if it does not."""

    mode: Literal["off", "trial", "keeper"] = setting(
        "off",
        "**experimental**; `keeper`: the server sees no update as long as it follows the protocol, "
        "and a keeper that somebody else runs has the masks (`docs/methods/masked-rounds.md`); "
        "`trial`: the same with one beside the server, which protects nobody. For `fedif`, "
        "`fedavg` and `fedprox`",
    )
    keeper_url: str = setting(
        "",
        'with `masking.mode = "keeper"`: where the keeper answers',
        pattern=r"^(https://\S+)?$",
        allowed="a URL that begins with https://",
        changes_result=False,
    )
    keeper_certificate: str = setting(
        "",
        "with `masking.keeper-url`: path of the keeper's certificate, which alone is trusted",
        changes_result=False,
    )
    client_certificate: str = setting(
        "",
        "with `masking.keeper-url`: path of the certificate with which this server shows who it is",
        changes_result=False,
    )
    client_key: str = setting(
        "",
        "with `masking.keeper-url`: path of that certificate's private key",
        changes_result=False,
    )

    @model_validator(mode="after")
    def _has_a_keeper(self) -> Self:
        words = "needed with" if self.mode == "keeper" else "empty without"
        for name in _OF_KEEPER:
            if bool(getattr(self, name)) != (self.mode == "keeper"):
                raise RefusedValueError(name, f"{words} mode 'keeper'")
        return self


class MaskedRounds(RunPart):
    """``masking.mode = "keeper"``: the server sees no update."""

    settings = MaskingSettings

    def fits(self, config: RunConfig) -> None:
        """Raise ConfigError for what looks at updates beside the strategy, which is asked later."""
        mode, rule = config.section(MaskingSettings).mode, config.attribution
        if mode == "off":
            return
        keep = config.section(UpdatesSettings).keep
        per_class = config.section(CreditSettings).per_class
        both = "off" not in (config.server_optimizer, rule)
        for refused, key, value, allowed in (
            (rule == "adaptive", "attribution", rule, "'off', 'trapezoid', 'simpson', 'gauss2'"),
            (both, "server-optimizer", config.server_optimizer, "'off' beside attribution"),
            (needs_collusion(config, config.seed), "attack", config.attack, "no accomplices"),
            (keep, "updates.keep", keep, "false"),
            (per_class, "credit.per-class", per_class, "false"),
        ):
            require(not refused, key, value, f"{allowed} with masking.mode = {mode!r}")

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
        logger.warning(EXPERIMENTAL)
        if own.mode == "trial":
            logger.warning("masked for trial: a keeper beside the server protects nobody")
            masking = trial_masking()
        else:
            files = own.keeper_certificate, own.client_certificate, own.client_key
            keys = "masking.keeper-certificate, client-certificate, client-key"
            context = trusting(ssl.PROTOCOL_TLS_CLIENT, *files, keys)
            seconds = min(run.config.pace.timeout, MOST_KEEPER_SECONDS)
            masking = Masking(HttpKeeper(own.keeper_url, context, seconds, run.waited))
        _require_answers(masking.keeper.policy(), run.config, run.loaded.validation.num_params)
        logger.info("masked: who has the masks is %s", own.keeper_url or TRIAL)
        return Built(
            setup={"intake": masking},
            callbacks=[KeeperRecord(run, masking, own.keeper_url or TRIAL)],
            asked={MASKING_KEY: own.mode},
        )

    def refuse(self, strategy: ScreenedStrategy, run: RunContext) -> None:
        """Raise ConfigError where updates, or more than parameters, would have to be seen."""
        if strategy.setup.intake is not None:
            strategy.setup.intake.require(strategy, model_arrays(run.loaded.model))


def _require_answers(policy: KeeperPolicy, config: RunConfig, num_params: int) -> None:
    """Raise ConfigError if a keeper's policy refuses every round of a run."""
    # The least of FedIF's normalised scores is 0, and in the first round its member's weight.
    members, more = config.clients_per_round, int(config.strategy == "fedif")
    least = f"enough for the keeper's least-members = {policy.least_members}"
    least += " and the one whom FedIF gives no weight" * more + f": a round has {members}"
    enough = members >= policy.least_members + more
    require(enough, "fraction-train", config.fraction_train, least)
    vectors = more + (config.attribution != "off")
    allowed = f"'off' with the keeper's vectors = {policy.vectors}"
    require(vectors <= policy.vectors, "attribution", config.attribution, allowed)
    try:
        policy.check_known(vectors * config.num_server_rounds, num_params)
    except RefusedByPolicyError as error:
        raise ConfigError(f"num-server-rounds = {config.num_server_rounds}: {error}") from error


class KeeperRecord(Callback):
    """Writes who keeps a run's masks, and where the keeper's log ended, into ``masking.json``."""

    def __init__(self, run: RunContext, masking: Masking, keeper: str) -> None:
        self._file, self._masking, self._keeper = run.folder.masking, masking, keeper
        self._last_round = 0

    def on_round(self, report: RoundReport) -> None:
        """Remember which round there was last."""
        self._last_round = report.round

    def on_end(self) -> None:
        """Let the keeper forget the last round, and write down its log's last hash."""
        last_hash = ""
        try:
            last_hash = self._masking.keeper.close_round(self._masking.run, self._last_round)
        except KeeperError as error:
            logger.error("the keeper's last hash is not in the records: %s", error)
        self._file.write({"keeper": self._keeper, "log": last_hash})
