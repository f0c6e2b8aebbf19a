"""Signed replies as they came, kept beside the updates: their digests are those that were signed.

An update that is kept is a difference in the server's precision, and may have been shortened. What
was signed are the arrays that came.
"""

from __future__ import annotations

import re
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedif_consortium.evidence.reply_witness import ReplyWitness
from fedif_flower.errors import StatementError
from fedif_flower.messages.arrays import view_array
from fedif_flower.run.folder import RunFolder
from fedif_flower.storage import make_folder, write_atomically, writing
from fedif_flower.strategies.callbacks import Callback, RunningStrategy
from fedif_flower.strategies.steps import Step

_FILE = re.compile(r"sent-(\d{6,})\.npz")
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
            for number, path in sent_files(self._folder).items():
                if number > self._after:
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
        path = self._folder / f"sent-{step.updates.server_round:06d}.npz"
        write_atomically(path, buffer.getvalue())


def sent_files(folder: Path) -> dict[int, Path]:
    """Return a folder's files of signed replies by round."""
    paths = folder.iterdir() if folder.is_dir() else ()
    named = ((_FILE.fullmatch(path.name), path) for path in paths)
    found = {int(match[1]): path for match, path in named if match and path.is_file()}
    return dict(sorted(found.items()))


def read_replies(path: Path) -> tuple[dict[int, dict[str, NDArray[Any]]], list[str]]:
    """Return the replies in a file by client id, and the trained parameters' names.

    Raises
    ------
    StatementError
        If it is damaged.
    """
    found: dict[int, dict[str, NDArray[Any]]] = {}
    try:
        with np.load(path, allow_pickle=False) as content:
            trained = [str(name) for name in content[_TRAINED]]
            for key in content.files:
                client_id, slash, name = key.partition("/")
                if slash:
                    found.setdefault(int(client_id), {})[name] = content[key]
    except Exception as error:  # a file that was made by hand can hold anything
        raise StatementError(f"{path.name} holds no replies: {error!r:.200}") from error
    return found, trained
