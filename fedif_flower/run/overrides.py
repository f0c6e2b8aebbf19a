"""Settings given on a command line: ``KEY=VALUE ...``, as ``flwr run --run-config`` reads them."""

from __future__ import annotations

import re
import tomllib

from fedif_flower.errors import ConfigError
from fedif_flower.settings import Scalar


def parse_overrides(text: str) -> dict[str, Scalar]:
    """Parse ``KEY=VALUE ...`` as ``flwr run --run-config`` does, but refuse what it would skip.

    Raises
    ------
    ConfigError
        If the text is not a list of pairs, strings being quoted.
    """
    pair = re.compile(r"""\s*([\w.-]+)=("[^"]*"|'[^']*'|[^\s"']\S*)(?=\s|$)""")
    values: dict[str, Scalar] = {}
    position, text = 0, text.strip()
    while position < len(text):
        match = pair.match(text, position)
        if match is None:
            raise ConfigError(
                f"cannot read {text[position:].strip()!r}; expected KEY=VALUE pairs separated by "
                "spaces, strings in quotes: 'num-server-rounds=5 strategy=\"fedif\"'"
            )
        try:
            values[match[1]] = tomllib.loads(f"value = {match[2]}")["value"]
        except tomllib.TOMLDecodeError:
            raise ConfigError(
                f"{match[1]} = {match[2]}: not a number or true/false; strings need quotes"
            ) from None
        position = match.end()
    return values
