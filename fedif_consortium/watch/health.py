"""``/health`` of a process that runs for a long time, on a port of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from fedif_consortium.watch.status_pages import StatusServer, health_page
from fedif_flower.errors import require

VARIABLE = "FEDIF_HEALTH_ADDRESS"


@contextmanager
def serving_health(
    part: str,
    address: str,
    state: Callable[[], Mapping[str, object]] = dict,
    *,
    key: str = VARIABLE,
) -> Iterator[None]:
    """Serve ``/health`` while this is entered.

    Parameters
    ----------
    part : str
        What the process is: ``"keeper"``, ``"superlink"``, ``"node"``.
    address : str
        ``HOST:PORT``; empty: it is not served.
    state : callable, optional
        Returns what :func:`~fedif_consortium.watch.status_pages.health_page` takes.
    key : str
        What set the address, for errors.

    Raises
    ------
    ConfigError
        If the address is none, or is taken.
    """
    if not address:
        yield
        return
    host, _, port = address.rpartition(":")
    is_address = bool(host) and port.isdecimal() and int(port) < 2**16
    require(is_address, key, address, "HOST:PORT, such as 127.0.0.1:9096")
    pages = {"/health": health_page(part, state)}
    with StatusServer(host.strip("[]"), int(port), pages, key=key):
        yield
