"""Gradients that a server publishes, as a member keeps them for ``fedif inspect``.

Nothing that the server publishes stops the member's work. A file is called by its round, whose
number the server says: a round that is done again, or the same round of another run in the same
folder, replaces it.
"""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod
from numpy.typing import NDArray

from fedif_flower.client.app import ClientPart
from fedif_flower.errors import ConfigError, StorageError
from fedif_flower.foreign import refused_as, require_plain_archive
from fedif_flower.messages.instructions import CONFIG_KEY, FACTS_KEY, ROUND_KEY, TASK_KEY
from fedif_flower.messages.node_config import NodeConfig
from fedif_flower.storage import make_folder, write_atomically

if TYPE_CHECKING:
    from fedif_flower.tasks.task import Task

GRADIENT = "validation-gradient"  # A record in a message, beside the model, and its array.
MOST_ROUNDS = 16
MOST_BYTES = 4 * 2**30  # Of all files together.
_MODEL = "model/"
_VECTOR = "gradient"
_TEXTS = (CONFIG_KEY, TASK_KEY, FACTS_KEY)
logger = logging.getLogger(__name__)


class KeptGradient(NamedTuple):
    """A round's model and gradient, as a member kept them.

    Attributes
    ----------
    server_round : int
        Which round.
    arrays : dict of str to ndarray
        The model's.
    gradient : ndarray
        ``[d]``: of the server's held-out loss at that model.
    config, task, facts : str
        What the server said of the run: its settings and facts in JSON, its task's name.
    """

    server_round: int
    arrays: dict[str, NDArray[Any]]
    gradient: NDArray[np.floating]
    config: str
    task: str
    facts: str

    @property
    def file(self) -> str:
        """What its file is called, in errors about what the server said."""
        return _file_name(self.server_round)


class KeptGradients(ClientPart):
    """A member keeps the gradients that the server publishes."""

    def mods(self, task: Task | None) -> Sequence[Mod]:  # noqa: ARG002
        """Return what keeps a gradient."""
        return [keep]


def keep(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Keep the gradient in a message where this node has a folder for it, and train."""
    folder = NodeConfig.from_node_config(context.node_config).gradients_dir
    if folder:
        keep_gradient(message.content, Path(folder).expanduser().absolute())
    return call_next(message, context)


def keep_gradient(content: RecordDict, folder: Path) -> None:
    """Keep what a message brings in a node's ``gradients-dir``.

    At most 16 rounds are kept: where there are more, some that lie spread over the run.
    """
    record = content.get(GRADIENT)
    if not isinstance(record, ArrayRecord):
        return
    settings = cast(ConfigRecord, content["config"])
    arrays = cast(ArrayRecord, content["arrays"])
    try:
        content_of_file: dict[str, NDArray[Any]] = {}
        parameters = 0
        for name, array in arrays.items():
            values = array.numpy()
            content_of_file[_MODEL + name] = values
            parameters += values.size
        content_of_file[_VECTOR] = _checked(record[GRADIENT].numpy(), parameters)
        for name in _TEXTS:
            content_of_file[name] = np.array(str(settings[name]))
        buffer = io.BytesIO()
        np.savez(buffer, **content_of_file)  # type: ignore[arg-type]
        _write(folder, cast(int, settings[ROUND_KEY]), buffer.getvalue())
    except Exception as error:  # whatever NumPy makes of another's bytes
        logger.warning("a published gradient was not kept: %.200r", error)


def _checked(vector: NDArray[Any], at_most: int) -> NDArray[Any]:
    """Return a gradient ``[d]``, or raise ValueError."""
    if vector.ndim != 1 or not 0 < len(vector) <= at_most or vector.dtype.kind != "f":
        raise ValueError(f"{vector.dtype} {list(vector.shape)} is no vector of {at_most} numbers")
    if not np.isfinite(vector).all():
        raise ValueError("it is not finite")
    return vector


def _write(folder: Path, server_round: int, content: bytes) -> None:
    """Write a round's file, and remove one where there are too many."""
    target = folder / _file_name(server_round)
    if not _is_of_round(target):  # Nobody would count it among those that lie there.
        raise ValueError(f"round {server_round}")
    make_folder(folder)
    size = len(content)
    for path in _files(folder):
        if path != target:
            size += path.stat().st_size
    if size > MOST_BYTES:
        raise StorageError(f"{folder} would hold more than {MOST_BYTES} bytes: move some away")
    write_atomically(target, content)
    paths = _files(folder)
    while len(paths) > MOST_ROUNDS:
        rounds = list(map(_round, paths))
        gaps = [rounds[i + 1] - rounds[i - 1] for i in range(1, len(rounds) - 1)]
        # The round whose neighbours are closest to each other is missed least.
        closest = 1 + gaps.index(min(gaps))
        paths.pop(closest).unlink(missing_ok=True)


def _file_name(server_round: int) -> str:
    return f"round-{server_round:06d}.npz"


def _files(folder: Path) -> list[Path]:
    """Return the files of rounds, in their order; others that lie there are somebody else's."""
    return sorted(filter(_is_of_round, folder.glob("round-*.npz")), key=_round)


def _is_of_round(path: Path) -> bool:
    return re.fullmatch(r"round-[0-9]{6,}", path.stem) is not None


def _round(path: Path) -> int:
    return int(path.stem.removeprefix("round-"))


def kept_rounds(folder: Path) -> list[Path]:
    """Return the files in a ``gradients-dir``, by round.

    Raises
    ------
    ConfigError
        If there are none.
    """
    files = _files(folder)
    if not files:
        raise ConfigError(
            f"gradients-dir = {str(folder)!r} holds no gradient: the node keeps them where the run "
            "config has gradients.publish=true"
        )
    return files


def read_kept(path: Path) -> KeptGradient:
    """Return what :func:`keep_gradient` wrote.

    Raises
    ------
    ConfigError
        If the file is damaged.
    """
    with refused_as(ConfigError, f"{path} is no kept gradient"):
        require_plain_archive(path)
        with np.load(path, allow_pickle=False) as held:
            names = [name for name in held if name.startswith(_MODEL)]
            return KeptGradient(
                server_round=_round(path),
                arrays={name.removeprefix(_MODEL): held[name] for name in names},
                gradient=held[_VECTOR],
                config=str(held[CONFIG_KEY]),
                task=str(held[TASK_KEY]),
                facts=str(held[FACTS_KEY]),
            )
