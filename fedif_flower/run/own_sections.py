"""Settings of the library's own parts of a run: a class for each section of the run config."""

from __future__ import annotations

from fedif_flower.attribution.credit import CreditBounds
from fedif_flower.constructors import setting_of
from fedif_flower.settings import (
    Scalar,
    Settings,
    in_section,
    quiet_setting,
    setting,
)
from fedif_flower.strategies.config import PaceSettings
from fedif_flower.valuation.held_out_check import HeldOutCheck, Noise

OFF = (False, 0, "", "off")  # Values that turn a part off: a run without the part accepts them.


class CreditSettings(Settings, alias_generator=in_section("credit")):
    """How contributions are measured, split and bounded, in a run with attribution."""

    length: float = setting_of(CreditBounds, "length")
    borrowed: float = setting_of(CreditBounds, "borrowed")
    weight: float = setting_of(CreditBounds, "weight")
    per_class: bool = quiet_setting(
        False, "contributions are also split by the class of the validation examples"
    )
    class_shift: float = quiet_setting(
        0.11,
        "with `credit.per-class`: how far another mix of the held-out classes may be for intervals "
        "of shares over such mixes, a chi-square distance; at 0.11 one of ten equally frequent "
        "classes is twice as frequent; 0: no such intervals",
        ge=0,
    )
    secret_validation: bool = quiet_setting(
        False,
        "contributions are measured on test examples that the server draws by a secret salt, as "
        "many as the validation split has; nothing weighs by them "
        "(`docs/methods/path-attribution.md`)",
    )

    def bounds(self) -> CreditBounds:
        """Return the bounds of what members are credited with."""
        return CreditBounds(self.length, self.borrowed, self.weight)


class ValidationSettings(Settings, alias_generator=in_section("validation")):
    """What is done about wrong labels in the held-out set."""

    noise: Noise = setting_of(HeldOutCheck, "noise")
    vet: bool = setting_of(HeldOutCheck, "vet")
    seconds: float = setting_of(HeldOutCheck, "seconds")

    def check(self) -> HeldOutCheck:
        """Return how the held-out set is examined and its loss corrected."""
        return HeldOutCheck(self.noise, self.vet, self.seconds)


class QuarantineSettings(Settings, alias_generator=in_section("quarantine")):
    """Whether members that make the model worse are left out for a while."""

    on: bool = setting(
        False,
        "members whose attributed contribution is negative beyond its interval are not drawn for "
        "some of their turns (`docs/methods/quarantine.md`); it needs "
        '`attribution = "simpson"` or `"adaptive"`, and five clients',
    )


class UpdatesSettings(Settings, alias_generator=in_section("updates")):
    """Whether every round's updates are kept, from which the run can be replayed."""

    keep: bool = quiet_setting(
        False,
        "with `attribution`: keep every round's updates in `updates/`, from which `fedif replay` "
        "recomputes weights and who contributed what; each round takes as much as its updates and "
        "two models more, and the log says at the start how much that is; signed replies are kept "
        "as they came as well, which takes as much as their updates again",
    )


OWN_SECTIONS: tuple[type[Settings], ...] = (
    ValidationSettings,
    PaceSettings,
    CreditSettings,
    QuarantineSettings,
    UpdatesSettings,
)


def own_defaults() -> dict[str, Scalar]:
    """Return the defaults of the library's own parts, by run-config key."""
    defaults: dict[str, Scalar] = {}
    for kind in OWN_SECTIONS:
        defaults |= kind.defaults()
    return defaults
