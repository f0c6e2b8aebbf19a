"""A SuperNode's request before Flower sees it: who signed it, how long it is, its fields.

Flower 1.41 parses a request, on the event loop, before it looks at the signature in its header. So
two bytes over and over took the SuperLink two seconds and 270 MiB a request, from anybody.
"""

from __future__ import annotations

import binascii
import datetime
from base64 import b64decode
from collections.abc import Mapping
from typing import Any

from flwr.common.constant import (
    FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE,
    SYSTEM_TIME_TOLERANCE,
    TIMESTAMP_HEADER,
    TIMESTAMP_TOLERANCE,
)
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature

PUBLIC_PATH = "/v1/fleet/"
KEY_HEADER = FLEET_HTTP_PUBLIC_KEY_HEADER.lower().encode()
# A chunk of an array and what is around it: nothing that a SuperNode sends is larger.
MAX_REQUEST_BYTES = FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE + 4 * 1024 * 1024
SMALL = 4096  # A key, a few ids.
# What a key that is not registered may ask for; Flower answers that there is no such node.
OPEN_TO_ALL = ("activate-node", "register-node")
PATHS = frozenset(
    {
        *OPEN_TO_ALL,
        *("deactivate-node", "unregister-node", "send-node-heartbeat", "pull-messages"),
        *("push-messages", "get-run", "get-fab", "push-object", "pull-object"),
        "confirm-message-received",
    }
)
# An announcement writes a row for each object in it.
COSTS = {"push-messages": 10.0}
MAX_FIELDS = 16  # A request has five at most.
_CONTENT = PushObjectRequest.DESCRIPTOR.fields_by_name["object_content"].number


class UnknownSignerError(Exception):
    """A request that no registered node has signed."""


def signer(headers: Mapping[bytes, bytes], state: Any) -> int:
    """Return the id of the registered node that signed a request's header.

    Parameters
    ----------
    headers : mapping
        By name in small letters.
    state : LinkState
        Flower's, which knows the keys.

    Raises
    ------
    UnknownSignerError
    """
    try:
        key = b64decode(headers[KEY_HEADER], validate=True)
        signature = b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER.lower().encode()], validate=True)
        stamp = headers[TIMESTAMP_HEADER.lower().encode()]
        age = (now() - datetime.datetime.fromisoformat(stamp.decode("ascii"))).total_seconds()
        # What costs least first: a key is parsed, and a signature computed with, if it is known.
        if not -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE:
            raise UnknownSignerError
        node_id = state.get_node_id_by_public_key(key)
        if node_id is None or not verify_signature(bytes_to_public_key(key), stamp, signature):
            raise UnknownSignerError
    except (KeyError, ValueError, TypeError, binascii.Error) as error:
        raise UnknownSignerError from error
    return int(node_id)


def most_bytes(name: str, announcement: int) -> int:
    """Return how long a request may be; ``announcement``: one that lists a reply's objects."""
    if name == "push-object":
        return MAX_REQUEST_BYTES
    return announcement if name == "push-messages" else SMALL


def is_plain(name: str, body: bytes) -> bool:
    """Return whether a request has a few fields, and all but an object's content is small.

    Parsing one then costs what copying its bytes does.
    """
    if name not in ("push-object", "push-messages"):
        return True  # Small as a whole.
    position, other = 0, 0
    for _ in range(MAX_FIELDS):
        if position == len(body):
            return name != "push-object" or other <= SMALL
        tag, start = _varint(body, position)
        kind = tag & 7
        if kind == 2:
            size, start = _varint(body, start)
            end = start + size
        elif kind == 0:
            _, end = _varint(body, start)
        elif kind in (1, 5):
            end = start + (8 if kind == 1 else 4)
        else:
            return False
        if start < 0 or not position < end <= len(body):
            return False
        if tag >> 3 != _CONTENT or kind != 2:
            other += end - position
        position = end
    return False


def _varint(body: bytes, position: int) -> tuple[int, int]:
    """Return a number and the position after it, -1 where there is none."""
    value = 0
    if position < 0:
        return 0, -1
    for shift, byte in enumerate(body[position : position + 10]):
        value |= (byte & 127) << 7 * shift
        if byte < 128:
            return value, position + shift + 1
    return 0, -1
