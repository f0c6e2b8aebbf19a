"""A member signs what it sends: with the key that its own node config names."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from fedif_consortium.evidence.keys import SigningKey, read_private_key
from fedif_consortium.evidence.reply_witness import sign_reply
from fedif_consortium.evidence.signed_update import SignedUpdate
from fedif_flower.errors import ConfigError
from fedif_flower.messages.instructions import ROUND_KEY, RUN_ID_KEY
from fedif_flower.messages.node_config import NodeConfig


def signing_key(node: NodeConfig) -> SigningKey | None:
    """Return the key that a node signs with; ``None``: its config names none.

    Raises
    ------
    ConfigError
        If the file holds no such key.
    """
    if not node.signing_key:
        return None
    path = Path(node.signing_key).expanduser()
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"signing-key = {str(path)!r} cannot be read: {error.strerror}"
        ) from error
    return read_private_key(content, f"signing-key = {str(path)!r}")


def signed_reply(
    content: RecordDict,
    received: ArrayRecord,
    settings: ConfigRecord,
    key: SigningKey,
    node_id: int,
) -> SignedUpdate | None:
    """Sign a reply for the run and round that the server named; ``None``: it names no run."""
    run = str(settings.get(RUN_ID_KEY, ""))
    if not run:
        return None
    server_round = cast(int, settings[ROUND_KEY])
    return sign_reply(content, received, key, run=run, server_round=server_round, node_id=node_id)
