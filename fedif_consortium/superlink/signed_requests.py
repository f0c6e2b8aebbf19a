"""A request's body is read only if it is small, or if a registered node signed its header.

Flower 1.41 parses a request, on the event loop, before it looks at the signature in its header. So
anybody could send a megabyte that repeats the same two bytes, and each such request would cost the
SuperLink 20 ms and 30 MiB.
"""

from __future__ import annotations

import datetime
import hashlib
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from anyio import to_thread
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.supernode import MOST_AHEAD, MOST_BEHIND

FLEET = "/v1/fleet/"
SMALL = 4096  # Bytes. A body of this size, such as a key or a few ids, costs little to parse.
# Names of headers in lower case, as ASGI gives them.
KEY = FLEET_HTTP_PUBLIC_KEY_HEADER.lower().encode()
SIGNATURE = FLEET_HTTP_SIGNATURE_HEADER.lower().encode()
STAMP = TIMESTAMP_HEADER.lower().encode()
LENGTH = b"content-length"
# What a header raises that is missing, or holds no key of a kind that is known here.
_NO_KEY = (KeyError, ValueError, TypeError, UnsupportedAlgorithm)
_ONCE = (KEY, SIGNATURE, STAMP, LENGTH)  # A request that has one of these twice is refused.


class SignedRequests:
    """An ASGI application in front of the SuperLink that refuses requests by their headers.

    It checks the requests of SuperNodes, and passes all others on.

    Parameters
    ----------
    app : ASGIApp
        The SuperLink.
    state : Callable
        Returns Flower's link state, which knows the nodes' keys.
    removed : collection of str
        Ids of removed keys. A request with one of them is refused even if the link state knows the
        key: a backup of the link state's database may have been put back.
    """

    def __init__(
        self, app: ASGIApp, state: Callable[[], Any], removed: Collection[str] = ()
    ) -> None:
        self._app = app
        self._state = state
        self._removed = removed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        is_nodes = scope["type"] == "http" and scope["path"].startswith(FLEET)
        if is_nodes and not await self._lets_in(scope["headers"]):
            response = PlainTextResponse("Invalid SuperNode authentication", 401)
            response.headers["connection"] = "close"  # So that the body need not be read.
            await response(scope, receive, send)
            return
        await self._app(scope, receive, send)

    async def _lets_in(self, lines: Sequence[tuple[bytes, bytes]]) -> bool:
        """Return whether a request's body may be read; ``lines`` are its headers."""
        times = Counter(name for name, _ in lines)
        if any(times[name] > 1 for name in _ONCE):
            # Of two headers with one name, Flower reads the first, and dict() below keeps the last.
            # So the header that is checked here would not be the header that counts there.
            return False
        headers = dict(lines)
        if not _is_small(headers):
            is_node = await to_thread.run_sync(self._is_signed, headers)
            if not is_node:
                return False
        if not self._removed:
            return True
        return _key_of(headers) not in self._removed

    def _is_signed(self, headers: Mapping[bytes, bytes]) -> bool:
        return is_signed(headers, self._state())


def _is_small(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether the headers promise a small body."""
    # A body without a length, or one that comes in chunks, may have any size.
    if b"transfer-encoding" in headers:
        return False
    length = headers.get(LENGTH, b"none")
    return length.isdigit() and int(length) <= SMALL


def is_signed(headers: Mapping[bytes, bytes], state: Any) -> bool:
    """Return whether a registered node signed the time stamp in a request's headers just now.

    Parameters
    ----------
    headers : mapping
        The headers by name, in lower case.
    state : LinkState
        Flower's link state, which knows the nodes' keys.
    """
    try:
        key = b64decode(headers[KEY], validate=True)
        signature = b64decode(headers[SIGNATURE], validate=True)
        stamp = headers[STAMP]
        signed_at = datetime.datetime.fromisoformat(stamp.decode("ascii"))
        age = (now() - signed_at).total_seconds()
        # The cheapest checks come first: only a known key is parsed, and verifies a signature.
        if not -MOST_AHEAD < age < MOST_BEHIND:
            return False
        if state.get_node_id_by_public_key(key) is None:
            return False
        return verify_signature(bytes_to_public_key(key), stamp, signature)
    except _NO_KEY:
        return False


def removed_keys(path: Path) -> frozenset[str]:
    """Return the ids of the keys in a federation's list of removed members, a CSV file.

    An id is the SHA-256, in hex, of a public key as DER (SubjectPublicKeyInfo).
    """
    return frozenset(row["key"] for row in read_rows(path) if row.get("key"))


def _key_of(headers: Mapping[bytes, bytes]) -> str:
    """Return the id of the key in a request's headers; empty: there is none, or it is no key."""
    try:
        return _id_of(b64decode(headers[KEY], validate=True))
    except _NO_KEY:
        return ""


@lru_cache(maxsize=1000)
def _id_of(key: bytes) -> str:
    """Return the id of a public key in PEM, as :func:`removed_keys` defines it."""
    public_key = bytes_to_public_key(key)
    der = public_key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).hexdigest()
