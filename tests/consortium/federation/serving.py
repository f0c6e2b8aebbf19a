"""A server at a federation's port that shows the federation's certificate."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from fedif_consortium.federation.files import to_toml
from fedif_consortium.federation.records import FederationFolder


class _Health(BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def https(certificate: Path, key: Path, status: int = 200) -> Iterator[str]:
    """Serve on a free port of this host; yield its address."""
    handler = type("Health", (_Health,), {"status": status})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
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
def serving(folder: FederationFolder, status: int = 200) -> Iterator[str]:
    """Serve on a free port; yield the federation's settings with that port."""
    with https(folder.certificate, folder.server_key, status) as address:
        changed = folder.settings().replace(listen=address, superlink=address)
        yield to_toml("", changed.to_mapping())
