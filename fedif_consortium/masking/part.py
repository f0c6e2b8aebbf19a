"""Masked runs: who keeps the masks."""

from __future__ import annotations

import logging
from pathlib import Path

from fedif_consortium.masking.client_part import MASKING_KEY
from fedif_consortium.masking.keeper_client import HttpKeeper, OnAnswer
from fedif_consortium.masking.keeper_record import KeeperRecord
from fedif_consortium.masking.settings import MaskingSettings, require_maskable
from fedif_consortium.masking.trial_keeper import trial_masking
from fedif_consortium.masking.workspace import Masking
from fedif_flower.errors import ConfigError, RefusedByPolicyError, require
from fedif_flower.messages.models import model_arrays
from fedif_flower.run.config import RunConfig
from fedif_flower.run.part import NOTHING, Built, RunContext, RunPart
from fedif_flower.strategies.base import ScreenedStrategy

logger = logging.getLogger(__name__)

BESIDE_THE_SERVER = "beside the server, for trial"
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
        require_maskable(config)

    def build(self, run: RunContext) -> Built:
        """Return who keeps the masks, and the record of what is asked."""
        config = run.config
        masking = build_masking(config, run.loaded.validation.num_params, run.waited)
        if masking is None:
            return NOTHING
        return Built(
            setup={"intake": masking},
            callbacks=[KeeperRecord(run.folder, masking, keeper_title(config))],
            asked={MASKING_KEY: config.section(MaskingSettings).mode},
        )

    def refuse(self, strategy: ScreenedStrategy, run: RunContext) -> None:
        """Raise ConfigError where updates, or more than parameters, would have to be seen."""
        if strategy.setup.intake is not None:
            strategy.setup.intake.require(strategy, model_arrays(run.loaded.model))


def build_masking(
    config: RunConfig, num_params: int, on_answer: OnAnswer | None = None
) -> Masking | None:
    """Return who keeps the masks of a run; ``None``: there are none.

    ``num_params`` is d, the parameters of the model; ``on_answer`` is what :class:`HttpKeeper`
    takes.

    Raises
    ------
    ConfigError
        If the keeper's policy refuses every round of this run, or a file cannot be used.
    KeeperError
        If the keeper does not answer.
    """
    own = config.section(MaskingSettings)
    if own.mode == "off":
        return None
    logger.warning(EXPERIMENTAL)
    if own.mode == "trial":
        masking = trial_masking()
    else:
        keeper = HttpKeeper(
            own.keeper_url,
            keeper_certificate=Path(own.keeper_certificate).expanduser(),
            certificate=Path(own.client_certificate).expanduser(),
            certificate_key=Path(own.client_key).expanduser(),
            seconds=min(config.pace.timeout, MOST_KEEPER_SECONDS),
            on_answer=on_answer,
        )
        masking = Masking(keeper)
    policy = masking.keeper.policy()
    # The least of FedIF's normalised scores is 0, and in the first round its member's weight.
    members, more = config.clients_per_round, int(config.strategy == "fedif")
    require(
        members >= policy.least_members + more,
        "fraction-train",
        config.fraction_train,
        f"enough for the keeper's least-members = {policy.least_members}"
        f"{' and the one whom FedIF gives no weight' * more}: a round has {members}",
    )
    vectors = (config.strategy == "fedif") + (config.attribution != "off")
    require(
        vectors <= policy.vectors,
        "attribution",
        config.attribution,
        f"'off' with the keeper's vectors = {policy.vectors}",
    )
    try:
        policy.check_known(vectors * config.num_server_rounds, num_params)
    except RefusedByPolicyError as error:
        raise ConfigError(f"num-server-rounds = {config.num_server_rounds}: {error}") from error
    if own.mode == "keeper":
        logger.info("masked: the keeper at %s has the masks", own.keeper_url)
    return masking


def keeper_title(config: RunConfig) -> str:
    """Return what records call who keeps the masks."""
    return config.section(MaskingSettings).keeper_url or BESIDE_THE_SERVER
