"""Figures for Prometheus, served on a port: they show that a long-running process is alive."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Gauge, start_http_server

from fedif_consortium.address import split_address
from fedif_flower.errors import ConfigError
from fedif_flower.foreign import refused_as

VARIABLE = "FEDIF_HEALTH_ADDRESS"


@contextmanager
def serving(host: str, port: int, registry: CollectorRegistry, *, key: str) -> Iterator[None]:
    """Serve a registry's figures, at any path, until the ``with`` block ends.

    A thread of its own answers the readers, so the process never waits for them.

    Parameters
    ----------
    host : str
        The address to listen on.
    port : int
        From 1 to 65,535.
    registry : CollectorRegistry
        The figures.
    key : str
        The setting that gave the port; error messages begin with it.

    Raises
    ------
    ConfigError
        If the port is taken, or the host is not an address of this machine.
    """
    reason = f"cannot listen on {host}, port {port}; give another port, or end what listens there"
    with refused_as(ConfigError, f"{key}: {reason}"):
        server, thread = start_http_server(port, addr=host, registry=registry)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def serving_health(
    part: str,
    address: str,
    figures: Mapping[str, Callable[[], float]] | None = None,
    *,
    key: str = VARIABLE,
) -> Iterator[None]:
    """Serve ``fedif_up`` and further figures until the ``with`` block ends.

    A monitor that gets an answer knows that the process is alive.

    Parameters
    ----------
    part : str
        What the process is, the label of ``fedif_up``: ``"keeper"`` or ``"superlink"``.
    address : str
        ``HOST:PORT``; empty: nothing is served.
    figures : mapping of str to callable, optional
        Functions that return further figures, by name; each is called whenever the figures are
        read.
    key : str
        The setting that gave the address; error messages name it.

    Raises
    ------
    ConfigError
        If ``address`` is not ``HOST:PORT``, its port is taken, or its host is not an address of
        this machine.
    """
    if not address:
        yield
        return
    host, port = split_address(address, key)
    registry = CollectorRegistry()
    up = Gauge("up", "It is alive", ["part"], namespace="fedif", registry=registry)
    up.labels(part).set(1)
    for name, figure in (figures or {}).items():
        words = name.replace("_", " ").capitalize()
        gauge = Gauge(name, words, namespace="fedif", registry=registry)
        gauge.set_function(figure)
    with serving(host, port, registry, key=key):
        yield
