"""Who gets to see a run's page, and what else there is behind its address."""

from __future__ import annotations

import httpx
import pytest

from fedif_consortium.watch.page import policy
from fedif_consortium.watch.server import WatchServer, is_loopback
from fedif_flower.errors import ConfigError
from fedif_flower.run.folder import RunFolder
from tests.consortium.watch.made import client, make_folder


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    folder = make_folder(tmp_path / "run", [client(1, 1)], accuracies=[0.1, 0.5])
    folder.report.write_text("# the report <script>\n")
    (folder.statement / "members").mkdir(parents=True)
    (folder.statement / "statement.html").write_text("<p>a statement</p>")
    (folder.statement / "members" / "001.html").write_text("<p>a page</p>")
    (folder.path / "model.pt").write_bytes(b"a model")
    (tmp_path / "secret.html").write_text("a secret")
    (folder.statement / "link.html").symlink_to(tmp_path / "secret.html")
    return folder


def visitor(server: WatchServer, host: str = "localhost") -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(server.app), base_url=f"http://{host}:{server.port}"
    )


@pytest.fixture
def anyio_backend():
    return "asyncio"


pytestmark = pytest.mark.anyio


async def test_on_this_machine_the_page_is_there_without_a_token(folder):
    server = WatchServer(folder)
    assert server._socket.getsockname()[0] == "127.0.0.1"
    assert (server.token, server.url) == ("", f"http://127.0.0.1:{server.port}/")
    async with visitor(server) as browser:
        answer = await browser.get("/")
    assert answer.status_code == 200
    assert "round 1 of 10 is over" in answer.text
    assert answer.headers["cache-control"] == "no-store"
    rules = answer.headers["content-security-policy"]
    assert rules == f"{policy(served=True)}; frame-ancestors 'none'"
    assert "unsafe" not in rules


async def test_another_site_s_name_for_this_machine_is_refused(folder):
    """What a page elsewhere could let its own name stand for (DNS rebinding)."""
    server = WatchServer(folder)
    async with visitor(server, "evil.example") as browser:
        for path in ("/", "/report.md"):
            answer = await browser.get(path)
            assert answer.status_code == 403
            assert "round" not in answer.text


async def test_other_machines_show_a_token_once(folder):
    server = WatchServer(folder, host="0.0.0.0")
    assert len(server.token) >= 43
    assert server.url == f"http://0.0.0.0:{server.port}/?token={server.token}"
    assert WatchServer(folder, host="0.0.0.0").token != server.token
    async with visitor(server, "watch.example") as browser:
        for path in ("/", "/report.md", "/?token=wrong", "/?token=", "/?token=%ff"):
            assert (await browser.get(path)).status_code == 401
        browser.cookies.set(f"fedif-watch-{server.port}", "wrong")
        assert (await browser.get("/")).status_code == 401
        browser.cookies.clear()
        answer = await browser.get("/", params={"token": server.token})
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=lax" in cookie
        assert "secure" not in cookie
        answer = await browser.get("/")
        assert answer.status_code == 200
        assert server.token not in answer.text
        assert (await browser.get("/report.md")).status_code == 200


async def test_behind_tls_the_cookie_travels_nowhere_else(folder):
    server = WatchServer(folder, guarded=True)
    assert server.url == f"http://127.0.0.1:{server.port}/?token={server.token}"
    async with visitor(server, "watch.example") as browser:
        assert (await browser.get("/")).status_code == 401
        told = {"x-forwarded-proto": "https"}
        answer = await browser.get("/", params={"token": server.token}, headers=told)
    assert "; secure" in answer.headers["set-cookie"].lower()


async def test_report_and_statement_are_there_and_run_nothing(folder):
    async with visitor(WatchServer(folder)) as browser:
        for path, kind in (
            ("/report.md", "text/plain"),
            ("/statement/statement.html", "text/html"),
            ("/statement/members/001.html", "text/html"),
        ):
            answer = await browser.get(path)
            assert answer.status_code == 200
            assert answer.headers["content-type"].startswith(kind)
            assert "sandbox" in answer.headers["content-security-policy"]
            assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "path",
    [
        "/model.pt",
        "/config.json",
        "/statement/link.html",  # It leads out of the folder.
        "/statement/../../secret.html",
        "/statement/%2e%2e/%2e%2e/secret.html",
        "/..%2fsecret.html",
        "/statement/members/002.html",
        "//etc/passwd",
        "/report.md%00",
    ],
)
async def test_nothing_else_is_there(folder, path):
    async with visitor(WatchServer(folder)) as browser:
        answer = await browser.get(path)
    assert answer.status_code == 404
    assert "secret" not in answer.text


def test_a_port_that_is_taken_is_named(folder):
    server = WatchServer(folder)
    with pytest.raises(ConfigError, match=f"port {server.port}"):
        WatchServer(folder, port=server.port)
    with pytest.raises(ConfigError, match="cannot listen on no-such-host"):
        WatchServer(folder, host="no-such-host.invalid")


def test_what_only_this_machine_reaches():
    for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost"):
        assert is_loopback(host)
    for host in ("0.0.0.0", "::", "192.168.0.1", "example.org", "", "127.0.0.1.example.org"):
        assert not is_loopback(host)
