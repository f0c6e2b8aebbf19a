"""A server for time stamps on loopback: openssl does the stamping."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_CONFIG = """
[tsa]
serial = {folder}/serial
signer_digest = sha256
default_policy = 1.2.3.4.1
digests = sha256
accuracy = secs:1
ess_cert_id_alg = sha256
[ca]
basicConstraints = critical,CA:TRUE
keyUsage = critical,keyCertSign
[stamping]
basicConstraints = CA:FALSE
keyUsage = critical,digitalSignature
extendedKeyUsage = critical,timeStamping
"""


def _openssl(folder: Path, *arguments: object) -> None:
    subprocess.run(
        ["openssl", *map(str, arguments)], cwd=folder, check=True, capture_output=True, timeout=60
    )


def make_authority(folder: Path) -> Path:
    """Make a root and a certificate for stamping; return the root's."""
    folder.mkdir(parents=True)
    (folder / "serial").write_text("01\n")
    (folder / "openssl.cnf").write_text(_CONFIG.format(folder=folder))
    for name in ("root", "tsa"):
        key = ("-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", f"{name}.key")
        _openssl(folder, "genpkey", *key)
        _openssl(folder, "req", "-new", "-key", f"{name}.key", "-subj", f"/CN={name}", "-out", name)
    extensions = ("-extfile", "openssl.cnf", "-extensions")
    signed = ("x509", "-req", "-days", "2", "-in")
    _openssl(folder, *signed, "root", "-signkey", "root.key", *extensions, "ca", "-out", "root.crt")
    by_root = ("-CA", "root.crt", "-CAkey", "root.key", "-CAcreateserial")
    _openssl(folder, *signed, "tsa", *by_root, *extensions, "stamping", "-out", "tsa.crt")
    return folder / "root.crt"


def stamp(folder: Path, query: bytes) -> bytes:
    """Return the answer to a query."""
    (folder / "query").write_bytes(query)
    signer = ("-signer", "tsa.crt", "-inkey", "tsa.key", "-section", "tsa")
    files = ("-queryfile", "query", "-out", "answer", "-config", "openssl.cnf")
    _openssl(folder, "ts", "-reply", *files, *signer)
    return (folder / "answer").read_bytes()


@contextmanager
def serving(answer: Callable[[bytes], bytes]) -> Iterator[str]:
    """Serve an answer to each query; yield the URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = answer(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Type", "application/timestamp-reply")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/stamp"
        finally:
            server.shutdown()
            thread.join()
