"""Masked runs: who keeps the masks."""

from __future__ import annotations

import logging

from fedif_consortium.masking.client_part import MASKING_KEY
from fedif_consortium.masking.keeper_client import HttpKeeper
from fedif_consortium.masking.policy import KeeperPolicy
from fedif_consortium.masking.settings import MaskingSettings
from fedif_consortium.masking.trial_keeper import trial_masking
from fedif_consortium.masking.workspace import Masking
from fedif_flower.attacks.registry import needs_collusion
from fedif_flower.errors import ConfigError, KeeperError, RefusedByPolicyError, require
from fedif_flower.messages.models import model_arrays
from fedif_flower.run.config import RunConfig
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.part import NOTHING, Built, RunContext, RunPart
from fedif_flower.run.part_settings import CreditSettings, UpdatesSettings
from fedif_flower.strategies.base import ScreenedStrategy
from fedif_flower.strategies.callbacks import Callback, RunningStrategy
from fedif_flower.strategies.reports import RoundReport

logger = logging.getLogger(__name__)

MOST_KEEPER_SECONDS = 600.0  # For one answer.
EXPERIMENTAL = (
    "masked rounds are experimental: a server that follows the protocol learns lengths, scores, a "
    "few random sums and the sum of all updates, and no update; one that does not can come by "
    "updates, for example by having a model trained twice and taking two sums apart, and one in "
    "league with the keeper, or with all members but one, sees them as if there were no masks"
)


class MaskedRounds(RunPart):
    """``masking.mode = "keeper"``: the server sees no update."""

    settings = MaskingSettings

    def fits(self, config: RunConfig) -> None:
        """Raise ConfigError for what looks at updates beside the strategy, which is asked later."""
        mode = config.section(MaskingSettings).mode
        if mode == "off":
            return
        keep = config.section(UpdatesSettings).keep
        per_class = config.section(CreditSettings).per_class
        others = needs_collusion(config, config.seed)
        both = "off" not in (config.server_optimizer, config.attribution)
        methods = "'off', 'trapezoid', 'simpson', 'gauss2'"
        for key, value, is_refused, allowed in (
            ("attribution", config.attribution, config.attribution == "adaptive", methods),
            ("server-optimizer", config.server_optimizer, both, "'off' beside attribution"),
            ("attack", config.attack, others, "those without accomplices"),
            ("updates.keep", keep, keep, "false"),
            ("credit.per-class", per_class, per_class, "false"),
        ):
            require(not is_refused, key, value, f"{allowed} with masking.mode = {mode!r}")

    def build(self, run: RunContext) -> Built:
        """Return who keeps the masks, and the record of what is asked.

        Raises
        ------
        ConfigError
            If the keeper's policy refuses every round of this run, or a file cannot be used.
        KeeperError
            If the keeper does not answer.
        """
        config, own = run.config, run.config.section(MaskingSettings)
        if own.mode == "off":
            return NOTHING
        logger.warning(EXPERIMENTAL)
        if own.mode == "trial":
            masking = trial_masking()
        else:
            seconds = min(config.pace.timeout, MOST_KEEPER_SECONDS)
            masking = Masking(HttpKeeper(own, seconds, run.waited))
        _require_answers(masking.keeper.policy(), config, run.loaded.validation.num_params)
        title = own.keeper_url or "beside the server, for trial"
        logger.info("masked: who has the masks is %s", title)
        return Built(
            setup={"intake": masking},
            callbacks=[KeeperRecord(run.folder, masking, title)],
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
    require(
        members >= policy.least_members + more,
        "fraction-train",
        config.fraction_train,
        f"enough for the keeper's least-members = {policy.least_members}"
        f"{' and the one whom FedIF gives no weight' * more}: a round has {members}",
    )
    vectors = more + (config.attribution != "off")
    allowed = f"'off' with the keeper's vectors = {policy.vectors}"
    require(vectors <= policy.vectors, "attribution", config.attribution, allowed)
    try:
        policy.check_known(vectors * config.num_server_rounds, num_params)
    except RefusedByPolicyError as error:
        raise ConfigError(f"num-server-rounds = {config.num_server_rounds}: {error}") from error


class KeeperRecord(Callback):
    """Writes who keeps a run's masks, and where the keeper's log ended, into ``masking.json``."""

    def __init__(self, folder: RunFolder, masking: Masking, keeper: str) -> None:
        self._file, self._masking, self._keeper = folder.masking, masking, keeper
        self._last_round = 0

    def on_start(self, strategy: RunningStrategy) -> None:  # noqa: ARG002
        """Write down who keeps the masks."""
        self._write("")

    def on_round(self, report: RoundReport) -> None:
        """Remember which round there was last."""
        self._last_round = report.round

    def on_end(self) -> None:
        """Let the keeper forget the last round, and write down its log's last hash."""
        try:
            self._write(self._masking.keeper.close_round(self._masking.run, self._last_round))
        except KeeperError as error:
            logger.error("the keeper's last hash is not in the records: %s", error)

    def _write(self, last_hash: str) -> None:
        self._file.write({"keeper": self._keeper, "log": last_hash})
