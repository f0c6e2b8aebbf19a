"""``flower-superlink`` for a public port: strangers are bounded, members have a rate each.

Flower 1.41 serves everything on one port, and only SuperNodes have to prove who they are. Whoever
reaches that port may also submit a run, that is, execute code on the server and on every node, or
fetch the tasks of a run. Here, everything but the SuperNodes' own part is for this host alone;
operators elsewhere come by an SSH tunnel. A SuperNode's request is read once its signature is
known to be a registered node's. Connections and requests are bounded
(:mod:`~fedif_consortium.superlink.guard_limits`), and what a SuperNode sends is its own
(:mod:`~fedif_consortium.superlink.reply_guard`).
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import anyio
import anyio.to_thread
import uvicorn
from flwr.supercore import sql_mixin
from flwr.supercore.constant import NodeStatus
from flwr.superlink.cli import flower_superlink
from flwr.superlink.servicer.fleet import fleet_handlers
from flwr.superlink.servicer.runtime import runtime_handlers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedif_consortium.superlink.bounded_http import (
    MAX_HEADER_BYTES,
    BoundedProtocol,
    UnboundedParserError,
    bounded_protocol,
    gated,
    is_this_host,
)
from fedif_consortium.superlink.gate import Gate
from fedif_consortium.superlink.guard_limits import GuardLimits
from fedif_consortium.superlink.node_rates import Complaints, NodeRates
from fedif_consortium.superlink.node_requests import (
    COSTS,
    KEY_HEADER,
    OPEN_TO_ALL,
    PATHS,
    PUBLIC_PATH,
    SMALL,
    UnknownSignerError,
    is_plain,
    most_bytes,
    signer,
)
from fedif_consortium.superlink.reply_guard import ReplyGuard
from fedif_consortium.watch.health import VARIABLE, serving_health
from fedif_flower.errors import FedIFError
from fedif_flower.run.logs import show_logs

REFUSED_SECONDS = 1.0  # Before a node hears that it is too fast.
CHECKS_AT_ONCE = 4  # Signatures, in threads of their own.
SERVED_AT_ONCE = 2  # Requests of a node that Flower has; the node's others wait.
ERROR_COST = 4.0  # Of a request that is answered with an error, which is logged, beside its own.


class GuardedApp:
    """Let a request through if it is a node's, bounded and in its turn, or from this host.

    Parameters
    ----------
    app : ASGIApp
        The SuperLink.
    state : Callable
        Returns Flower's link state, which knows the nodes' keys and names.
    rates : NodeRates
        How fast each node may go.
    guard : ReplyGuard
        Knows how long an announcement may be.
    complaints : Complaints
        Is told of every node that is too fast.
    """

    def __init__(
        self,
        app: ASGIApp,
        state: Callable[[], Any],
        rates: NodeRates,
        guard: ReplyGuard,
        complaints: Complaints,
    ) -> None:
        self._app = app
        self._state = state
        self._rates = rates
        self._guard = guard
        self._complaints = complaints
        self._checks: anyio.CapacityLimiter | None = None
        # By registered node, so there is an end to them.
        self._turns = defaultdict[int, asyncio.Semaphore](lambda: asyncio.Semaphore(SERVED_AT_ONCE))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        elif refusal := self._refusal(scope):
            await _refuse(*refusal)(scope, receive, send)
        elif scope["path"].startswith(PUBLIC_PATH):
            await self._serve_node(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Return status and reason if a request's header alone is enough to refuse it."""
        names = [name for name, _ in scope["headers"]]
        if b"transfer-encoding" in names and b"content-length" in names:
            return 400, "A request has one length."
        if not scope["path"].startswith(PUBLIC_PATH):
            if is_this_host(scope.get("client"), scope.get("server")):
                return None
            return 403, "From other hosts, only SuperNodes may connect. Operators: use SSH."
        name = scope["path"].removeprefix(PUBLIC_PATH)
        if name not in PATHS:
            return 404, "There is no such request."
        if scope["method"] != "POST":
            return 405, "A SuperNode's requests are posted."
        # The parser cuts a body at the length that its header states, if nothing else frames it.
        length = dict(scope["headers"]).get(b"content-length", b"")
        most = most_bytes(name, self._guard.announcement_bytes())
        if b"transfer-encoding" in names or not length.isdigit() or int(length) > most:
            return 413, f"A request states its length, at most {most} bytes."
        return None

    async def _serve_node(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request whose length is known to be allowed."""
        name = scope["path"].removeprefix(PUBLIC_PATH)
        headers = dict(scope["headers"])
        length = int(headers[b"content-length"])
        connection: BoundedProtocol = scope["fedif.connection"]
        key = headers.get(KEY_HEADER, b"")
        # Whoever has signed on this connection is still at its other end; Flower checks again.
        node_id: int | None = connection.node_id if key and key == connection.node_key else None
        if node_id is None:
            try:
                node_id = await self._signer(headers)
            except UnknownSignerError:
                if name not in OPEN_TO_ALL or length > SMALL:
                    reason = "Invalid SuperNode authentication"
                    await _refuse(401, reason)(scope, receive, send)
                    return
            else:
                if not connection.prove(key, node_id):
                    self._complain(node_id, "too many connections, of it or of all nodes")
                    await _refuse(503, "Too many connections.")(scope, receive, send)
                    return
        if node_id is not None and not await self._wait(node_id, COSTS.get(name, 1.0), length):
            await _refuse(429, "More than a node may send.")(scope, receive, send)
            return
        body = await _whole(receive)
        if body is None:
            return  # It has gone.
        if not is_plain(name, body):
            refuse = _refuse(400, "This is no request of a SuperNode.")
            await refuse(scope, receive, self._counted(send, node_id))
            return
        async with self._turns[node_id] if node_id is not None else nullcontext():
            await self._app(scope, _replay(body, receive), self._counted(send, node_id))

    async def _signer(self, headers: dict[bytes, bytes]) -> int:
        """Return who signed, looked up in a thread that no request of Flower's waits for."""
        if self._checks is None:
            self._checks = anyio.CapacityLimiter(CHECKS_AT_ONCE)
        return await anyio.to_thread.run_sync(
            lambda: signer(headers, self._state()), limiter=self._checks
        )

    async def _wait(self, node_id: int, cost: float, size: int) -> bool:
        """Wait for a node's turn; return whether it has one."""
        seconds = self._rates.wait(node_id, cost, size)
        if seconds is None:
            self._complain(node_id, "more requests or bytes than it may send; refused with 429")
            await asyncio.sleep(REFUSED_SECONDS)
            return False
        if seconds > 0:
            self._complain(node_id, "more requests or bytes than it may send; slowed down")
            await asyncio.sleep(seconds)
        return True

    def _complain(self, node_id: int, what: str) -> None:
        self._complaints.add(f"node {node_id}", what, self._name)

    def _name(self, subject: str) -> str:
        """Return what the operator calls a node."""
        node_id = int(subject.removeprefix("node "))
        found = self._state().get_node_info(node_ids=[node_id])
        return f"{subject} ({found[0].name})" if found and found[0].name else subject

    def _counted(self, send: Send, node_id: int | None) -> Send:
        """Return ``send`` that charges an answer's bytes, and ends what is a node's no more."""

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start" and (
                node_id is None or message["status"] == 401
            ):
                message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
            if node_id is not None:
                failed = message.get("status", 0) >= 400
                size = len(message.get("body", b""))
                self._rates.charge(node_id, ERROR_COST if failed else 0.0, size)
            await send(message)

        return counted


