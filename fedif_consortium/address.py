"""Network addresses as people write them: ``HOST:PORT``, with IPv6 addresses in brackets."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator

from fedif_flower.errors import ConfigError
from fedif_flower.settings import setting

_ALLOWED = "HOST:PORT, such as 127.0.0.1:9096 or [::1]:9096"
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]+):([0-9]{1,5})")


def split_address(address: str, key: str = "address") -> tuple[str, int]:
    """Return the host, without brackets, and the port of an address.

    Raises
    ------
    ConfigError
        If ``address`` is not ``HOST:PORT``; the message names ``key``.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None or int(match[2]) >= 2**16:
        raise ConfigError(f"{key} = {address!r}; allowed: {_ALLOWED}")
    return match[1].strip("[]"), int(match[2])


def joined_address(host: str, port: int) -> str:
    """Return ``HOST:PORT``; the brackets of an IPv6 address are added."""
    if ":" in host:
        return f"[{host}]:{port}"
    return f"{host}:{port}"


def _normal(address: str) -> str:
    """Return an address in the form that :func:`joined_address` gives it."""
    host, port = split_address(address)
    return joined_address(host, port)


Address = Annotated[str, AfterValidator(_normal)]


def an_address(words: str, default: Any = ...) -> Any:
    """Declare a setting of the type :data:`Address`; ``words`` describe it."""
    return setting(default, words, allowed=_ALLOWED)
