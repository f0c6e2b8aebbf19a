"""Masked runs: their settings, and who keeps the masks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

from pydantic import model_validator

from fedif_flower.messages.masked_rounds import Masking
from fedif_flower.messages.trial_keeper import trial_masking
from fedif_flower.run.collusion import needs_collusion
from fedif_flower.settings import RefusedValueError, Settings, setting
from fedif_flower.strategies.registry import STRATEGIES

if TYPE_CHECKING:
    from fedif_flower.run.config import RunConfig

# Built-in strategies whose weights need products, lengths and examples alone.
MASKABLE = ("fedif", "fedavg", "fedprox")
BESIDE_THE_SERVER = "beside the server, for trial"
VECTORS_PER_ROUND = 2  # That are asked about: of scores, and of contributions.

Mode = Literal["off", "trial", "keeper"]


class MaskingConfig(Settings):
    """Whether the server sees updates, and who keeps the masks if it does not."""

    masking: Mode = setting(
        "off",
        "`keeper`: the server sees no update, and a keeper that somebody else runs has the masks "
        "(`docs/methods/masking.md`); `trial`: the same with a keeper beside the server, which "
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
    keeper_ca: str = setting(
        "",
        "path of the certificate that has signed the keeper's; empty: those of this system",
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
        if (self.masking == "keeper") != bool(self.keeper_url):
            allowed = "a URL with masking 'keeper'" if self.masking == "keeper" else "empty without"
            raise RefusedValueError("keeper_url", allowed)
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
    """Return who keeps the masks of a run; ``None``: there are none."""
    return trial_masking() if config.masking == "trial" else None


def keeper_title(config: RunConfig) -> str:
    """Return what records call who keeps the masks."""
    return config.keeper_url or BESIDE_THE_SERVER
