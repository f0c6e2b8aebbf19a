"""What reaches a public port from hosts that hold no registered key, and from one that does.

``python -m tests.integration.strangers NAME HOST:PORT SECONDS [SOURCE [KEY NODE-ID]]`` plays one
attack, as a process of its own, and prints what came of it as JSON. ``SOURCE`` is the address that
it comes from; on loopback any of 127.0.0.0/8. Only :func:`member_flood` has a registered key.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import ssl
import sys
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock, Thread

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import PullObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE

CONTENT_TYPE = f"Content-Type: {PROTOBUF_MEDIA_TYPE}\r\n"
PIECE = 64 * 1024
BODY = 9 * 1024 * 1024
ENOUGH = 64 * 1024 * 1024  # More of a header than any server should take.
PAUSE = 0.1  # Before a connection that was ended is begun anew.
HALF_OPEN, SLOW = 1000, 200
BOMBERS, FLOODERS, FLOOD = 8, 12, 10_000


@dataclass
class Attacker:
    """Where an attack goes to, how long it lasts, and what came of it."""

    host: str
    port: int
    until: float
    source: str = "127.0.0.2"
    key: str = ""
    node_id: int = 0
    found: Counter[str] = field(default_factory=Counter)
    lock: Lock = field(default_factory=Lock)

    def goes_on(self) -> bool:
        return time.monotonic() < self.until

    def note(self, name: str, count: int = 1) -> None:
        with self.lock:
            self.found[name] += count

    def note_most(self, name: str, count: int) -> None:
        with self.lock:
            self.found[name] = max(self.found[name], count)

    def connect(self, act: Callable[[socket.socket], None], timeout: float = 10.0) -> None:
        """Act on a connection with TLS; whatever ends it is no error."""
        try:
            with (
                socket.create_connection((self.host, self.port), timeout, (self.source, 0)) as raw,
                _trusting().wrap_socket(raw) as encrypted,
            ):
                self.note("connections")
                act(encrypted)
        except OSError:
            self.note("ended by the server")
            time.sleep(PAUSE)

    def next_request(self) -> bool:
        """Count one more request; return whether there is one to send."""
        with self.lock:
            self.found["requests"] += 1
            return self.found["requests"] <= FLOOD

    def headers(self, path: str, length: int) -> bytes:
        """Return a request's header, signed by the registered key, else by one made up."""
        private = (
            load_ssh_private_key(Path(self.key).read_bytes(), None)
            if self.key
            else ec.generate_private_key(ec.SECP384R1())
        )
        assert isinstance(private, ec.EllipticCurvePrivateKey)
        stamp = now().isoformat()
        lines = {
            "Host": self.host,
            "Content-Length": str(length),
            FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(
                public_key_to_bytes(private.public_key())
            ).decode(),
            TIMESTAMP_HEADER: stamp,
            FLEET_HTTP_SIGNATURE_HEADER: b64encode(sign_message(private, stamp.encode())).decode(),
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        return f"POST /v1/fleet/{path} HTTP/1.1\r\n{CONTENT_TYPE}{head}\r\n".encode()


def _trusting() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _status(connection: socket.socket) -> str:
    """Return the status of an answer that is read whole."""
    head = b""
    while b"\r\n\r\n" not in head:
        received = connection.recv(PIECE)
        if not received:
            return "closed"
        head += received
    head, _, body = head.partition(b"\r\n\r\n")
    lengths = [x for x in head.lower().split(b"\r\n") if x.startswith(b"content-length:")]
    length = int(lengths[0].split(b":")[1]) if lengths else 0
    while len(body) < length and (received := connection.recv(PIECE)):
        body += received
    return head.split(b" ", 2)[1].decode()


def _together(attacker: Attacker, count: int, one: Callable[[Attacker], None]) -> None:
    threads = [Thread(target=one, args=(attacker,), daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def endless_header(attacker: Attacker) -> None:
    _endless(attacker, b"x" * PIECE)


def many_headers(attacker: Attacker) -> None:
    _endless(attacker, b"X-Header: value\r\n" * (PIECE // 17))


def _endless(attacker: Attacker, piece: bytes) -> None:
    def act(connection: socket.socket) -> None:
        connection.sendall(b"POST /v1/fleet/pull-messages HTTP/1.1\r\nX: ")
        sent = 0
        while attacker.goes_on() and sent < ENOUGH:
            connection.sendall(piece)
            sent += len(piece)
            attacker.note_most("most bytes of a header", sent)

    while attacker.goes_on():
        attacker.connect(act)


def slow_bodies(attacker: Attacker) -> None:
    """Send bodies a byte a second, over 200 connections."""
    _together(attacker, SLOW, _slow_body)


def _slow_body(attacker: Attacker) -> None:

    def act(connection: socket.socket) -> None:
        connection.sendall(attacker.headers("activate-node", 4000))
        connection.settimeout(1.0)
        while attacker.goes_on():
            connection.sendall(b"\n")
            with contextlib.suppress(TimeoutError):
                attacker.note(_status(connection))
                return

    while attacker.goes_on():
        attacker.connect(act)


def half_open(attacker: Attacker) -> None:
    """Begin a thousand handshakes and finish none; begin anew where they are ended."""
    held: list[socket.socket] = []
    address = attacker.host, attacker.port
    while attacker.goes_on():
        if len(held) >= HALF_OPEN:
            held.pop(0).close()
            time.sleep(PAUSE / 20)
        with contextlib.suppress(OSError):
            held.append(socket.create_connection(address, 1.0, (attacker.source, 0)))
            held[-1].sendall(b"\x16\x03\x01")  # The beginning of a handshake.
            attacker.note("connections")
    for connection in held:
        connection.close()


def bombs(attacker: Attacker) -> None:
    """Send two bytes over and over, the longest body that there is, on eight connections."""
    _together(attacker, BOMBERS, _bomb)


def _bomb(attacker: Attacker) -> None:
    body = b"\x12\x00" * (BODY // 2)  # So many empty messages.

    def act(connection: socket.socket) -> None:
        connection.sendall(attacker.headers("push-messages", len(body)))
        with contextlib.suppress(OSError):
            connection.sendall(body)
        attacker.note(_status(connection))

    while attacker.goes_on():
        attacker.connect(act, timeout=60.0)


def member_flood(attacker: Attacker) -> None:
    """Send a registered node's requests as fast as they go, on 16 connections, 10,000 in all."""
    _together(attacker, FLOODERS, _flood)


def _flood(attacker: Attacker) -> None:
    node = Node(node_id=attacker.node_id)
    requests = {  # A row in the database, and a read.
        "send-node-heartbeat": SendNodeHeartbeatRequest(node=node, heartbeat_interval=60.0),
        "pull-object": PullObjectRequest(node=node, run_id=1, object_id="0" * 64),
    }
    bodies = {path: request.SerializeToString() for path, request in requests.items()}

    def act(connection: socket.socket) -> None:
        # A signature holds for five minutes.
        whole = [attacker.headers(path, len(body)) + body for path, body in bodies.items()]
        for request in itertools.cycle(whole):
            if not attacker.goes_on() or not attacker.next_request():
                return
            connection.sendall(request)
            status = _status(connection)
            attacker.note(status)
            if status in ("429", "503", "closed"):
                return

    while attacker.goes_on() and attacker.found["requests"] < FLOOD:
        attacker.connect(act, timeout=60.0)


ATTACKS: dict[str, Callable[[Attacker], None]] = {
    attack.__name__: attack
    for attack in (
        endless_header,
        many_headers,
        slow_bodies,
        half_open,
        bombs,
        member_flood,
    )
}


def main(
    name: str,
    address: str,
    seconds: str,
    source: str = "127.0.0.2",
    key: str = "",
    node_id: str = "0",
) -> None:
    """Play one attack; it leaves the processor to others, as if it had a host of its own."""
    os.setpriority(os.PRIO_PROCESS, 0, 19)
    with contextlib.suppress(OSError):  # Linux may share the processor by session.
        Path("/proc/self/autogroup").write_text("5")
    host, port = address.rsplit(":", 1)
    attacker = Attacker(
        host, int(port), time.monotonic() + float(seconds), source, key, int(node_id)
    )

    def end(*_: object) -> None:
        print(json.dumps(attacker.found), flush=True)
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    print("begins", flush=True)
    Thread(target=ATTACKS[name], args=(attacker,), daemon=True).start()
    while True:
        time.sleep(1.0)  # Until whoever started it ends it.


if __name__ == "__main__":
    main(*sys.argv[1:])
