"""A registered node gets another key, and stays the node that it was.

Flower can register a key, or end a registration. Either way a member that lost its key would get
another node id: it would lose its score, and have two lines in a statement. So the key is replaced
in Flower's database, where Flower looks it up at every request.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fedif_consortium.evidence.keys import VerifyingKey, key_id, read_public_key
from fedif_flower.errors import ConfigError

_SECONDS = 60.0  # For a lock that the SuperLink holds.


def replace_key(database: Path, node_id: str, old: VerifyingKey, new: VerifyingKey) -> None:
    """Replace a node's key; its old one opens nothing any more.

    A node that has the new one already stays as it is: an earlier attempt came so far.

    Parameters
    ----------
    database : Path
        The SuperLink's, which may be running.
    node_id : str
        The node's.
    old, new : public key
        The key that the node had, and the one that it gets.

    Raises
    ------
    ConfigError
        If the database has no such node with one of these keys, or is not as Flower writes it.
    """
    if not database.is_file():
        raise ConfigError(f"{database} is not there: the SuperLink has registered nobody yet")
    new_pem = new.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    # SQLite knows signed integers alone: the same 64 bits.
    row_id = int.from_bytes(int(node_id).to_bytes(8, "big"), "big", signed=True)
    try:
        with closing(sqlite3.connect(database, timeout=_SECONDS)) as connection, connection:
            connection.execute("BEGIN IMMEDIATE")
            cursor = connection.execute("SELECT public_key FROM node WHERE node_id = ?", (row_id,))
            [current_pem] = cursor.fetchone() or [None]
            if current_pem is None or not _is_one_of(current_pem, old, new):
                raise ConfigError(f"{database} has no node {node_id} with the key that is known")
            connection.execute(
                "UPDATE node SET public_key = ? WHERE node_id = ?", (new_pem, row_id)
            )
    except sqlite3.Error as error:
        raise ConfigError(f"{database}: the key cannot be replaced: {error}") from error


def _is_one_of(pem: bytes, *expected: VerifyingKey) -> bool:
    current = key_id(read_public_key(pem, "key"))
    return current in [key_id(key) for key in expected]
