"""``flower-superlink`` for a public port: other hosts reach the API for SuperNodes only.

Flower 1.41 serves everything on one port, and only SuperNodes have to prove who they are. Whoever
reaches that port may also submit a run, that is, execute code on the server and on every node, or
fetch the tasks of a run. Here, everything but the SuperNodes' own part is for this host alone;
operators elsewhere come by an SSH tunnel. And what a SuperNode sends is bounded, and counts for
itself alone (:mod:`~fedif_flower.runtime.reply_guard`).
"""

from __future__ import annotations

import os
from typing import Any

import uvicorn
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
from flwr.superlink.cli import flower_superlink
from flwr.superlink.servicer.fleet import fleet_handlers
from flwr.superlink.servicer.runtime import runtime_handlers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from fedif_flower.runtime.reply_guard import ReplyGuard

PUBLIC_PATH = "/v1/fleet/"
_LOOPBACK = ("127.0.0.1", "::1")
# A chunk of an array, or the ids of 50,000 objects: nothing that a SuperNode sends is larger.
MAX_REQUEST_BYTES = FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE + 4 * 1024 * 1024


class GuardedApp:
    """Refuse requests from other hosts, except to the API for SuperNodes.

    Parameters
    ----------
    app : ASGIApp
        The SuperLink.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif is_too_large(scope):
            reason = f"A request states its length, at most {MAX_REQUEST_BYTES} bytes."
            await PlainTextResponse(reason, status_code=413)(scope, receive, send)
        elif is_allowed(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            reason = "From other hosts, only SuperNodes may connect. Operators: use an SSH tunnel."
            await PlainTextResponse(reason, status_code=403)(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})


def is_allowed(scope: Scope) -> bool:
    """Return whether a request is for SuperNodes, or comes from this host."""
    if scope["type"] == "http" and scope["path"].startswith(PUBLIC_PATH):
        return True
    client, server = scope.get("client"), scope.get("server")
    if not client:
        return False
    # A connection from an address to itself: SuperExec, where the port is not bound to loopback.
    return client[0] in _LOOPBACK or bool(server and client[0] == server[0])


def is_too_large(scope: Scope) -> bool:
    """Return whether a SuperNode's request has a body that is too long, or of unknown length."""
    if scope["type"] != "http" or not scope["path"].startswith(PUBLIC_PATH):
        return False
    length = dict(scope["headers"]).get(b"content-length", b"")
    # The server cuts a body at the length that its header states.
    return scope["method"] == "POST" and (not length.isdigit() or int(length) > MAX_REQUEST_BYTES)


def main() -> None:
    """Run ``flower-superlink`` with its own arguments, guarded."""
    budget = float(os.environ.get("FEDIF_REPLY_BUDGET", "1"))
    ReplyGuard(budget).install(fleet_handlers, runtime_handlers)
    run = uvicorn.run

    def run_guarded(app: ASGIApp, **options: Any) -> None:
        # Proxy headers would let a client name its own address.
        run(GuardedApp(app), **{**options, "proxy_headers": False})

    # Flower has no hook of its own for this.
    uvicorn.run = run_guarded  # type: ignore[assignment]
    flower_superlink()


if __name__ == "__main__":
    main()
