"""HTTP for a public port: a connection passes the gate, TLS and a parser that all have bounds.

uvicorn takes a header of any length where it parses with ``httptools``, hands connections to TLS
before anything counts them, and waits for a request for ever. Its other parser, ``h11``, has a
bound; here it gets the rest.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from fedif_consortium.superlink.gate import Gate
from fedif_flower.errors import FedIFError

MAX_HEADER_BYTES, MAX_HEADER_LINES = 16 * 1024, 64  # A SuperNode's has 1 KiB and 12 lines.
MAX_EARLY_BYTES = 1024 * 1024
PIECE = 4 * 1024  # Of a header, between two looks at its length.
HANDSHAKE_SECONDS = 5.0
STRANGER_SECONDS = 10.0
LOOPBACK = ("127.0.0.1", "::1")
REFUSALS_AT_ONCE = 256
# A whole request is here. For its answer, this host has all the time: `flwr log` follows a run.
_ANSWERED = (h11.DONE, h11.MUST_CLOSE)
_RESET = struct.pack("ii", 1, 0)


class UnboundedParserError(FedIFError):
    """The parser of HTTP has no bound: nothing is served."""


class BoundedProtocol(H11Protocol):
    """One connection, from its first byte on. Made by :func:`bounded_protocol`.

    Attributes
    ----------
    node_key : bytes
        The public key, as its header has it, of the node that has shown its signature here; empty
        for a stranger.
    node_id : int
        Its id.
    """

    gate: Gate
    tls: ssl.SSLContext | None
    request_seconds: float

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.node_key, self.node_id = b"", 0
        self.address = ""
        self._raw: asyncio.Transport | None = None
        self._is_local = False
        self._early = b""
        self._handshake: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._phase: object = None
        self._lines = 0
        self.app = self._call

    # -- what the event loop calls ----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Let a connection in, or not, before anything is read from it."""
        assert isinstance(transport, asyncio.Transport)
        self._raw = transport
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if peer else ""
        self._is_local = is_this_host(peer, transport.get_extra_info("sockname"))
        if not self._is_local:
            self.gate.admit(self.address, self)
        if self.tls is None:
            self._open(transport)
        else:
            transport.pause_reading()
            self._handshake = self.loop.create_task(self._shake_hands(transport, self.tls))

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self.gate.leave(self)
        self._cancel()
        if self.transport is not None:
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came; what comes too early has to wait.

        That is before the handshake is known to be over here, or the answer to the last request: a
        client knows its length, and has it before the last, empty part of it is sent.
        """
        if self.transport is None or self.conn.their_state is h11.DONE:
            self._early += data
            if self.transport is not None:
                self.flow.pause_reading()
            if len(self._early) > MAX_EARLY_BYTES:
                self.abort()
            return
        while data and not self.transport.is_closing():
            piece, data = (data[:PIECE], data[PIECE:]) if self._is_in_header() else (data, b"")
            if not self._has_few_lines(piece):
                self.logger.warning("A header of more than %d lines.", MAX_HEADER_LINES)
                self.abort()
                return
            super().data_received(piece)
            if self.conn.their_state is h11.DONE and self.conn.trailing_data[0]:
                # A second request together with the first, which no SuperNode sends.
                self.abort()
                return
        self._watch()

    def on_response_complete(self) -> None:
        """Go on with what came meanwhile."""
        super().on_response_complete()
        self._watch()
        self._receive_early()

    # -- for the app ------------------------------------------------------------------------------

    def prove(self, key: bytes, node_id: int) -> bool:
        """Take the connection for a node's from now on; return whether there is room for it."""
        if not self.gate.prove(self.address, self, node_id):
            return False
        self.node_key, self.node_id = key, node_id
        self._phase = None
        self._watch()
        return True

    def abort(self) -> None:
        """Close it at once."""
        self.gate.leave(self)
        self._cancel()
        if self._raw is not None:
            sock = self._raw.get_extra_info("socket")
            if sock is not None and sock.fileno() >= 0:
                reset_at_close(sock)
            self._raw.abort()

    # -- inside -----------------------------------------------------------------------------------

    async def _call(self, scope: Any, receive: Any, send: Any) -> None:
        scope["fedif.connection"] = self
        await self.config.loaded_app(scope, receive, send)

    async def _shake_hands(self, transport: asyncio.Transport, context: ssl.SSLContext) -> None:
        encrypted: asyncio.Transport | None = None
        try:
            encrypted = await self.loop.start_tls(
                transport,
                self,
                context,
                server_side=True,
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=HANDSHAKE_SECONDS,
            )
        except (OSError, TimeoutError):  # No TLS, an end, or nothing in time.
            pass
        finally:
            if encrypted is None or encrypted.is_closing():
                self.abort()
        if encrypted is not None and not encrypted.is_closing():
            self._open(encrypted)

    def _open(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._watch()
        self._receive_early()

    def _receive_early(self) -> None:
        early, self._early = self._early, b""
        if early:
            self.data_received(early)

    def _watch(self) -> None:
        """Start the clock anew where the connection is at another point of a request."""
        closing = self.transport.is_closing()
        idle = self.cycle is not None and self.cycle.response_complete and not self._has_begun()
        phase = None if closing or idle else (self.conn.their_state, self.cycle)
        if phase == self._phase and phase is not None:
            return
        self._phase = phase
        self._cancel()
        self._lines = 0 if idle else self._lines
        if closing:
            # What is still to be sent has to be taken.
            self._deadline = self.loop.call_later(STRANGER_SECONDS, self.abort)
        elif not idle and not (self._is_local and self.conn.their_state in _ANSWERED):
            seconds = self.request_seconds if self.node_key else STRANGER_SECONDS
            self._deadline = self.loop.call_later(seconds, self.abort)

    def _is_in_header(self) -> bool:
        return self.conn.their_state is h11.IDLE

    def _has_few_lines(self, piece: bytes) -> bool:
        """Count the lines of a header, each of which costs the parser more than its bytes."""
        if not self._is_in_header():
            self._lines = 0
            return True
        self._lines += piece.partition(b"\r\n\r\n")[0].count(b"\n")
        return self._lines <= MAX_HEADER_LINES

    def _has_begun(self) -> bool:
        """Return whether a part of the next request is here."""
        return self.conn.their_state is not h11.IDLE or bool(self.conn.trailing_data[0])

    def _cancel(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class GatedSocket(socket.socket):
    """A listening socket that closes what the gate refuses before anything is made of it.

    The event loop accepts all that wait, two thousand at once, and would run out of descriptors
    before a connection's own code is asked.
    """

    gate: Gate

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection that may begin."""
        for _ in range(REFUSALS_AT_ONCE):
            connection, address = super().accept()
            if is_this_host(address, connection.getsockname()):
                return connection, address
            if self.gate.may_begin(address[0]):
                return connection, address
            reset_at_close(connection)
            connection.close()
        raise BlockingIOError  # What has come in over open connections is served first.


def gated(listening: socket.socket, gate: Gate) -> GatedSocket:
    """Return a listening socket as one behind a gate."""
    found = GatedSocket(
        listening.family, listening.type, listening.proto, fileno=listening.detach()
    )
    found.gate = gate
    return found


def reset_at_close(connection: Any) -> None:
    """Let a socket's close be a reset: a SuperNode tries again, where an end in TLS ends it."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


def bounded_protocol(
    limit_gate: Gate, context: ssl.SSLContext | None, seconds: float
) -> type[BoundedProtocol]:
    """Return the protocol for one server.

    Parameters
    ----------
    limit_gate : Gate
        Who may come in.
    context : SSLContext, optional
        The server's certificate; ``None``: no TLS.
    seconds : float
        For a node's request to be whole and its answer to be taken, > 0.

    Raises
    ------
    UnboundedParserError
        Where the parser takes a header of any length.
    """

    class Bounded(BoundedProtocol):
        gate, tls, request_seconds = limit_gate, context, seconds

    check_bounded(h11.Connection(h11.SERVER, MAX_HEADER_BYTES))
    return Bounded


def check_bounded(parser: Any) -> None:
    """Raise :class:`UnboundedParserError` unless a parser ends a header that has no end."""
    parser.receive_data(b"POST / HTTP/1.1\r\nX: ")
    try:
        for _ in range(16):
            parser.receive_data(b"x" * MAX_HEADER_BYTES)
            parser.next_event()
    except h11.RemoteProtocolError:
        return
    raise UnboundedParserError(
        f"{type(parser).__module__} takes a header of more than {16 * MAX_HEADER_BYTES} bytes; "
        "needed: h11 as uvicorn's parser, which ends it"
    )


def is_this_host(client: Any, server: Any) -> bool:
    """Return whether a connection comes from this host, by its two addresses."""
    if not client:
        return False
    # From an address to itself: SuperExec, where the port is not bound to loopback.
    return client[0] in LOOPBACK or bool(server and client[0] == server[0])
