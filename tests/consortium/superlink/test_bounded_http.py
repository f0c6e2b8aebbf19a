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

import pytest
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE

from fedif_consortium.superlink.guard_limits import GuardLimits
from fedif_consortium.superlink.guarded_superlink import guarded_server
from fedif_consortium.superlink.reply_guard import ReplyGuard
from tests.consortium.superlink.test_node_requests import NODE, STATE, headers

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


def test_a_body_is_read_once_its_signature_is_known(server):
    asked = request("push-object", signed=False).replace(
        b"Content-Length: 0", b"Content-Length: 5000000"
    )
    with server.encrypted() as connection:
        connection.sendall(asked)  # And no body.
        assert status(all_of(connection)) == 401


def test_without_tls_it_serves_all_the_same(certificate):
    with (
        Server(certificate, LIMITS, ssl_certfile=None, ssl_keyfile=None) as found,
        found.connect() as connection,
    ):
        connection.sendall(request("pull-messages"))
        assert status(all_of(connection)) == 200
