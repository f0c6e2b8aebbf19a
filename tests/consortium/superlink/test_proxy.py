"""nginx with this project's settings, in front of something that answers whatever comes."""

from __future__ import annotations

import shutil
import socket
import ssl
import time
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPSConnection

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES

from fedif_consortium.address import split_address
from tests.consortium.federation.folders import https
from tests.integration.deployed import HOST, Deployment

FLEET = "/v1/fleet/"
pytestmark = pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")


class Proxy:
    """nginx at a port of this host."""

    def __init__(self, deployment: Deployment) -> None:
        self.port = deployment.port
        self.context = ssl.create_default_context(cafile=deployment.server / "ca.crt")

    def ask(self, path: str, body: bytes = b"", method: str = "POST", **headers: str) -> int:
        """Return the status of an answer."""
        connection = HTTPSConnection(HOST, self.port, timeout=20, context=self.context)
        with closing(connection):
            connection.request(method, path, body, headers)
            return connection.getresponse().status

    def say(self, text: bytes) -> bytes:
        """Send bytes as they are; return the head of the answer."""
        with (
            socket.create_connection((HOST, self.port), 20) as raw,
            self.context.wrap_socket(raw, server_hostname="localhost") as connection,
        ):
            connection.sendall(text)
            found = b""
            while b"\r\n\r\n" not in found and (piece := connection.recv(65536)):
                found += piece
            return found


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    with Deployment(tmp_path_factory.mktemp("proxy"), proxy=True) as deployment:
        certificate, key = (deployment.server / f"server.{end}" for end in ("crt", "key"))
        with https(certificate, key, port=split_address(deployment.proxy[1])[1]):
            deployment.start_nginx()
            yield Proxy(deployment)


@pytest.mark.parametrize(
    "path", sorted(path for _, path in PROTOBUF_REQUEST_TYPES if path.startswith(FLEET))
)
def test_what_supernodes_send_is_handed_on(proxy, path):
    assert proxy.ask(path, b"x") == 200
    assert proxy.ask(path, b"x", method="PUT") == 403


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/health", "/v1/control/start-run", "/v1/runtime/pull-task", "/v1/fleet/"),
        *("/v1/fleet/../control/start-run", "/v1/fleet/%2e%2e/control/start-run"),
        *("/v1/fleet/pull-messages/x", "//v1/control/start-run", "/V1/fleet/pull-messages"),
    ],
)
def test_everything_else_is_for_the_server_s_own_host(proxy, path):
    assert proxy.ask(path, b"x") in (403, 404)


@pytest.mark.parametrize(
    ("name", "most"),
    [("pull-messages", 4096), ("push-messages", 2**20), ("push-object", 9 * 2**20)],
)
def test_a_body_has_a_bound(proxy, name, most):
    assert proxy.ask(FLEET + name, bytes(most)) == 200
    assert proxy.ask(FLEET + name, bytes(most + 1)) == 413


@pytest.mark.parametrize(
    "head",
    [
        b"X: " + b"x" * 100_000,
        b"X: x\r\n" * 10_000,
        b"Content-Length: 4\r\nTransfer-Encoding: chunked",
        b"Content-Length: 0\r\nContent-Length: 70",
        b"Transfer-Encoding: xchunked",
    ],
)
def test_a_header_that_hides_something_or_has_no_end_is_refused(proxy, head):
    answer = proxy.say(b"POST /v1/fleet/get-run HTTP/1.1\r\nHost: a\r\n" + head + b"\r\n\r\n")
    assert answer.split(b" ")[1] in (b"400", b"501")
    assert b" 200 " not in answer


def test_who_sends_too_much_waits(proxy):
    key = public_key_to_bytes(ec.generate_private_key(ec.SECP384R1()).public_key())
    flood = {FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(key).decode()}
    begun = time.monotonic()
    with ThreadPoolExecutor(8) as threads:
        found = set(threads.map(lambda _: proxy.ask(FLEET + "get-run", **flood), range(360)))
    assert found == {200}
    # 300 at once, then 20 a second; without a limit it is half as long.
    assert time.monotonic() - begun > (360 - 300) / 20 - 0.5
