"""The settings of the statement that a deployed run makes at its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from fedif_flower.messages.text import UNSHOWN
from fedif_flower.sections import section_name
from fedif_flower.settings import Settings, in_section, setting

PayBy = Literal["sum", "draw"]
Ties = Literal["apart", "alike"]
AMOUNT = r"^([0-9]{1,12}(\.[0-9]{1,2})?)?$"
CONTACT = rf"^[^{UNSHOWN}]{{0,200}}$"
CLIPPING = 2.0  # What update-clipping = auto is in a run that pays, whatever its strategy.
RELATIVE = "influence-descent.relative"
TERMS_OF_PAY = ("statement.budget", "statement.pay-by", "statement.ties")
# How records name influence descent: by its registered name, or by its class's name.
_DESCENT = ("influence-descent", "InfluenceDescent")


def weighs_by_length(config: Mapping[str, Any]) -> bool:
    """Return whether a run's settings gave longer updates more weight."""
    name = section_name(str(config.get("strategy", "")))
    return name in _DESCENT and not config.get(f"{name}.relative", False)


class StatementSettings(Settings, alias_generator=in_section("statement")):
    """The terms of a statement: what is shared out and how, and whom members may ask."""

    budget: str = setting(
        "",
        "with `attribution`: what the statement at the end of a deployed run shares out, such as "
        "`1000` or `1000.50`; "
        f"empty: it states shares alone. With a budget, `update-clipping = auto` is {CLIPPING:g} "
        f"for every strategy that can be attributed, and `{RELATIVE} = auto` is `true`",
        pattern=AMOUNT,
        allowed="an amount such as '1000' or '1000.50'",
        changes_result=False,
    )
    contact: str = setting(
        "",
        "whom members may ask about the statement; its pages name this person",
        pattern=CONTACT,
        allowed="at most 200 printable characters",
        changes_result=False,
    )
    pay_by: Literal["", PayBy] = setting(
        "",
        "with `attribution`: what shares are of: the `sum` over all rounds (also if empty), so "
        "that being drawn often pays, or the mean per `draw`, so that who is there for a few good "
        "rounds is paid as for all",
        changes_result=False,
    )
    ties: Literal["", Ties] = setting(
        "",
        "with `attribution`: `alike`: members that the held-out set (and the draw) cannot tell "
        "apart share equally",
        changes_result=False,
    )

    def with_options(self, **options: str | None) -> StatementSettings:
        """Return the terms with some replaced by options; an empty option replaces nothing."""
        chosen = {name: value for name, value in options.items() if value}
        return self.model_copy(update=chosen)
