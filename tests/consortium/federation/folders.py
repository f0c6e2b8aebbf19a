"""A federation in a folder, without a process, and what stands for Flower and for its server."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fedif_consortium.federation.files import read_document, to_toml
from fedif_consortium.federation.flower import FlowerCommandError
from fedif_consortium.federation.members import invite
from fedif_consortium.federation.node import NodeFolder, join
from fedif_consortium.federation.records import FederationFolder, FederationSettings, Invitation
from fedif_consortium.federation.server import initialize

SETTINGS = FederationSettings(
    name="consortium", hosts=["localhost"], listen="127.0.0.1:9092", superlink="127.0.0.1:9095"
)


@dataclass
class Registry:
    """Nodes that are let in, as a SuperLink keeps them."""

    keys: dict[str, str] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)

    def register(self, public_key: Path, name: str) -> str:
        key = " ".join(public_key.read_text().split()[:2])
        if key in self.keys.values():
            raise FlowerCommandError("refused")
        node_id = str(1000 + len(self.keys))
        self.keys[node_id] = key
        return node_id

    def unregister(self, node_id: str) -> None:
        assert node_id not in self.ended
        self.ended.add(node_id)

    def nodes(self) -> dict[str, dict[str, Any]]:
        status = {i: "unregistered" if i in self.ended else "online" for i in self.keys}
        return {i: {"node-id": i, "status": status[i], "offline-at": "N/A"} for i in self.keys}

    def runs(self, *arguments: object) -> list[dict[str, Any]]:
        return [{"run-id": "7", "status": "running", "status-details": ""}]


def make_federation(path: Path) -> FederationFolder:
    folder = FederationFolder(path)
    initialize(folder, SETTINGS)
    return folder


def answer_of(folder: FederationFolder, name: str, host: Path) -> Path:
    """Invite a member and let its host answer; return the answer's file."""
    join_as(host, read_document(invite(folder, name), Invitation))
    return NodeFolder(host).answer(name)


def join_as(host: Path, invitation: Invitation, **given: Any) -> None:
    join(NodeFolder(host), invitation, **({"config": {}} | given))


def content(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder but a lock, to be compared later."""
    files = [p for p in folder.rglob("*") if p.is_file() and p.name != ".lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    status = 200
    seconds_ahead = 0.0

    def date_time_string(self, timestamp: float | None = None) -> str:
        return super().date_time_string((timestamp or time.time()) + self.seconds_ahead)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", "0")))
        self.send_response(self.status)
        self.send_header("content-length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        self.do_POST()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def https(
    certificate: Path, key: Path, status: int = 200, port: int = 0, seconds_ahead: float = 0.0
) -> Iterator[str]:
    """Answer whatever comes on a port of this host, a free one; yield its address."""
    answers = {"status": status, "seconds_ahead": seconds_ahead}
    handler = type("Answers", (_Answers,), answers)
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def serving(folder: FederationFolder, status: int = 200, **other: str) -> Iterator[str]:
    """Serve on a free port; yield the federation's settings with that port, or another one."""
    with https(folder.certificate, folder.server_key, status) as address:
        changed = folder.settings().replace(**{"listen": address, "superlink": address} | other)
        yield to_toml("", changed.to_mapping())
