"""The keeper as a service: HTTPS for one client, the federation's server.

The server shows its certificate during the handshake of TLS; the keeper's file pins it. Nobody else
gets as far as a request. A request states its length, which has a bound, before it is read. The
keeper works on one after the other, so that the memory of all is the memory of one: O(d), whatever
the number of members.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from typing import cast

import uvicorn
from anyio import to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from fedif_consortium.health import serving_health
from fedif_consortium.masking.boxes import MOST_BYTES
from fedif_consortium.masking.interface import RoundBoxes
from fedif_consortium.masking.keeper import MOST_MEMBERS, Keeper
from fedif_consortium.masking.keeper_config import KeeperConfig, KeeperSettings
from fedif_consortium.masking.keeper_store import KeeperStore
from fedif_consortium.masking.ring import to_bytes, to_ring
from fedif_flower.errors import ConfigError, FedIFError, KeeperError, RefusedByPolicyError
from fedif_flower.foreign import refused_as

logger = logging.getLogger(__name__)
MAX_HEADER_BYTES = 16 * 1024
HEALTH = "health-address"
MOST_BOXES = 2 * MOST_BYTES * MOST_MEMBERS  # In JSON.


def keeper_app(keeper: Keeper) -> Starlette:
    """Return an application that lets a keeper answer, one request at a time."""
    turn = asyncio.Lock()

    async def policy(_: Request) -> Response:
        return JSONResponse(keeper.policy().to_mapping())

    async def ask(request: Request) -> Response:
        most = max(MOST_BOXES, 8 * keeper.length * keeper.policy().vectors)
        # The parser cuts a body at its stated length, if nothing else frames it.
        length = request.headers.get("content-length", "")
        if not length.isdecimal() or int(length) > most:
            raise KeeperError(f"a request states its length, here at most {most} bytes")
        body, where = await request.body(), request.path_params
        async with turn:
            answer = await to_thread.run_sync(
                answered, keeper, where["asked"], where["run"], where["server_round"], body
            )
        return Response(answer)

    async def refused(_: Request, error: Exception) -> Response:
        status = 403 if isinstance(error, RefusedByPolicyError) else 409
        if not isinstance(error, KeeperError):
            logger.error("The keeper cannot answer: %s", error)
            status = 500
        return PlainTextResponse(str(error), status, headers={"connection": "close"})

    path = "/{asked}/{run:int}/{server_round:int}"
    routes = [Route("/policy", policy), Route(path, ask, methods=["POST"])]
    return Starlette(routes=routes, exception_handlers={FedIFError: refused})


def answered(keeper: Keeper, asked: str, run: int, server_round: int, body: bytes) -> bytes:
    """Return a keeper's answer as it travels.

    Raises
    ------
    KeeperError
        If the keeper refuses, or the request is none.
    """
    with refused_as(KeeperError, "the request is not readable"):
        if asked == "open":
            given = RoundBoxes.model_validate_json(body)
            opened = keeper.open_round(run, server_round, given.length, given.boxes)
            return opened.model_dump_json().encode()
        if asked == "products":
            vectors = to_ring(body).reshape(-1, keeper.length)
            return to_bytes(keeper.products(run, server_round, vectors))
        if asked == "sum":
            return to_bytes(keeper.weighted_sum(run, server_round, to_ring(body)))
        if asked == "close":
            return keeper.close_round(run, server_round).encode()
    raise KeeperError("there is no such request")


def keeper_server(app: Starlette, settings: KeeperSettings) -> tuple[uvicorn.Server, socket.socket]:
    """Return a server of a keeper, for whoever has the certificate of its one client.

    Raises
    ------
    ConfigError
        If a certificate cannot be used, or the address is not free.
    """
    host, _, port = settings.address.rpartition(":")
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        loop="asyncio",
        proxy_headers=False,
        access_log=False,
        log_level="warning",
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        ssl_certfile=settings.certificate,
        ssl_keyfile=settings.certificate_key,
        ssl_ca_certs=settings.server_certificate,
        ssl_cert_reqs=ssl.CERT_REQUIRED,
    )
    try:
        config.load()
        tls = cast(ssl.SSLContext, config.ssl)
        tls.minimum_version = ssl.TLSVersion.TLSv1_3
        # The certificate itself is trusted, not whoever else its authority certifies.
        tls.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    except OSError as error:  # SSLError is one, and says nothing of the file.
        raise ConfigError(
            f"certificate = {settings.certificate!r}, certificate-key = "
            f"{settings.certificate_key!r} or server-certificate = "
            f"{settings.server_certificate!r} cannot be used: {error}"
        ) from error
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host.strip("[]"), int(port)), family=family)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"address = {settings.address!r}: {error}") from error
    return uvicorn.Server(config), listening


def serve(config: KeeperConfig) -> None:
    """Serve a keeper until the process is told to end.

    Raises
    ------
    FedIFError
        If it cannot begin.
    """
    store = KeeperStore(config.settings.folder)
    with store.held():
        keeper = store.keeper(config.policy, config.members)
        server, listening = keeper_server(keeper_app(keeper), config.settings)
        host, port = listening.getsockname()[:2]
        logger.info(
            "The keeper of masks listens on %s:%d, for %d members.", host, port, len(config.members)
        )
        logger.info("Members' keeper-key: %s", store.public.read_text().strip())
        logger.info("The log's last hash: %s", keeper.log.head)
        with serving_health("keeper", config.settings.health_address, key=HEALTH):
            server.run(sockets=[listening])
