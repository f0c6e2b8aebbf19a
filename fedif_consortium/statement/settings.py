"""The settings of the statement that a deployed run makes at its end."""

from __future__ import annotations

from fedif_flower.settings import Settings, in_section, setting

CLIPPING = 2.0  # Of a run that pays, whatever its strategy.


class StatementSettings(Settings, alias_generator=in_section("statement")):
    """What is shared out, and whom members may ask."""

    budget: str = setting(
        "",
        "what the statement at the end of a deployed run shares out, such as `1000` or `1000.50`; "
        f"empty: it states shares alone. With a budget, `update-clipping = auto` is {CLIPPING:g} "
        "for every strategy that can be attributed",
        pattern=r"^([0-9]{1,12}(\.[0-9]{1,2})?)?$",
        allowed="an amount such as '1000' or '1000.50'",
        changes_result=False,
    )
    contact: str = setting(
        "",
        "whom members may ask about that statement: its pages say it",
        pattern=r"^[^\x00-\x1f\x7f]{0,200}$",
        allowed="at most 200 printable characters",
        changes_result=False,
    )
