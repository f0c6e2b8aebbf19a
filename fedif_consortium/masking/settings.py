"""The settings of masked runs, in which the server sees no update."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from fedif_flower.settings import RefusedValueError, Settings, in_section, setting

_OF_KEEPER = ("keeper_url", "keeper_certificate", "client_certificate", "client_key")
Mode = Literal["off", "trial", "keeper"]


class MaskingSettings(Settings, alias_generator=in_section("masking")):
    """Whether the server sees updates, and who keeps the masks if it does not."""

    mode: Mode = setting(
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
        needed = self.mode == "keeper"
        for name in _OF_KEEPER:
            if needed != bool(getattr(self, name)):
                words = "needed with" if needed else "empty without"
                raise RefusedValueError(name, f"{words} mode 'keeper'")
        return self
