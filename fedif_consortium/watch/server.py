"""Serves the page of a run to one operator: reads the run's folder, and nothing else."""

from __future__ import annotations

import ipaddress
import logging
import re
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio.to_thread
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from fedif_consortium.watch.page import policy, render
from fedif_consortium.watch.reader import RunReader
from fedif_consortium.watch.state import Watched
from fedif_flower.errors import ConfigError
from fedif_flower.run.folder import RunFolder

LOOPBACK = "127.0.0.1"
MOST_CONNECTIONS = 64
# What the page and the statement link to. Pages there run no script.
_FILES = re.compile(r"report\.md|statement/(members/)?[\w-]+\.(html|csv|json)")
_OF_FILES = "default-src 'none'; style-src 'unsafe-inline'; sandbox"
_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
logger = logging.getLogger(__name__)


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class WatchServer:
    """The page of a run at an address.

    Parameters
    ----------
    folder : RunFolder
        Of the run; it need not have begun.
    host : str
        The address to listen on. Where other machines reach it, a token is asked for.
    port : int
        0: any that is free.
    guarded : bool
        Ask for a token on this machine as well: behind a web server everybody comes from here.

    Attributes
    ----------
    token : str
        What a browser must show once; empty: it is asked for nothing.
    url : str
        Where the page is, with the token.

    Raises
    ------
    ConfigError
        If the address cannot be listened on.
    """

    def __init__(
        self, folder: RunFolder, host: str = LOOPBACK, port: int = 0, *, guarded: bool = False
    ) -> None:
        self.folder = folder
        self.token = secrets.token_urlsafe(32) if guarded or not is_loopback(host) else ""
        self._reader = RunReader(folder)
        self._turn = threading.Lock()
        self._socket = _listening(host, port)
        self.port: int = self._socket.getsockname()[1]
        self._cookie = f"fedif-watch-{self.port}"  # Cookies know no ports.
        named = f"[{host}]" if ":" in host else host
        self.url = f"http://{named}:{self.port}/{f'?token={self.token}' if self.token else ''}"
        self.app = Starlette(
            routes=[Route("/", self._page), Route("/{path:path}", self._file)],
        )
        self._server = uvicorn.Server(
            uvicorn.Config(
                self.app,
                access_log=False,
                lifespan="off",
                limit_concurrency=MOST_CONNECTIONS,
                log_level="warning",
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=1,
                ws="none",
            )
        )

    def serve(self) -> None:
        """Serve until the process is told to end."""
        self._server.run(sockets=[self._socket])

    @contextmanager
    def in_background(self) -> Iterator[None]:
        """Serve beside what else this process does."""
        thread = threading.Thread(target=self.serve, name="watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._server.should_exit = True
            thread.join()

    async def _page(self, request: Request) -> Response:
        if (refused := self._refusal(request)) is not None:
            return refused
        if self.token and "token" in request.query_params:
            # From here on the cookie says it: an address is copied, and stands in histories.
            answer = RedirectResponse("/", 303, headers=_HEADERS)
            safe = request.headers.get("x-forwarded-proto") == "https"
            answer.set_cookie(self._cookie, self.token, httponly=True, samesite="lax", secure=safe)
            return answer
        try:
            text = await anyio.to_thread.run_sync(self._rendered)
        except ConfigError as error:
            return PlainTextResponse(f"The records cannot be read: {error}", 500, headers=_HEADERS)
        rules = f"{policy(served=True)}; frame-ancestors 'none'"
        headers = {**_HEADERS, "Content-Security-Policy": rules}
        return Response(text, headers=headers, media_type="text/html")

    def _rendered(self) -> str:
        with self._turn:
            return render(Watched(self._reader.read(), time.time()), served=True)

    async def _file(self, request: Request) -> Response:
        if (refused := self._refusal(request)) is not None:
            return refused
        path = self._linked(request.path_params["path"])
        if path is None:
            return PlainTextResponse("There is no such page.", 404, headers=_HEADERS)
        headers = {**_HEADERS, "Content-Security-Policy": _OF_FILES}
        plain = path.suffix in (".md", ".csv", ".json")
        return FileResponse(path, headers=headers, media_type="text/plain" if plain else None)

    def _linked(self, name: str) -> Path | None:
        """Return the file of this name, if it is one that pages link to."""
        if not _FILES.fullmatch(name):
            return None
        path = (self.folder.path / name).resolve()  # A link may lead out of the folder.
        inside = path.is_relative_to(self.folder.path.resolve())
        return path if inside and path.is_file() else None

    def _refusal(self, request: Request) -> Response | None:
        """Return the answer to whoever may not see the run; ``None``: this one may."""
        if self.token:
            shown = request.query_params.get("token") or request.cookies.get(self._cookie, "")
            if not secrets.compare_digest(shown.encode(), self.token.encode()):
                words = "Open the address with the token that `fedif watch` printed."
                return PlainTextResponse(words, 401, headers=_HEADERS)
        # Else a page elsewhere could let its own name stand for this machine, and read this one.
        elif not is_loopback(request.url.hostname or ""):
            words = "Open this page by the address that `fedif watch` printed."
            return PlainTextResponse(words, 403, headers=_HEADERS)
        return None


def _listening(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot listen on {host}, port {port}: {error}") from error
