"""A registered node is found by its key; it gets another one, and stays the node that it was.

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

_UNREGISTERED = "unregistered"  # Flower keeps such nodes; they are let in no more.
_SECONDS = 60.0  # For a lock that the SuperLink holds.


def node_with_key(database: Path, key: VerifyingKey) -> str:
    """Return the id of the node that is let in with a key; empty: none is.

    Parameters
    ----------
    database : Path
        The SuperLink's, which may be running.
    key : public key
        The node's.

    Raises
    ------
    ConfigError
        If the database is not as Flower writes it.
    """
    if not database.is_file():
        return ""
    query = "SELECT node_id FROM node WHERE public_key = ? AND status != ?"
    try:
        with closing(sqlite3.connect(database, timeout=_SECONDS)) as connection:
            row = connection.execute(query, (_pem(key), _UNREGISTERED)).fetchone()
    except sqlite3.Error as error:
        raise ConfigError(f"{database}: no node can be looked up: {error}") from error
    if row is None:
        return ""
    [row_id] = row
    return str(row_id % 2**64)


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
    new_pem = _pem(new)
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


def _pem(key: VerifyingKey) -> bytes:
    """Return a public key as Flower's database has it."""
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def _is_one_of(pem: bytes, *expected: VerifyingKey) -> bool:
    current = key_id(read_public_key(pem, "key"))
    return current in [key_id(key) for key in expected]
