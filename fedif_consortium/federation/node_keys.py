"""Finds a registered node by its key in Flower's database, and gives a node another key.

Flower can only register a key or end a registration. With these, a member that lost its key would
get another node id: it would lose its score, and have two lines in a statement. So the key is
replaced in Flower's database, where Flower looks it up at every request.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from contextlib import closing
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fedif_consortium.evidence.keys import VerifyingKey, key_id, read_public_key
from fedif_consortium.federation.flower import UNREGISTERED
from fedif_flower.errors import ConfigError

_LOST = (
    "(if the database was lost: first `fedif federation add-member` with the member's last answer)"
)
_SECONDS = 60.0  # How long to wait for the database while the SuperLink has locked it.


def node_with_key(database: Path, key: VerifyingKey) -> str:
    """Return the id of the node that is registered with a key; empty if there is none.

    Parameters
    ----------
    database : Path
        The database of the SuperLink, which may be running.
    key : public key
        The node's key.

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
            row = connection.execute(query, (_pem(key), UNREGISTERED)).fetchone()
    except sqlite3.Error as error:
        raise ConfigError(f"{database}: no node can be looked up: {error}") from error
    if row is None:
        return ""
    [row_id] = row
    return str(row_id % 2**64)  # SQLite has only signed integers of 64 bits.


def replace_key(
    database: Path, node_id: str, old: Collection[VerifyingKey], new: VerifyingKey
) -> bool:
    """Replace a node's key; the old one is no longer let in.

    If the node has the new key already, as after an interrupted call, nothing changes.

    Parameters
    ----------
    database : Path
        The database of the SuperLink, which may be running.
    node_id : str
        The node's id.
    old : collection of public key
        The keys that the node had so far: a restored database may have any of them.
    new : public key
        The key that it gets.

    Returns
    -------
    bool
        Whether the node had another key.

    Raises
    ------
    ConfigError
        If the database has no such node with one of these keys, its registration has ended, or the
        database is not as Flower writes it.
    """
    if not database.is_file():
        raise ConfigError(
            f"{database} is not there: the SuperLink has registered nobody yet {_LOST}"
        )
    new_pem = _pem(new)
    # SQLite has only signed integers: use the one with the same 64 bits.
    row_id = int.from_bytes(int(node_id).to_bytes(8, "big"), "big", signed=True)
    try:
        with closing(sqlite3.connect(database, timeout=_SECONDS)) as connection, connection:
            connection.execute("BEGIN IMMEDIATE")
            query = "SELECT public_key, status FROM node WHERE node_id = ?"
            current_pem, status = connection.execute(query, (row_id,)).fetchone() or (None, "")
            if current_pem is None or not _is_one_of(current_pem, *old, new):
                raise ConfigError(
                    f"{database} has no node {node_id} with the key that is known {_LOST}"
                )
            if status == UNREGISTERED:
                raise ConfigError(f"{database}: the registration of node {node_id} has ended")
            connection.execute(
                "UPDATE node SET public_key = ? WHERE node_id = ?", (new_pem, row_id)
            )
    except sqlite3.Error as error:
        raise ConfigError(f"{database}: the key cannot be replaced: {error}") from error
    return not _is_one_of(current_pem, new)


def _pem(key: VerifyingKey) -> bytes:
    """Return a public key in the form of Flower's database: PEM, SubjectPublicKeyInfo."""
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def _is_one_of(pem: bytes, *expected: VerifyingKey) -> bool:
    current = key_id(read_public_key(pem, "key"))
    return current in [key_id(key) for key in expected]
