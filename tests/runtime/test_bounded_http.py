"""The server in front of the SuperLink, with real sockets and TLS, and an app that only answers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import h11
import pytest
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE

from fedif_flower.runtime import bounded_http, guarded_superlink
from fedif_flower.runtime.bounded_http import (
    MAX_HEADER_BYTES,
    UnboundedParserError,
    check_bounded,
    is_this_host,
)
from fedif_flower.runtime.guard_limits import GuardLimits
from fedif_flower.runtime.guarded_superlink import guarded_server
from fedif_flower.runtime.reply_guard import ReplyGuard
from tests.runtime.test_node_requests import NODE, STATE, headers

LIMITS = GuardLimits(
    stranger_connections=8, address_connections=8, address_handshakes=1000, stranger_handshakes=1000
)
STRANGER, HOST = "127.0.0.2", "127.0.0.1"
FLEET = "/v1/fleet/"


class App:
    """What stands for the SuperLink: says how many bytes it was sent."""

    def __init__(self) -> None:
        info = SimpleNamespace(name="hospital-a")
        state = SimpleNamespace(
            get_node_id_by_public_key=STATE.get_node_id_by_public_key,
            get_node_info=lambda node_ids: [info] if node_ids == [NODE] else [],
        )
        self.state = SimpleNamespace(linkstate_factory=SimpleNamespace(state=lambda: state))
        self.paths: list[str] = []
        self.pause = self.thinks = 0.0

    async def __call__(self, scope, receive, send):
        if scope["type"] == "lifespan":
            while (message := await receive())["type"] != "lifespan.shutdown":
                await send({"type": f"{message['type']}.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        self.paths.append(scope["path"])
        message = await receive()
        await asyncio.sleep(self.thinks)
        answer = str(len(message["body"])).encode()
        length = (b"content-length", str(len(answer)).encode())
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        # As Flower does: the client has all of it before the last, empty part.
        await send({"type": "http.response.body", "body": answer, "more_body": True})
        await asyncio.sleep(self.pause)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class Server:
    """A guarded server in a thread."""

    def __init__(self, certificate: tuple[str, str], limits: GuardLimits, **options) -> None:
        self.app = App()
        self._server, listening = guarded_server(
            self.app,
            limits,
            ReplyGuard(),
            **{"ssl_certfile": certificate[0], "ssl_keyfile": certificate[1], **options},
            host=HOST,
            port=0,
            log_config=None,
            timeout_graceful_shutdown=1,
        )
        self.port = listening.getsockname()[1]
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [listening]}, daemon=True
        )

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(30.0)
        assert not self._thread.is_alive()

    def connect(self, source: str = STRANGER) -> socket.socket:
        return socket.create_connection((HOST, self.port), 30.0, (source, 0))

    @contextlib.contextmanager
    def encrypted(self, source: str = STRANGER) -> Iterator[ssl.SSLSocket]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with self.connect(source) as raw, context.wrap_socket(raw) as connection:
            yield connection

    def ask(self, request: bytes, source: str = STRANGER) -> bytes:
        """Send a request on a connection of its own; return all that comes until it is closed."""
        with self.encrypted(source) as connection:
            with contextlib.suppress(OSError):  # It may be answered, and closed, before its end.
                connection.sendall(request)
            return all_of(connection)


def all_of(connection: socket.socket) -> bytes:
    found = b""
    with contextlib.suppress(OSError):
        while piece := connection.recv(65536):
            found += piece
    return found


def until(connection: socket.socket, *endings: bytes) -> bytes:
    """Return what comes up to one of some endings."""
    found = b""
    while not found.endswith(endings):
        piece = connection.recv(65536)
        assert piece, found
        found += piece
    return found


def request(name: str, body: bytes = b"", signed: bool = True, **more: str) -> bytes:
    lines = {
        "Host": "a",
        "Content-Type": PROTOBUF_MEDIA_TYPE,
        "Content-Length": str(len(body)),
        "Connection": "close",
        **{key.replace("_", "-"): value for key, value in more.items()},
    }
    if signed:
        lines |= {key.decode(): value.decode() for key, value in headers().items()}
    head = "".join(f"{key}: {value}\r\n" for key, value in lines.items())
    return f"POST {FLEET}{name} HTTP/1.1\r\n{head}\r\n".encode() + body


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tls")
    files = str(directory / "crt"), str(directory / "key")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-subj", "/CN=a", "-out", files[0], "-keyout", files[1]),
        ],
        check=True,
        capture_output=True,
    )
    return files


@pytest.fixture
def server(certificate):
    with Server(certificate, LIMITS) as found:
        yield found


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def test_a_node_s_request_arrives_and_a_stranger_s_does_not(server):
    body = PullMessagesRequest().SerializeToString() + b"\x12\x01a"
    answer = server.ask(request("pull-messages", body))
    assert (status(answer), answer[-1:]) == (200, b"3")
    assert status(server.ask(request("pull-messages", body, signed=False))) == 401
    assert server.app.paths == [FLEET + "pull-messages"]


def test_a_key_that_is_not_registered_may_ask_to_be_let_in(server):
    assert status(server.ask(request("activate-node", b"x" * 100, signed=False))) == 200
    assert status(server.ask(request("activate-node", b"x" * 5000, signed=False))) == 413


def header(asked: bytes) -> bytes:
    """Return a request without the body that it announces."""
    return asked[: asked.index(b"\r\n\r\n") + 4]


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (
            lambda: b"POST /v1/control/start-run HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
            403,
        ),
        (lambda: b"GET /v1/fleet/pull-messages HTTP/1.1\r\nHost: a\r\n\r\n", 405),
        (lambda: request("run-anything"), 404),
        # Without their bodies: the server may close before it has got them.
        (lambda: header(request("pull-messages", b"x" * 5000)), 413),
        (lambda: header(request("push-messages", b"x" * 200_000)), 413),
        (lambda: request("push-object", b"\x0a\x00" * 5000), 400),
        (lambda: request("pull-messages", Transfer_Encoding="chunked"), 400),
        (
            lambda: (
                b"POST /v1/fleet/get-run HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
            ),
            413,
        ),
        (
            lambda: (
                b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc"
            ),
            400,
        ),
        (lambda: b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n", 501),
    ],
)
def test_what_is_refused_by_its_header_reaches_nobody(server, asked, found):
    answer = server.ask(asked())  # Signed here: signatures are of an age.
    assert status(answer) in (found, 400)
    assert answer.count(b"HTTP/1.1 ") == 1  # Whatever was hidden in it has no answer.
    assert server.app.paths == []


def test_this_host_reaches_everything(server):
    asked = b"GET /v1/control/x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    assert status(server.ask(asked, HOST)) == 200


def test_a_body_is_read_once_its_signature_is_known(server):
    asked = request("push-object", signed=False).replace(
        b"Content-Length: 0", b"Content-Length: 5000000"
    )
    with server.encrypted() as connection:
        connection.sendall(asked)  # And no body.
        assert status(all_of(connection)) == 401


@pytest.mark.parametrize("piece", [b"x" * 4096, b"X-Header: value\r\n" * 256])
def test_a_header_without_end_is_ended(server, piece):
    with server.encrypted() as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nX: ")
        sent = 0
        with contextlib.suppress(OSError):
            while sent < 100 * 2**20:
                connection.sendall(piece)
                sent += len(piece)
    # What fits into the sockets' buffers counts as sent.
    assert sent < 100 * 2**20


def test_several_requests_on_a_connection(server):
    body = PushObjectRequest(object_content=b"x" * 300_000).SerializeToString()
    one = request("push-object", body).replace(b"Connection: close\r\n", b"")
    with server.encrypted() as connection:
        for _ in range(2):
            for start in range(0, len(one), 50_000):
                connection.sendall(one[start : start + 50_000])
            until(connection, str(len(body)).encode())
        connection.sendall(request("pull-messages"))
        assert status(all_of(connection)) == 200
    assert len(server.app.paths) == 3


@pytest.mark.parametrize("lines", [40, 100])
def test_a_header_has_so_many_lines(server, lines):
    asked = request("pull-messages").replace(b"Host: a\r\n", b"Host: a\r\n" + b"x:\r\n" * lines)
    assert bool(server.ask(asked)) == (lines == 40)
    assert len(server.app.paths) == (lines == 40)


def test_a_request_may_come_before_the_server_knows_that_the_last_one_is_answered(server):
    server.app.pause = 0.2
    one = request("pull-messages", b"x" * 30).replace(b"Connection: close\r\n", b"")
    with server.encrypted() as connection:
        for _ in range(3):
            connection.sendall(one)
            until(connection, b"\r\n\r\n30")


def test_a_request_in_another_s_wake_ends_the_connection(server):
    one = request("pull-messages").replace(b"Connection: close\r\n", b"")
    assert server.ask(one + one) == b""


@pytest.mark.parametrize("begun", [b"", b"\x16\x03\x01", b"GET / HTTP/1.1\r\n\r\n"])
def test_half_open_connections_make_room_for_nodes(server, begun):
    held = [server.connect() for _ in range(5 * LIMITS.stranger_connections)]
    for connection in held:
        with contextlib.suppress(OSError):
            connection.sendall(begun)
    assert status(server.ask(request("pull-messages"), "127.0.0.3")) == 200
    for connection in held:
        connection.close()


@pytest.mark.parametrize(
    "begun", [b"", b"POST", request("activate-node", signed=False, Content_Length="9")]
)
def test_a_stranger_who_is_too_slow_is_cut_off(certificate, monkeypatch, begun):
    monkeypatch.setattr(bounded_http, "STRANGER_SECONDS", 0.5)
    with Server(certificate, LIMITS) as found, found.encrypted() as connection:
        connection.sendall(begun)
        assert all_of(connection) == b""


@pytest.mark.parametrize(("source", "answered"), [(HOST, True), (STRANGER, False)])
def test_this_host_alone_may_wait_for_an_answer_as_long_as_it_takes(
    certificate, monkeypatch, source, answered
):
    monkeypatch.setattr(bounded_http, "STRANGER_SECONDS", 0.3)
    with Server(certificate, LIMITS) as found:
        found.app.thinks = 0.6
        assert bool(found.ask(request("activate-node", signed=False), source)) is answered


def test_a_handshake_that_is_too_slow_is_cut_off(certificate, monkeypatch):
    monkeypatch.setattr(bounded_http, "HANDSHAKE_SECONDS", 0.5)
    with Server(certificate, LIMITS) as found, found.connect() as connection:
        connection.sendall(b"\x16")
        assert all_of(connection) == b""


def test_a_node_that_is_slow_has_its_own_time(certificate, monkeypatch):
    monkeypatch.setattr(bounded_http, "STRANGER_SECONDS", 2.0)
    body = PushObjectRequest(object_content=b"x").SerializeToString()
    one = request("push-object", body)
    with Server(certificate, LIMITS) as found, found.encrypted() as connection:
        connection.sendall(one[: -len(body)])
        threading.Event().wait(3.0)
        connection.sendall(body)
        assert status(all_of(connection)) == 200


def test_a_node_that_floods_is_slowed_then_refused_and_named(certificate, monkeypatch, caplog):
    monkeypatch.setattr(guarded_superlink, "REFUSED_SECONDS", 0.01)
    limits = LIMITS.replace(node_requests=1.0)
    one = request("pull-messages").replace(b"Connection: close\r\n", b"")
    found: list[int] = []

    def flood() -> None:
        with server.encrypted() as connection, contextlib.suppress(OSError):
            while 429 not in found:
                connection.sendall(one)
                found.append(status(until(connection, b"\r\n\r\n0", b"may send.")))

    with Server(certificate, limits) as server:
        threads = [threading.Thread(target=flood) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert set(found) == {200, 429}
    said = [record.getMessage() for record in caplog.records]
    assert any(f"node {NODE} (hospital-a): more requests" in message for message in said)


def test_without_tls_it_serves_all_the_same(certificate):
    with (
        Server(certificate, LIMITS, ssl_certfile=None, ssl_keyfile=None) as found,
        found.connect() as connection,
    ):
        connection.sendall(request("pull-messages"))
        assert status(all_of(connection)) == 200


@pytest.mark.parametrize("parser", ["httptools", "some.module:Protocol", object])
def test_a_parser_without_a_bound_is_refused(certificate, parser):
    with pytest.raises(UnboundedParserError, match=r"http=.*allowed: 'h11'"):
        Server(certificate, LIMITS, http=parser)


def test_a_parser_is_tried_before_anything_is_served():
    check_bounded(h11.Connection(h11.SERVER, MAX_HEADER_BYTES))

    class Patient:
        def receive_data(self, data: bytes) -> None: ...

        def next_event(self) -> None: ...

    with pytest.raises(UnboundedParserError, match="needed: h11"):
        check_bounded(Patient())


def test_this_host_is_known_by_both_addresses():
    assert is_this_host(("127.0.0.1", 1), ("10.0.0.1", 2))
    assert is_this_host(("::1", 1), ("::1", 2))
    assert is_this_host(("10.0.0.1", 1), ("10.0.0.1", 2))
    assert not is_this_host(("10.0.0.5", 1), ("10.0.0.1", 2))
    assert not is_this_host(None, ("10.0.0.1", 2))
