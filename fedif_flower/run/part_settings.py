"""The sections of the library's own parts; a run config has them, whatever parts read it."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from fedif_flower.settings import RefusedValueError, Settings, in_section, quiet_setting, setting
from fedif_flower.strategies.config import PaceSettings
from fedif_flower.valuation.credit import CreditBounds


class CreditSettings(Settings, alias_generator=in_section("credit")):
    """What members are credited for, where a run is attributed."""

    length: float = quiet_setting(
        1.25,
        "an update is credited for at most so many times the usual length of one from as many "
        "examples; 0: no such bound (`docs/methods/path-attribution.md`)",
        ge=0,
    )
    borrowed: float = quiet_setting(
        1.6,
        "what an update holds of the last three global steps is credited for at most so many times "
        "what is usual beside what is the member's own; 0: no such bound",
        ge=0,
    )
    weight: float = quiet_setting(
        2.0,
        "a member is credited for at most so many times the share of the examples that the median "
        "member has; 0: no such bound",
        ge=0,
    )
    per_class: bool = quiet_setting(
        False, "contributions are also split by the class of the validation examples"
    )
    secret_validation: bool = quiet_setting(
        False,
        "contributions are measured on test examples that the server draws by a secret salt, as "
        "many as the validation split has; nothing weighs by them "
        "(`docs/methods/path-attribution.md`)",
    )

    @model_validator(mode="after")
    def _can_bound(self) -> Self:
        for name in ("length", "borrowed", "weight"):
            if 0 < getattr(self, name) < 1:
                raise RefusedValueError(name, "0 (no bound) or a number >= 1")
        return self

    def bounds(self) -> CreditBounds:
        """Return the bounds of credit."""
        return CreditBounds(self.length, self.borrowed, self.weight)


class QuarantineSettings(Settings, alias_generator=in_section("quarantine")):
    """Whether members who harm are left out for a while."""

    on: bool = setting(
        False,
        "members whose attributed contribution is negative beyond its interval are not drawn for "
        "some of their turns (`docs/methods/quarantine.md`); it needs "
        '`attribution = "simpson"` or `"adaptive"`',
    )


class UpdatesSettings(Settings, alias_generator=in_section("updates")):
    """Whether what a replay needs is kept."""

    keep: bool = quiet_setting(
        False,
        "with `attribution`: keep every round's updates in `updates/`, from which `fedif replay` "
        "recomputes who contributed what; each round takes as much as its updates and two models "
        "more, and the log says at the start how much that is; signed replies are kept as they "
        "came as well, which takes as much as their updates again",
    )


OWN_SECTIONS: tuple[type[Settings], ...] = (
    PaceSettings,
    CreditSettings,
    QuarantineSettings,
    UpdatesSettings,
)
