"""A member keeps the gradients that a server publishes, for ``fedif inspect``.

If a gradient cannot be kept, the member goes on with its work. Files are named after rounds, whose
numbers the server chooses. So a file is replaced if its round is done again, and by the same round
of another run that keeps its gradients in the same folder.
"""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Mapping, Sequence
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

GRADIENT = "validation-gradient"  # A message's record beside the model, and the array in it.
MOST_ROUNDS = 16
MOST_BYTES = 4 * 2**30  # Of all files in the folder together.
# Names in a file: arrays of the model begin with _MODEL, and the texts have those of the message.
_MODEL = "model/"
_VECTOR = "gradient"
_TEXTS = (CONFIG_KEY, TASK_KEY, FACTS_KEY)
logger = logging.getLogger(__name__)


class KeptGradient(NamedTuple):
    """A round's model and gradient, as a member kept them.

    Attributes
    ----------
    server_round : int
        The round's number.
    arrays : dict of str to ndarray
        The model's arrays by name.
    gradient : ndarray
        ``[d]``: the gradient of the server's held-out loss at that model.
    config, task, facts : str
        What the server said of the run: the clients' settings in JSON, the task's name, and what
        the task says of the server's data in JSON.
    """

    server_round: int
    arrays: dict[str, NDArray[Any]]
    gradient: NDArray[np.floating]
    config: str
    task: str
    facts: str

    @property
    def file(self) -> str:
        """The name of its file, for errors about what the server said."""
        return _file_name(self.server_round)


class KeptGradients(ClientPart):
    """A member keeps the gradients that the server publishes."""

    def mods(self, task: Task | None) -> Sequence[Mod]:  # noqa: ARG002
        """Return the mod that keeps gradients."""
        return [keep]


def keep(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Train; before that, keep the message's gradient if this node has a folder for gradients."""
    folder = NodeConfig.from_node_config(context.node_config).gradients_dir
    if folder:
        keep_gradient(message.content, Path(folder).expanduser().absolute())
    return call_next(message, context)


def keep_gradient(content: RecordDict, folder: Path) -> None:
    """Write a message's gradient, with the model, into ``folder``, a node's ``gradients-dir``.

    At most 16 rounds are kept, and 4 GiB. If there are more, those that stay are spread over the
    run.
    """
    record = content.get(GRADIENT)
    if not isinstance(record, ArrayRecord):
        return
    try:
        settings = cast(ConfigRecord, content["config"])
        arrays = cast(ArrayRecord, content["arrays"])
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
    except Exception as error:  # Of many kinds: records may be missing, and bytes malformed.
        logger.warning("a published gradient was not kept: %.200r", error)


def _checked(vector: NDArray[Any], at_most: int) -> NDArray[Any]:
    """Return a gradient ``[d]``, 0 < d <= ``at_most``; raise ValueError if it is malformed."""
    if vector.ndim != 1 or not 0 < len(vector) <= at_most or vector.dtype.kind != "f":
        raise ValueError(f"{vector.dtype} {list(vector.shape)} is no vector of {at_most} numbers")
    if not np.isfinite(vector).all():
        raise ValueError("it is not finite")
    return vector


def _write(folder: Path, server_round: int, content: bytes) -> None:
    """Write a round's file, unless the folder is full without it; remove those it replaces."""
    target = folder / _file_name(server_round)
    if not _is_of_round(target):  # Otherwise the limits below would not count this file.
        raise ValueError(f"round {server_round}")
    make_folder(folder)
    sizes = {path: path.stat().st_size for path in _files(folder)}
    sizes[target] = len(content)
    surplus = _surplus(sizes)
    for path in surplus:  # First, so that the folder holds no more than it may at any time.
        path.unlink(missing_ok=True)
    if target not in surplus:
        write_atomically(target, content)


def _surplus(sizes: Mapping[Path, int]) -> list[Path]:
    """Return which files of rounds have to go, so that the others are no more than may be kept.

    Parameters
    ----------
    sizes : mapping of Path to int
        The bytes of each file. The first and the last round's files stay.

    Raises
    ------
    StorageError
        If these two are too large already.
    """
    kept = sorted(sizes, key=_round)
    surplus = []
    while len(kept) > MOST_ROUNDS or sum(sizes[path] for path in kept) > MOST_BYTES:
        if len(kept) < 3:
            raise StorageError(
                f"{kept[0].parent} would hold more than {MOST_BYTES} bytes: move some away"
            )
        rounds = list(map(_round, kept))
        gaps = [rounds[i + 1] - rounds[i - 1] for i in range(1, len(rounds) - 1)]
        # Remove the round whose neighbours are closest to each other: they stand for it best.
        closest = 1 + gaps.index(min(gaps))
        surplus.append(kept.pop(closest))
    return surplus


def _file_name(server_round: int) -> str:
    return f"round-{server_round:06d}.npz"


def _files(folder: Path) -> list[Path]:
    """Return the files of rounds in a folder, by round; other files there are left out."""
    return sorted(filter(_is_of_round, folder.glob("round-*.npz")), key=_round)


def _is_of_round(path: Path) -> bool:
    return re.fullmatch(r"round-[0-9]{6,}", path.stem) is not None


def _round(path: Path) -> int:
    return int(path.stem.removeprefix("round-"))


def kept_rounds(folder: Path) -> list[Path]:
    """Return the files of rounds in a ``gradients-dir``, by round.

    Raises
    ------
    ConfigError
        If there is no such file.
    """
    files = _files(folder)
    if not files:
        raise ConfigError(
            f"gradients-dir = {str(folder)!r} holds no gradient: the node keeps them where the run "
            "config has gradients.publish=true"
        )
    return files


def read_kept(path: Path) -> KeptGradient:
    """Return the model and the gradient in a file that :func:`keep_gradient` wrote.

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
