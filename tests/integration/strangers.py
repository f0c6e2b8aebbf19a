"""What reaches a public port from hosts that hold no registered key, and from one that does.

``python -m tests.integration.strangers NAME HOST:PORT KEY NODE-ID`` plays one attack, as a process
of its own, from an address of its own, until it is ended; then it prints what came of it as JSON.
Only :func:`member_flood` uses the registered key.
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
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from threading import Lock, Thread

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import PullObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE

from tests.consortium.superlink.test_signed_requests import headers

HOME = "127.0.0.2"
FLEET = "/v1/fleet/"
PIECE = 64 * 1024
BODY = 9 * 1024 * 1024
ENOUGH = 64 * 1024 * 1024  # More of a header than any server should take.
LONGEST = "most bytes of a header"
PAUSE = 0.1  # Before a connection that was ended is begun anew.
HALF_OPEN, SLOW, BOMBERS, FLOODERS = 1000, 200, 8, 12
Act = Callable[[HTTPSConnection], None]


@dataclass
class Attacker:
    """Where an attack goes to, and what came of it."""

    host: str
    port: int
    key: Path
    node_id: int
    found: Counter[str] = field(default_factory=Counter)
    lock: Lock = field(default_factory=Lock)

    def note(self, name: str | int) -> None:
        with self.lock:
            self.found[str(name)] += 1

    def play(self, act: Act, connections: int = 1) -> None:
        """Act on so many connections at once, each of them anew once it has ended."""
        for _ in range(connections):
            Thread(target=self._again, args=(act,), daemon=True).start()

    def _again(self, act: Act) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        while True:
            connection = HTTPSConnection(
                self.host, self.port, timeout=60.0, source_address=(HOME, 0), context=context
            )
            try:
                connection.connect()
                self.note("connections")
                act(connection)
            except (OSError, HTTPException):
                self.note("ended by the server")
                time.sleep(PAUSE)
            finally:
                connection.close()


def _begin(connection: HTTPSConnection, path: str, length: int) -> None:
    """Send a request's header, signed by a key that nobody has registered."""
    signed = headers(ec.generate_private_key(ec.SECP384R1()))
    connection.putrequest("POST", FLEET + path)
    for name, value in {"Content-Length": str(length), **signed}.items():
        connection.putheader(name, value)
    connection.putheader("Content-Type", PROTOBUF_MEDIA_TYPE)
    connection.endheaders()


def endless_header(attacker: Attacker) -> None:
    _endless(attacker, b"x" * PIECE)


def many_headers(attacker: Attacker) -> None:
    _endless(attacker, b"X-Header: value\r\n" * (PIECE // 17))


def _endless(attacker: Attacker, piece: bytes) -> None:
    def act(connection: HTTPSConnection) -> None:
        connection.send(b"POST /v1/fleet/pull-messages HTTP/1.1\r\nX: ")
        for sent in range(len(piece), ENOUGH, len(piece)):
            connection.send(piece)
            attacker.found[LONGEST] = max(attacker.found[LONGEST], sent)

    attacker.play(act)


def slow_bodies(attacker: Attacker) -> None:
    """Send bodies a byte a second, over 200 connections."""

    def act(connection: HTTPSConnection) -> None:
        _begin(connection, "activate-node", 4000)
        connection.sock.settimeout(1.0)
        while True:
            connection.send(b"\n")
            with contextlib.suppress(TimeoutError):
                attacker.note(connection.getresponse().status)
                return

    attacker.play(act, SLOW)


def half_open(attacker: Attacker) -> None:
    """Begin a thousand handshakes and finish none; begin anew where they are ended."""
    held: list[socket.socket] = []
    while True:
        if len(held) >= HALF_OPEN:
            held.pop(0).close()
            time.sleep(PAUSE / 20)
        with contextlib.suppress(OSError):
            held.append(socket.create_connection((attacker.host, attacker.port), 1.0, (HOME, 0)))
            held[-1].sendall(b"\x16\x03\x01")  # The beginning of a handshake.
            attacker.note("connections")


def bombs(attacker: Attacker) -> None:
    """Send two bytes over and over, the longest body that there is, on eight connections."""
    body = b"\x12\x00" * (BODY // 2)  # So many empty messages.

    def act(connection: HTTPSConnection) -> None:
        _begin(connection, "push-messages", len(body))
        with contextlib.suppress(OSError):  # It may be answered before it is read.
            connection.send(body)
        attacker.note(connection.getresponse().status)

    attacker.play(act, BOMBERS)


def member_flood(attacker: Attacker) -> None:
    """Send a registered node's requests as fast as they go, on twelve connections."""
    node = Node(node_id=attacker.node_id)
    requests = {  # A row in the database, and a read.
        "send-node-heartbeat": SendNodeHeartbeatRequest(node=node, heartbeat_interval=60.0),
        "pull-object": PullObjectRequest(node=node, run_id=1, object_id="0" * 64),
    }
    bodies = {FLEET + path: request.SerializeToString() for path, request in requests.items()}
    private = load_ssh_private_key(attacker.key.read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)

    def act(connection: HTTPSConnection) -> None:
        # A signature holds for five minutes.
        signed = {"Content-Type": PROTOBUF_MEDIA_TYPE, **headers(private)}
        for path, body in itertools.cycle(bodies.items()):
            connection.request("POST", path, body, signed)
            answer = connection.getresponse()
            answer.read()
            attacker.note(answer.status)
            if answer.status in (429, 503):
                return

    attacker.play(act, FLOODERS)


ATTACKS: dict[str, Callable[[Attacker], None]] = {
    attack.__name__: attack
    for attack in (endless_header, many_headers, slow_bodies, half_open, bombs, member_flood)
}


def main(name: str, address: str, key: str, node_id: str) -> None:
    """Play one attack; it leaves the processor to others, as if it had a host of its own."""
    os.setpriority(os.PRIO_PROCESS, 0, 19)
    with contextlib.suppress(OSError):  # Linux may share the processor by session.
        Path("/proc/self/autogroup").write_text("5")
    host, port = address.rsplit(":", 1)
    attacker = Attacker(host, int(port), Path(key), int(node_id))

    def end(*_: object) -> None:
        print(json.dumps(attacker.found), flush=True)
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    print("begins", flush=True)
    ATTACKS[name](attacker)
    while True:
        time.sleep(1.0)


if __name__ == "__main__":
    main(*sys.argv[1:])
