"""Signed replies as they came, kept beside the updates, and how they are checked later.

An update that is kept is a difference in the server's precision, and may have been shortened. What
was signed are the arrays that came.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedif_consortium.evidence.reply_witness import ReplyWitness
from fedif_consortium.evidence.signed_update import SignedUpdate, arrays_digest
from fedif_flower.errors import StatementError
from fedif_flower.messages.arrays import view_array
from fedif_flower.run.folder import RunFolder, file_of_round, files_of_rounds
from fedif_flower.run.kept_updates import read_step
from fedif_flower.storage import make_folder, write_atomically, writing
from fedif_flower.strategies.callbacks import Callback, RunningStrategy
from fedif_flower.strategies.steps import Step

_ROUNDING = 1e-4  # Of an update's length: a difference is rounded, a shortened one twice.
_TRAINED = "trained"  # Names of the parameters, in the order of the vector.


class KeptReplies(Callback):
    """Writes the signed replies of each step as ``updates/sent-000001.npz``.

    Parameters
    ----------
    folder : RunFolder
        The run's.
    witness : ReplyWitness
        Keeps the round's replies.
    after : int
        Files of later rounds, of an earlier attempt, are removed.
    """

    def __init__(self, folder: RunFolder, witness: ReplyWitness, after: int) -> None:
        self._folder, self._witness = folder.updates, witness
        self._strategy: RunningStrategy | None = None
        self._after = after

    def on_start(self, strategy: RunningStrategy) -> None:
        """Take note of the model's layout."""
        self._strategy = strategy
        make_folder(self._folder)
        with writing(self._folder):
            for path in self._folder.glob("sent-*.npz"):
                if path.name > _file(self._folder, self._after).name:
                    path.unlink()

    def on_step(self, step: Step) -> None:
        """Write the replies of a round's members."""
        used = {node.node_id for node in step.nodes}
        content: dict[str, Any] = {}
        for node_id, seen in self._witness.seen.items():
            if node_id in used and seen.arrays is not None:
                prefix = f"{seen.node.client_id}/"
                content |= {prefix + n: view_array(a) for n, a in seen.arrays.items()}
        if not content:
            return
        assert self._strategy is not None  # on_start
        trained = [spec.name for spec in self._strategy.model.layout.trainable]
        buffer = BytesIO()
        np.savez(buffer, **{_TRAINED: np.array(trained), **content})
        write_atomically(_file(self._folder, step.updates.server_round), buffer.getvalue())


def _file(folder: Path, server_round: int) -> Path:
    return folder / f"sent-{server_round:06d}.npz"


def read_replies(path: Path) -> tuple[dict[int, dict[str, NDArray[Any]]], list[str]]:
    """Return the replies in a file by client id, and the trained parameters' names."""
    found = defaultdict[int, dict[str, NDArray[Any]]](dict)
    if not path.is_file():
        return found, []
    with np.load(path, allow_pickle=False) as content:
        for key in content.files:
            client_id, slash, name = key.partition("/")
            if slash:
                found[int(client_id)][name] = content[key]
        return found, [str(name) for name in content[_TRAINED]]


def check_kept_replies(run: RunFolder, signed: Mapping[tuple[int, int], SignedUpdate]) -> None:
    """Check kept replies against what was signed, and kept updates against the replies.

    Raises
    ------
    StatementError
        Naming round and client.
    """
    for number, path in files_of_rounds(run.updates).items():
        step, (replies, trained) = read_step(path), read_replies(_file(run.updates, number))
        for node, used in zip(step.nodes, step.updates.client_updates, strict=True):
            where = f"round {number}: the kept update of client {node.client_id}"
            update = signed.get((number, node.client_id))
            arrays = replies.pop(node.client_id, {})
            if update is None and not arrays:
                continue  # Nobody signed it.
            if update is None or arrays_digest(arrays.items()) != update.sent:
                raise StatementError(f"{where} is not the one that was signed")
            before = step.before
            if update.asked_in != number:  # It came late.
                earlier = file_of_round(run.updates, update.asked_in)
                if not earlier.is_file():
                    continue
                before = read_step(earlier).before
            sent = np.concatenate([np.ravel(arrays[name]) for name in trained])
            change = sent.astype(np.float64) - before.params.double().numpy()
            if not _is_part(used.double().numpy(), change):
                raise StatementError(f"{where}, which was used, is not what it sent")
        if replies:
            raise StatementError(f"round {number}: client {min(replies)}'s reply was not used")


def _is_part(used: NDArray[Any], sent: NDArray[Any]) -> bool:
    """Return whether an update is another one, or a shorter one of its direction."""
    length = float(sent @ sent)
    factor = float(used @ sent) / length if length else 0.0
    bound = _ROUNDING * (float(np.linalg.norm(sent)) + 1e-12)
    return 0 <= factor <= 1 + _ROUNDING and float(np.linalg.norm(used - factor * sent)) <= bound
