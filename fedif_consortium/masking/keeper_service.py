"""The keeper as a service: HTTPS for one client, the federation's server.

The server shows its certificate during the handshake of TLS; the keeper's file pins it. Nobody else
gets as far as a request. A body is JSON or the ring's numbers of 8 bytes, little-endian, and states
its length, which has a bound, before it is read. One request is served after the other, until its
answer is taken, so that the memory of all is the memory of one: O(d), whatever the number of
members.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import socket
import ssl
from typing import Any

import anyio.to_thread
import numpy as np
import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from fedif_consortium.health import serving_health
from fedif_consortium.masking import Keeper, Ring
from fedif_consortium.masking.boxes import MOST_BYTES
from fedif_consortium.masking.keeper import MOST_MEMBERS
from fedif_consortium.masking.keeper_config import KeeperConfig, KeeperSettings
from fedif_consortium.masking.keeper_store import KeeperStore
from fedif_flower.errors import ConfigError, FedIFError, KeeperError, RefusedByPolicyError

logger = logging.getLogger(__name__)
MAX_HEADER_BYTES = 16 * 1024
HEALTH = "health-address"
FORGET_SECONDS = 60  # Between looks for rounds that are too old.
MOST_BOX_TEXT = 2 * MOST_BYTES + 64  # A box and its node in JSON.
REQUEST_SECONDS = 600.0  # For a request to be whole and its answer to be taken.
_PATH = re.compile(r"/(open|sketches|products|sum|close)/(\d{1,20})/(\d{1,10})")


class KeeperService:
    """Serves a keeper; an ASGI application.

    Parameters
    ----------
    keeper : Keeper
        Answers, one request at a time.
    """

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._turn = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        async with self._turn:
            with contextlib.suppress(ClientDisconnect, TimeoutError):
                async with asyncio.timeout(REQUEST_SECONDS):
                    response = await self._respond(Request(scope, receive))
                    await response(scope, receive, send)

    async def forget_old(self) -> None:
        """Delete the seeds of rounds that are too old."""
        async with self._turn:
            await anyio.to_thread.run_sync(self._keeper.forget_old)

    async def _respond(self, request: Request) -> Response:
        if (request.method, request.url.path) == ("GET", "/policy"):
            return JSONResponse(self._keeper.policy().to_mapping())
        found = _PATH.fullmatch(request.url.path)
        if request.method != "POST" or found is None:
            return _refused(404, "there is no such request")
        asked, run, server_round = found[1], int(found[2]), int(found[3])
        try:
            most = self._most_bytes(asked, run, server_round)
            # The parser cuts a body at its stated length, if nothing else frames it.
            length = request.headers.get("content-length", "")
            framed = "transfer-encoding" in request.headers
            if framed or not length.isdecimal() or int(length) > most:
                return _refused(413, f"a request states its length, here at most {most} bytes")
            body = await request.body()
            answer = await anyio.to_thread.run_sync(
                lambda: self._answer(asked, run, server_round, body)
            )
        except RefusedByPolicyError as error:
            return _refused(403, str(error))
        except KeeperError as error:
            return _refused(409, str(error))
        except FedIFError as error:
            logger.error("The keeper cannot answer: %s", error)
            return _refused(500, str(error))
        return JSONResponse(answer) if isinstance(answer, dict) else Response(answer)

    def _most_bytes(self, asked: str, run: int, server_round: int) -> int:
        """Return how long a request's body may be."""
        policy = self._keeper.policy()
        if asked == "open":
            return MOST_BOX_TEXT * (MOST_MEMBERS + 1)
        if asked in ("products", "sum"):
            members, length = self._keeper.shape(run, server_round)
            return 8 * (members if asked == "sum" else length * policy.vectors)
        return 0

    def _answer(
        self, asked: str, run: int, server_round: int, body: bytes
    ) -> bytes | dict[str, Any]:
        """Let the keeper answer; in a thread."""
        if asked == "open":
            opened = self._keeper.open_round(run, server_round, *_boxes(body))
            refused = list(opened.refused.items())
            return {"nodes": opened.nodes, "members": opened.members, "refused": refused}
        if asked == "sketches":
            sketches = self._keeper.sketches(run, server_round)
            return sketches.seed + _bytes(sketches.values)
        if asked == "close":
            return {"log": self._keeper.close_round(run, server_round)}
        members, length = self._keeper.shape(run, server_round)
        row = members if asked == "sum" else length
        if not body or len(body) % (8 * row):
            raise KeeperError(f"{len(body)} bytes are no rows of {row} numbers")
        numbers = np.frombuffer(body, "<u8").astype(np.uint64, copy=False)
        if asked == "sum":
            return _bytes(self._keeper.weighted_sum(run, server_round, numbers))
        return _bytes(self._keeper.products(run, server_round, numbers.reshape(-1, length)))


