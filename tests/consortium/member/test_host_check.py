from __future__ import annotations

import ssl
import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from fedif_consortium.member.host_check import check_key, check_server
from fedif_flower.client.preflight import tried
from tests.consortium.member.bundles import node_key


def test_the_key_that_the_guard_signs_with_is_read(tmp_path):
    path = tmp_path / "node.key"

    def found():
        return tried("signing-key", lambda: check_key(path))

    assert "No such file" in found().words
    path.write_text("no key")
    assert "is no private key" in found().words
    path.write_bytes(node_key())
    path.chmod(0o644)
    assert (found().status, "chmod 600" in found().words) == ("warning", True)
    path.chmod(0o600)
    assert found().status == "ok"


class Server:
    """An HTTPS server whose certificate ends in so many days."""

    def __init__(self, folder: Path, days: int) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
        now = datetime.now(UTC)
        address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(1)
            .not_valid_before(now - timedelta(days=100))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(address, critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        self.ca = folder / "ca.crt"
        self.ca.write_bytes(certificate.public_bytes(Encoding.PEM))
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (folder / "server.key").write_bytes(pem)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.ca, folder / "server.key")
        self._server = HTTPServer(("127.0.0.1", 0), Quiet)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.address = f"127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Server:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class Quiet(BaseHTTPRequestHandler):
    """Answers as a stranger is answered: 404, with a date."""

    def do_HEAD(self) -> None:
        self.send_error(404)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.mark.parametrize(("days", "status"), [(100, "ok"), (10, "warning"), (-1, "failed")])
def test_a_server_s_certificate_and_clock_are_looked_at(tmp_path, days, status):
    with Server(tmp_path, days) as server:
        certificate, clock = check_server(server.address, server.ca)
    assert certificate.status == status
    if status == "failed":
        assert "expired" in certificate.words
        assert (clock.status, clock.words) == ("warning", "the server told no time")
    else:
        assert certificate.words.startswith("valid until 20")
        assert clock.status == "ok"
