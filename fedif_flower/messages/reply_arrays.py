"""Which arrays of a reply are the model's: client, member and server ask here."""

from __future__ import annotations

from flwr.app import ArrayRecord, RecordDict

from fedif_flower.errors import ReplyError
from fedif_flower.messages.instructions import VECTOR_RECORD


def arrays_of(content: RecordDict) -> ArrayRecord:
    """Return the one record of arrays that a reply has to hold.

    Raises
    ------
    ReplyError
        If there is none, or more.
    """
    # Not ``content.array_records``: that leaves a cycle of references, and with it the arrays,
    # until the garbage collector comes by.
    of_arrays = [record for record in content.values() if isinstance(record, ArrayRecord)]
    if len(of_arrays) != 1:
        raise ReplyError(f"expected one ArrayRecord, got {len(of_arrays)}")
    return of_arrays[0]


def model_arrays_of(content: RecordDict) -> ArrayRecord:
    """Return a reply's arrays of the model, beside which a local method's may stand.

    Raises
    ------
    ReplyError
        If there are none, or more.
    """
    others = {name: record for name, record in content.items() if name != VECTOR_RECORD}
    return arrays_of(RecordDict(others))
