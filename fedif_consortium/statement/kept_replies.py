"""Checking that the updates that a run kept are those that members signed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedif_consortium.evidence.kept_replies import read_replies, sent_files
from fedif_consortium.evidence.signed_update import SignedUpdate, arrays_digest
from fedif_flower.errors import StatementError
from fedif_flower.run.folder import RunFolder, file_of_round
from fedif_flower.run.kept_updates import read_step

_ROUNDING = 1e-4  # Of an update's length: a difference is rounded, a shortened one twice.


def check_kept_replies(run: RunFolder, signed: Mapping[tuple[int, int], SignedUpdate]) -> None:
    """Check kept replies against what was signed, and kept updates against the replies.

    Raises
    ------
    StatementError
        Naming round and client.
    """
    for number, path in sent_files(run.updates).items():
        replies, trained = read_replies(path)
        step = read_step(file_of_round(run.updates, number))
        rows = {node.client_id: row for row, node in enumerate(step.nodes)}
        for client_id, arrays in replies.items():
            where = f"round {number}: the kept update of client {client_id}"
            update = signed.get((number, client_id))
            if update is None or arrays_digest(arrays.items()) != update.statement.sent:
                raise StatementError(f"{where} is not the one that was signed")
            if client_id not in rows:
                raise StatementError(f"{where} is not among those that were used")
            before = step.before
            if (asked := update.statement.server_round) != number:  # It came late.
                earlier = file_of_round(run.updates, asked)
                if not earlier.is_file():
                    continue
                before = read_step(earlier).before
            sent = np.concatenate([np.ravel(arrays[name]) for name in trained])
            used = step.updates.client_updates[rows[client_id]].double().numpy()
            if not _is_part(used, sent.astype(np.float64) - before.params.double().numpy()):
                raise StatementError(f"{where}, which was used, is not what it sent")
    for number, client_id in signed:
        path = file_of_round(run.updates, number)
        if path.is_file() and any(n.client_id == client_id for n in read_step(path).nodes):
            files = sent_files(run.updates)
            if number not in files or client_id not in read_replies(files[number])[0]:
                raise StatementError(f"round {number}: the reply of client {client_id} is missing")


def _is_part(used: NDArray[Any], sent: NDArray[Any]) -> bool:
    """Return whether an update is another one, or a shorter one of its direction."""
    length = float(sent @ sent)
    factor = float(used @ sent) / length if length else 0.0
    bound = _ROUNDING * (float(np.linalg.norm(sent)) + 1e-12)
    return 0 <= factor <= 1 + _ROUNDING and float(np.linalg.norm(used - factor * sent)) <= bound
