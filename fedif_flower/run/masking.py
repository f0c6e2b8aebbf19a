"""Masked runs: their settings, and who keeps the masks."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from pydantic import model_validator

from fedif_flower.errors import require
from fedif_flower.messages.masked_rounds import Masking
from fedif_flower.messages.trial_keeper import trial_masking
from fedif_flower.run.collusion import needs_collusion
from fedif_flower.run.keeper_client import HttpKeeper
from fedif_flower.settings import RefusedValueError, Settings, setting
from fedif_flower.strategies.registry import STRATEGIES

if TYPE_CHECKING:
    from fedif_flower.run.config import RunConfig

logger = logging.getLogger(__name__)

# Built-in strategies whose weights need products, lengths and examples alone.
MASKABLE = ("fedif", "fedavg", "fedprox")
_OF_KEEPER = ("keeper_url", "keeper_certificate", "keeper_client_certificate", "keeper_client_key")
BESIDE_THE_SERVER = "beside the server, for trial"
MOST_KEEPER_SECONDS = 600.0  # For one answer.
VECTORS_PER_ROUND = 2  # That are asked about: of scores, and of contributions.

Mode = Literal["off", "trial", "keeper"]


class MaskingConfig(Settings):
    """Whether the server sees updates, and who keeps the masks if it does not."""

    masking: Mode = setting(
        "off",
        "`keeper`: the server sees no update, and a keeper that somebody else runs has the masks "
        "(`docs/methods/masked-rounds.md`); `trial`: the same with one beside the server, which "
        "protects nobody. For `fedif`, `fedavg` and `fedprox`",
        is_new=True,
    )
    keeper_url: str = setting(
        "",
        'with `masking = "keeper"`: where the keeper answers',
        pattern=r"^(https://\S+)?$",
        allowed="a URL that begins with https://",
        changes_result=False,
    )
    keeper_certificate: str = setting(
        "",
        "with `keeper-url`: path of the keeper's certificate, which alone is trusted",
        changes_result=False,
    )
    keeper_client_certificate: str = setting(
        "",
        "with `keeper-url`: path of the certificate with which this server shows who it is",
        changes_result=False,
    )
    keeper_client_key: str = setting(
        "",
        "with `keeper-url`: path of that certificate's private key",
        changes_result=False,
    )
    keep_vectors: bool = setting(
        False,
        "with `masking`: keep the vectors that the keeper was asked about in `vectors/`, from "
        "which each member recomputes its own scores and contributions with `fedif verify --mine`; "
        "each round takes as much as two models. Their digests are always kept",
        changes_result=False,
    )

    @model_validator(mode="after")
    def _has_a_keeper(self) -> Self:
        needed = self.masking == "keeper"
        for name in _OF_KEEPER:
            if needed != bool(getattr(self, name)):
                words = "needed with" if needed else "empty without"
                raise RefusedValueError(name, f"{words} masking 'keeper'")
        if self.keep_vectors and self.masking == "off":
            raise RefusedValueError("keep_vectors", "false with masking 'off'")
        return self


def refuse_unmaskable(config: RunConfig) -> None:
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
        "neighbour_mixing": (config.neighbour_mixing, f"false {words}"),
        "aggregation": (config.aggregation == "streaming", f"'stacked' or 'auto' {words}"),
        "attribution": (
            config.attribution == "adaptive",
            f"'off', 'trapezoid', 'simpson' or 'gauss2' {words}: one product with each update",
        ),
        "attribution_per_class": (
            config.attribution_per_class,
            f"false {words}: each class takes a product with each update",
        ),
        "server_momentum": (
            bool(config.server_momentum) and config.attribution != "off",
            f"0 {words} and attribution: it takes products with updates of many rounds",
        ),
        "attack": (
            needs_collusion(config),
            f"others {words}: accomplices would have to see each other's updates",
        ),
    }
    for name, (is_refused, allowed) in refused.items():
        if is_refused:
            raise RefusedValueError(name, allowed)


def build_masking(config: RunConfig) -> Masking | None:
    """Return who keeps the masks of a run; ``None``: there are none.

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
