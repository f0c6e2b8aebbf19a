"""Masked runs: who keeps the masks."""

from __future__ import annotations

import logging
from pathlib import Path

from fedif_flower.errors import require
from fedif_flower.messages.masked_rounds import Masking
from fedif_flower.messages.trial_keeper import trial_masking
from fedif_flower.run.config import RunConfig
from fedif_flower.run.keeper_client import HttpKeeper, OnAnswer

logger = logging.getLogger(__name__)

BESIDE_THE_SERVER = "beside the server, for trial"
MOST_KEEPER_SECONDS = 600.0  # For one answer.
VECTORS_PER_ROUND = 2  # That are asked about: of scores, and of contributions.


def build_masking(config: RunConfig, on_answer: OnAnswer | None = None) -> Masking | None:
    """Return who keeps the masks of a run; ``None``: there are none.

    ``on_answer`` is what :class:`HttpKeeper` takes.

    Raises
    ------
    ConfigError
        If the keeper's policy refuses every round of this run, or a file cannot be used.
    KeeperError
        If the keeper does not answer.
    """
    if config.masking == "off":
        return None
    if config.masking == "trial":
        masking = trial_masking()
    else:
        keeper = HttpKeeper(
            config.keeper_url,
            keeper_certificate=Path(config.keeper_certificate).expanduser(),
            certificate=Path(config.keeper_client_certificate).expanduser(),
            certificate_key=Path(config.keeper_client_key).expanduser(),
            seconds=min(config.round_timeout, MOST_KEEPER_SECONDS),
            on_answer=on_answer,
        )
        masking = Masking(keeper)
    policy = masking.keeper.policy()
    members, needed = config.clients_per_round, policy.least_members
    require(
        members >= needed,
        "fraction-train",
        config.fraction_train,
        f"enough for the keeper's least-members = {needed}: a round has {members}",
    )
    vectors = (config.strategy == "fedif") + (config.attribution != "off")
    require(
        vectors <= policy.vectors,
        "attribution",
        config.attribution,
        f"'off' with the keeper's vectors = {policy.vectors}",
    )
    if config.masking == "keeper":
        logger.info("masked: the keeper at %s has the masks", config.keeper_url)
    return masking


def keeper_title(config: RunConfig) -> str:
    """Return what records call who keeps the masks."""
    return config.keeper_url or BESIDE_THE_SERVER
