"""Pages over HTTP: what they answer, and that nobody who asks can hold them up."""

from __future__ import annotations

import contextlib
import json
import socket

import httpx
import pytest

from fedif_consortium.watch.status_pages import StatusServer, health_page
from fedif_flower.errors import ConfigError

PLAIN = 200, "text/plain", b"words"


def ask(server: StatusServer, path: str, method: str = "GET") -> httpx.Response:
    return httpx.request(method, f"http://{server.address}{path}", trust_env=False)


def fails() -> tuple[int, str, bytes]:
    raise RuntimeError("secret")


@pytest.fixture
def server():
    pages = {"/page": lambda: PLAIN, "/broken": fails, "/long": lambda: (200, "x", b"x" * 10**8)}
    with StatusServer("127.0.0.1", 0, pages, key="port") as found:
        yield found


def connect(server: StatusServer) -> socket.socket:
    host, _, port = server.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def test_a_page_is_found_by_its_path(server):
    answer = ask(server, "/page?name[]=x")
    assert (answer.status_code, answer.text) == (200, "words")
    assert answer.headers["content-type"] == "text/plain"
    assert ask(server, "/else").status_code == 404
    assert ask(server, "/page", "POST").status_code == 405


def test_a_page_that_fails_says_no_more_than_the_kind_of_error(server, caplog):
    answer = ask(server, "/broken")
    assert (answer.status_code, answer.text) == (500, "RuntimeError\n")
    assert "RuntimeError('secret')" in caplog.text
    assert ask(server, "/page").status_code == 200


def test_nonsense_ends_its_own_connection_alone(server):
    for nonsense in (b"\r\n\r\n", b"\xff\xfe\r\n\r\n", b"x" * 10**5):
        with connect(server) as connection:
            connection.sendall(nonsense)
            connection.settimeout(30)
            with contextlib.suppress(ConnectionResetError):
                assert not connection.recv(100).startswith(b"HTTP/1.1 200")
    assert ask(server, "/page").status_code == 200


def test_a_port_that_is_taken_is_named_with_its_setting(server):
    port = int(server.address.rpartition(":")[2])
    with pytest.raises(ConfigError, match=rf"^metrics-port: cannot listen on 127\.0\.0\.1:{port}"):
        StatusServer("127.0.0.1", port, {}, key="metrics-port")


def test_health_is_503_where_its_state_says_so():
    state: dict[str, object] = {"members": 3}
    page = health_page("keeper", lambda: state)
    status, kind, body = page()
    content = json.loads(body)
    assert (status, kind) == (200, "application/json")
    assert content.pop("since").endswith("+00:00")
    assert isinstance(content.pop("version"), str)
    assert content == {"status": "ok", "part": "keeper", "members": 3}
    state["status"] = "stalled"
    status, _, body = page()
    assert (status, json.loads(body)["status"]) == (503, "stalled")
