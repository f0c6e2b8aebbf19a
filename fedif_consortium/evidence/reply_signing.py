"""What a reply says that is signed: who signs it adds a record, and the server reads it."""

from __future__ import annotations

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedif_consortium.evidence.keys import SigningKey
from fedif_consortium.evidence.signed_update import SignedUpdate, UpdateStatement, arrays_digest
from fedif_flower.messages.arrays import view_array
from fedif_flower.messages.reply_arrays import model_arrays_of

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
    head: bytes = b"",
) -> SignedUpdate:
    """Sign what a reply holds and what its sender knows of the records, and add the signature.

    Raises
    ------
    ReplyError
        If there are no arrays in it, or in what was received, that can be read.
    """
    statement = UpdateStatement(
        run=run,
        server_round=server_round,
        node=node_id,
        examples=claimed_examples(content),
        received=record_digest(received),
        sent=record_digest(model_arrays_of(content)),
        head=head,
    )
    signed = SignedUpdate.by(key, statement)
    content[SIGNATURE_RECORD] = ConfigRecord(
        {
            "key": signed.key,
            "signature": signed.signature,
            "received": statement.received,
            "sent": statement.sent,
            **({"head": head} if head else {}),  # A record has no empty bytes.
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
