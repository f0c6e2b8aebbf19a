"""A member signs what it sends: with the key that its own node config names."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedif_consortium.evidence.keys import SigningKey, read_private_key
from fedif_consortium.evidence.signed_update import SignedUpdate, UpdateStatement, arrays_digest
from fedif_flower.errors import ConfigError
from fedif_flower.messages.arrays import view_array
from fedif_flower.messages.instructions import ROUND_KEY, RUN_ID_KEY
from fedif_flower.messages.node_config import NodeConfig
from fedif_flower.messages.preflight import Finding, Status
from fedif_flower.messages.reply_arrays import model_arrays_of
from fedif_flower.storage import require_private

SIGNATURE_RECORD = "signature"  # In a reply, beside the arrays.
EXAMPLES = "num-examples"


def record_digest(arrays: ArrayRecord) -> bytes:
    """Return the digest of a record's arrays, however they are serialised.

    Raises
    ------
    ReplyError
        If an array is none of NumPy's.
    """
    return arrays_digest((str(name), view_array(array)) for name, array in arrays.items())


def sign_reply(
    content: RecordDict,
    received: ArrayRecord,
    key: SigningKey,
    *,
    run: str,
    server_round: int,
    node_id: int,
) -> SignedUpdate:
    """Sign what a reply holds, and add the signature to it."""
    statement = UpdateStatement(
        run=run,
        server_round=server_round,
        node=node_id,
        examples=claimed_examples(content),
        received=record_digest(received),
        sent=record_digest(model_arrays_of(content)),
    )
    signed = SignedUpdate.by(key, statement)
    content[SIGNATURE_RECORD] = ConfigRecord(
        {
            "key": signed.key,
            "signature": signed.signature,
            "received": statement.received,
            "sent": statement.sent,
        }
    )
    return signed


def claimed_examples(content: RecordDict) -> float:
    """Return what a reply says of its examples; NaN: nothing."""
    for record in content.values():
        if isinstance(record, MetricRecord):
            value = record.get(EXAMPLES)
            if isinstance(value, int | float):
                return float(value)
    return float("nan")


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


def check_signing_key(node: NodeConfig) -> str | Finding:
    """Return whether the key that the node config names can be read.

    Raises
    ------
    ConfigError
        If it is no private key.
    """
    if node.signing_key is None:
        return "none is named"
    path = Path(node.signing_key).expanduser()
    try:
        read_private_key(path.read_bytes(), f"signing-key = {str(path)!r}")
    except OSError as error:
        raise ConfigError(f"signing-key = {str(path)!r}: {error.strerror}") from error
    try:
        require_private(path, "signing-key")
    except ConfigError as error:
        return Finding("signing-key", Status.WARNING, str(error))
    return "readable, by its owner alone"


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