def _refuse(status: int, reason: str) -> PlainTextResponse:
    return PlainTextResponse(reason, status, headers={"connection": "close"})


async def _whole(receive: Receive) -> bytes | None:
    """Return a request's body once all of it is there, ``None`` if its sender has gone."""
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return ``receive`` that begins with a body."""
    parts = [body]

    async def replay() -> Message:
        if parts:
            return {"type": "http.request", "body": parts.pop(), "more_body": False}
        return await receive()

    return replay


def guarded_server(
    app: Any, limits: GuardLimits, guard: ReplyGuard, **options: Any
) -> tuple[uvicorn.Server, socket.socket]:
    """Return a server that serves a SuperLink as uvicorn would, bounded, and its socket.

    Parameters
    ----------
    app : FastAPI
        The SuperLink.
    limits : GuardLimits
        How much, how many, how fast.
    guard : ReplyGuard
        In front of its handlers.
    **options
        Of ``uvicorn.run``. The parser and what comes from a proxy are decided here.

    Raises
    ------
    FedIFError
        Where there is no parser with a bound, or there are too few descriptors.
    """
    complaints = Complaints()
    gate = Gate(limits, limits.most_node_connections(), complaints)
    rates = NodeRates(limits.node_requests, limits.node_megabytes * 2**20, guard.round_needs)
    guarded = GuardedApp(app, app.state.linkstate_factory.state, rates, guard, complaints)
    if (parser := options.get("http", "auto")) not in ("auto", "h11"):
        raise UnboundedParserError(f"http={parser!r}; allowed: 'h11', the one with a bound")
    config = uvicorn.Config(
        guarded,
        # Proxy headers would let a client name its own address.
        **{**options, "http": "h11", "proxy_headers": False, "ws": "none", "loop": "asyncio"},
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
    )
    config.load()
    # uvicorn gives connections to TLS before anything else sees them: here TLS comes second.
    context, config.ssl = config.ssl, None
    config.http_protocol_class = bounded_protocol(gate, context, limits.request_seconds)
    listening = gated(config.bind_socket(), gate)
    listening.listen(config.backlog)
    return uvicorn.Server(config), listening


def _online(app: Any) -> dict[str, object]:
    """Return how many nodes are online, which shows that the database answers."""
    found = app.state.linkstate_factory.state().get_node_info(statuses=[NodeStatus.ONLINE])
    return {"members-online": len(found)}


def wait_for_database() -> None:
    """Let SQLite wait a minute for a lock: after Flower's 5 s a busy host's error ends a run."""
    pragmas = (*vars(sql_mixin)["SQLITE_PRAGMAS"], ("busy_timeout", "60000"))
    setattr(sql_mixin, "SQLITE_PRAGMAS", pragmas)  # noqa: B010  # a constant of Flower


def main() -> None:
    """Run ``flower-superlink`` with its own arguments, guarded."""
    try:
        show_logs()
        limits = GuardLimits.from_environment(os.environ)
        limits.most_node_connections()
    except FedIFError as error:
        sys.exit(f"error: {error}")
    guard = ReplyGuard(limits.reply_budget)
    guard.install(fleet_handlers, runtime_handlers)
    wait_for_database()

    def run_guarded(app: Any, **options: Any) -> None:
        try:
            server, listening = guarded_server(app, limits, guard, **options)
            with serving_health("superlink", os.environ.get(VARIABLE, ""), lambda: _online(app)):
                server.run(sockets=[listening])
        except FedIFError as error:
            sys.exit(f"error: {error}")
        if not server.started:
            sys.exit(3)  # As uvicorn does.

    # Flower has no hook of its own for this.
    uvicorn.run = run_guarded
    flower_superlink()


if __name__ == "__main__":
    main()
