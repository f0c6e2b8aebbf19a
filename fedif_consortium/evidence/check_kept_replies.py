"""Checks of kept updates: each follows from the reply that its member signed.

With ``updates.keep``, a run keeps its updates, as rounds used them, and signed replies, as they
came.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedif_consortium.evidence.bound_rows import agreed_settings
from fedif_consortium.evidence.reply_witness import TRAINED, TYPES, sent_file
from fedif_consortium.evidence.signed import Signatures, SignedUpdate, arrays_digest
from fedif_flower.errors import StatementError
from fedif_flower.foreign import refused_as, require_plain_archive
from fedif_flower.intake.pace import inverse_root
from fedif_flower.run.folder import RunFolder, file_of_round, files_of_rounds
from fedif_flower.run.kept_updates import read_step
from fedif_flower.server.record import Step

# How far a kept update may be from the signed one, as a part of its length. The server rounds the
# difference of two models, and rounds again where it shortens that.
_ROUNDING = 1e-4


def check_kept_replies(run: RunFolder, signed: Signatures) -> None:
    """Check kept replies against the signatures, and kept updates against the kept replies.

    Raises
    ------
    StatementError
        If a reply is not the one that was signed, an update does not follow from its reply, or a
        reply was not used. The message names round and client.
    """
    settings = agreed_settings(run)
    for number, path in files_of_rounds(run.updates).items():
        step = read_step(path)
        file = sent_file(run.updates, number)
        replies = _read_replies(file)
        for node, used in zip(step.nodes, step.updates.client_updates, strict=True):
            where = f"round {number}: the kept update of client {node.client_id}"
            update = signed.get((number, node.client_id))
            arrays = replies.arrays.pop(node.client_id, {})
            if update is None and not arrays:
                continue  # Nobody signed it.
            if update is None or arrays_digest(arrays.items()) != update.sent:
                raise StatementError(f"{where} is not the one that was signed")
            received = _received_parameters(run, number, step, update)
            if received is None:  # The change cannot be computed without that model.
                continue
            with refused_as(StatementError, f"{file.name} does not fit the model"):
                change = _change(arrays, replies, received)
            shortening = _shortening(change, settings, rounds_late=number - update.asked_in)
            if not _is_shortened(used.double().numpy(), change, shortening):
                raise StatementError(f"{where}, which was used, is not what it sent")
        if replies.arrays:
            client_id = min(replies.arrays)
            raise StatementError(f"round {number}: client {client_id}'s reply was not used")


class _KeptReplies(NamedTuple):
    """A round's signed replies as they came, before the server rounds or shortens them.

    Attributes
    ----------
    arrays : dict of int to dict of str to ndarray
        The arrays of each reply by client id and by the array's name.
    trained : list of str
        The names of the trained parameters, in the order of the model's vector.
    types : list of str
        The NumPy types of these parameters in the server's model; empty in records of an earlier
        version, which lack them.
    """

    arrays: dict[int, dict[str, NDArray[Any]]]
    trained: list[str]
    types: list[str]


def _read_replies(path: Path) -> _KeptReplies:
    """Return the kept replies in a file; without any if there is no file."""
    arrays = defaultdict[int, dict[str, NDArray[Any]]](dict)
    if not path.is_file():
        return _KeptReplies(arrays, [], [])
    with refused_as(StatementError, f"{path.name} holds no replies"):
        require_plain_archive(path)
    with np.load(path, allow_pickle=False) as content:
        types: list[str] = []
        for key in content.files:
            client_id, slash, name = key.partition("/")
            if slash:
                arrays[int(client_id)][name] = content[key]
            elif key == TYPES:
                types = content[key].tolist()
        return _KeptReplies(arrays, [str(name) for name in content[TRAINED]], types)


def _change(
    arrays: Mapping[str, NDArray[Any]], replies: _KeptReplies, received: NDArray[Any]
) -> NDArray[np.float64]:
    """Return an update ``[d]``: a reply minus the model ``[d]`` that its member received.

    As the server does, the reply is first rounded to the model's types.

    Raises
    ------
    ValueError
        If the types of the kept replies cannot be those of the model, or another number of
        parameters was sent than the model has.
    KeyError
        If the reply lacks a parameter.
    """
    types = replies.types or [received.dtype.str] * len(replies.trained)
    change = np.empty(len(received))
    start = 0
    for name, type_name in zip(replies.trained, types, strict=True):
        sent = np.ravel(arrays[name])
        before = received[start : start + len(sent)]
        is_float = np.dtype(type_name).kind == "f"
        if not (is_float and np.array_equal(before.astype(type_name), before)):
            raise ValueError(f"{name!r} is {type_name}, and the model has other numbers")
        change[start : start + len(sent)] = sent.astype(type_name).astype(np.float64) - before
        start += len(sent)
    if start != len(received):
        raise ValueError(f"{start} parameters of {len(received)}")
    return change


def _received_parameters(
    run: RunFolder, number: int, step: Step, update: SignedUpdate
) -> NDArray[Any] | None:
    """Return the model ``[d]`` from which a member's update began; ``None`` if it was not kept."""
    model = step.before
    if update.asked_in != number:  # The reply came late.
        earlier = file_of_round(run.updates, update.asked_in)
        if not earlier.is_file():
            return None
        model = read_step(earlier).before
    return model.params.numpy()


def _shortening(sent: NDArray[Any], settings: Mapping[str, Any], *, rounds_late: int) -> float:
    """Return the factor by which a run multiplies an update ``[d]`` as it arrives.

    It shortens the update to ``max-update-length``, and once more by how many rounds it is late.
    Kept updates are from before any stage or rule, so what these shorten does not matter here.
    """
    shortening = 1.0
    most = float(settings.get("max-update-length") or 0.0)
    length = float(np.linalg.norm(sent))
    if most and length > most:
        shortening = most / length
    if rounds_late:
        shortening *= inverse_root(rounds_late)  # No run config has another factor.
    return shortening


def _is_shortened(used: NDArray[Any], sent: NDArray[Any], shortening: float) -> bool:
    """Return whether an update ``[d]`` is the sent one times ``shortening``, but for rounding."""
    distance = float(np.linalg.norm(used - shortening * sent))
    return distance <= _ROUNDING * (float(np.linalg.norm(sent)) + 1e-12)
