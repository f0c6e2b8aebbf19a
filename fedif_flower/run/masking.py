"""Masked runs: their settings, and who keeps the masks."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from fedif_flower.settings import RefusedValueError, Settings, setting

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
        "with `masking = \"keeper\"`: where the keeper answers",
        pattern=r"^(https://\S+)?$",
        allowed="a URL that begins with https://",
        changes_result=False,
    )
    keeper_ca: str = setting(
        "",
        "path of the certificate that has signed the keeper's; empty: those of this system",
        changes_result=False,
    )

    @model_validator(mode="after")
    def _has_a_keeper(self) -> Self:
        if (self.masking == "keeper") != bool(self.keeper_url):
            allowed = "a URL with masking 'keeper'" if self.masking == "keeper" else "empty without"
            raise RefusedValueError("keeper_url", allowed)
        return self
