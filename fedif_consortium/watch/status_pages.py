"""A few pages of text over HTTP for probes and scrapes, from a thread that nothing waits for.

Whoever connects gets one page on a connection that is open for :data:`SECONDS` at most, whatever it
sends or leaves unread. There is neither TLS nor a password: the address decides who reads.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from importlib.metadata import PackageNotFoundError, version
from threading import Event, Thread
from typing import Self

from fedif_flower.errors import ConfigError

SECONDS = 5.0  # From connecting to the last byte taken.
MOST_AT_ONCE = 16  # Connections; more are closed at once.
MOST_HEADER = 8 * 1024  # Bytes.
OK = "ok"

Page = Callable[[], tuple[int, str, bytes]]  # Returns status, type and body.
logger = logging.getLogger(__name__)


class StatusServer:
    """Serves pages while it is entered; its port is taken when it is made.

    Parameters
    ----------
    host : str
        The address to listen on.
    port : int
        0: any that is free.
    pages : mapping of str to callable
        By path. A page that raises is answered with status 500.
    key : str
        The setting that names the port, for errors.

    Attributes
    ----------
    address : str
        ``HOST:PORT``.

    Raises
    ------
    ConfigError
        If the port is taken, or the host is not an address of this machine.
    """

    def __init__(self, host: str, port: int, pages: Mapping[str, Page], *, key: str) -> None:
        self._pages = pages
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._socket = socket.create_server((host, port), family=family)
        except (OSError, OverflowError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise ConfigError(
                f"{key}: cannot listen on {_address(host, port)}: {reason}; give another port, "
                "or end what listens there"
            ) from error
        self.address = _address(host, self._socket.getsockname()[1])
        self._key = key
        self._open = 0
        self._ready = Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._error: OSError | None = None
        self._thread = Thread(target=self._run, name="status-pages", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        if self._loop is None:
            raise ConfigError(f"{self._key}: {self.address} cannot be served: {self._error}")
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(SECONDS)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except OSError as error:  # Too few descriptors, say.
            self._error = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._answer, sock=self._socket, limit=MOST_HEADER)
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._ready.set()
        await self._stop.wait()
        server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open > MOST_AT_ONCE:
                return
            async with asyncio.timeout(SECONDS):
                header = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._response(header))
                writer.close()  # Once all of it is taken.
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            self._open -= 1
            writer.transport.abort()

    def _response(self, header: bytes) -> bytes:
        status, kind, body = self._page(header)
        lines = [
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
            f"Content-Type: {kind}",
            f"Content-Length: {len(body)}",
            "Cache-Control: no-store",
            "X-Content-Type-Options: nosniff",
            "Connection: close",
        ]
        return "\r\n".join([*lines, "", ""]).encode() + body

    def _page(self, header: bytes) -> tuple[int, str, bytes]:
        method, _, rest = header.decode("latin-1").partition(" ")
        path = rest.split(" ", 1)[0].partition("?")[0]
        if method != "GET":
            return _text(HTTPStatus.METHOD_NOT_ALLOWED, "Only GET.")
        if path not in self._pages:
            return _text(HTTPStatus.NOT_FOUND, f"There is {' and '.join(self._pages)}.")
        try:
            return self._pages[path]()
        except Exception as error:  # A page that fails must not end the others.
            logger.warning("%s: %r", path, error)
            return _text(HTTPStatus.INTERNAL_SERVER_ERROR, type(error).__name__)


def health_page(part: str, state: Callable[[], Mapping[str, object]] = dict) -> Page:
    """Return a page that says in JSON how a part of the federation is.

    Its keys are ``status`` (``"ok"``, unless ``state`` has another), ``part``, ``since`` (UTC),
    ``version`` and those of ``state``. Its HTTP status is 200 where ``status`` is ``"ok"``, else
    503.

    Parameters
    ----------
    part : str
        What the part is called: ``"server"``, ``"keeper"`` ...
    state : callable, optional
        Returns what else there is to say now.
    """
    fixed = {
        "status": OK,
        "part": part,
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": package_version(),
    }

    def page() -> tuple[int, str, bytes]:
        content = {**fixed, **state()}
        healthy = content["status"] == OK
        status = HTTPStatus.OK if healthy else HTTPStatus.SERVICE_UNAVAILABLE
        return status, "application/json", json.dumps(content).encode() + b"\n"

    return page


def package_version() -> str:
    """Return this package's version; empty where it came with an app and is not installed."""
    try:
        return version("fedif-flower")
    except PackageNotFoundError:
        return ""


def _text(status: int, words: str) -> tuple[int, str, bytes]:
    return status, "text/plain; charset=utf-8", f"{words}\n".encode()


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