def keeper_server(
    service: KeeperService, settings: KeeperSettings
) -> tuple[uvicorn.Server, socket.socket]:
    """Return a server of a keeper, for whoever has the certificate of its one client.

    Raises
    ------
    ConfigError
        If a certificate cannot be used, or the address is not free.
    """
    host, _, port = settings.address.rpartition(":")
    config = uvicorn.Config(
        service,
        host=host.strip("[]"),
        port=int(port),
        http="h11",
        ws="none",
        lifespan="off",
        loop="asyncio",
        proxy_headers=False,
        access_log=False,
        log_level="warning",
        callback_notify=service.forget_old,
        timeout_notify=FORGET_SECONDS,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
    )
    config.load()
    config.ssl = _tls(settings)
    return uvicorn.Server(config), _bound(config)


def serve(config: KeeperConfig) -> None:
    """Serve a keeper until the process is told to end.

    Raises
    ------
    FedIFError
        If it cannot begin.
    """
    store = KeeperStore(config.settings.folder)
    with store.held():
        key, log = store.key(), store.log()
        keeper = Keeper(
            config.policy, config.members, key, state=store.load(), save=store.save, log=log
        )
        service = KeeperService(keeper)
        server, listening = keeper_server(service, config.settings)
        address = f"{listening.getsockname()[0]}:{listening.getsockname()[1]}"
        logger.info(
            "The keeper of masks listens on %s, for %d members.", address, len(config.members)
        )
        logger.info("Members' keeper-key: %s", key.public_key().public_bytes_raw().hex())
        logger.info("The log's last hash: %s", log.head)
        with serving_health("keeper", config.settings.health_address, key=HEALTH):
            server.run(sockets=[listening])


def _tls(settings: KeeperSettings) -> ssl.SSLContext:
    """Return a context that lets in whoever has the server's certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    # The certificate itself is trusted, not whoever else its authority certifies.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    files = settings.certificate, settings.certificate_key
    try:
        context.load_cert_chain(*files)
        context.load_verify_locations(settings.server_certificate)
    except (OSError, ssl.SSLError) as error:  # SSLError says nothing of the file.
        raise ConfigError(
            f"certificate = {files[0]!r}, certificate-key = {files[1]!r} or server-certificate = "
            f"{settings.server_certificate!r} cannot be used: {error}"
        ) from error
    return context


def _bound(config: uvicorn.Config) -> socket.socket:
    """Return a socket at the configured address."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((config.host, config.port))
    except (OSError, OverflowError) as error:
        listening.close()
        raise ConfigError(f"address = '{config.host}:{config.port}': {error}") from error
    return listening


def _boxes(body: bytes) -> tuple[int, dict[int, bytes]]:
    """Return d and the boxes by node id."""
    try:
        content = json.loads(body)
        boxes = {int(node): bytes.fromhex(box) for node, box in content["boxes"].items()}
        return int(content["length"]), boxes
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise KeeperError(f"the boxes are not readable: {error!r}") from error


def _bytes(numbers: Ring) -> bytes:
    return numbers.astype("<u8", copy=False).tobytes()


def _refused(status: int, reason: str) -> Response:
    return JSONResponse({"error": reason}, status, headers={"connection": "close"})
