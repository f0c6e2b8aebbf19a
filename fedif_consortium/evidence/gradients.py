"""Gradients of the held-out loss that a server publishes, and that members keep.

With ``gradients.publish`` each model goes out with the gradient at it. A member keeps both, and
``fedif inspect`` reads them. Nothing that the server publishes stops the member's work.
"""

from __future__ import annotations

import io
import logging
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from fedif_flower.errors import ConfigError, FedIFError, StorageError, ValuationError, require
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.messages.instructions import CONFIG_KEY, FACTS_KEY, ROUND_KEY, TASK_KEY
from fedif_flower.messages.models import tensor_arrays
from fedif_flower.run.config import RunConfig
from fedif_flower.run.part import NOTHING, Built, RunContext, RunPart
from fedif_flower.run.part_settings import CreditSettings
from fedif_flower.settings import Settings, in_section, setting
from fedif_flower.storage import make_folder, write_atomically, writing
from fedif_flower.strategies.callbacks import Callback, Question, RunningStrategy
from fedif_flower.strategies.global_model import GlobalModel
from fedif_flower.valuation import Validation

GRADIENT = "validation-gradient"  # A record in a message, beside the model, and its array.
MOST_ROUNDS = 16
MOST_BYTES = 4 * 2**30  # Of all files together.
_FILE = re.compile(r"round-(\d{6,12})\.npz")
_MODEL, _VECTOR = "model/", "gradient"
_TEXTS = (CONFIG_KEY, TASK_KEY, FACTS_KEY)
logger = logging.getLogger(__name__)


class GradientSettings(Settings, alias_generator=in_section("gradients")):
    """Whether members can inspect their own data."""

    publish: bool = setting(
        False,
        "each model goes to the members with the gradient of the validation loss at it, for "
        "`fedif inspect` on their own hosts ([what that gives away](methods/local-methods.md))",
        changes_result=False,
    )


class PublishGradients(RunPart):
    """``gradients.publish``: members can inspect their own data."""

    settings = GradientSettings

    def fits(self, config: RunConfig) -> None:
        """Raise ConfigError where the validation data are secret."""
        is_fine = not (
            config.section(GradientSettings).publish
            and config.section(CreditSettings).secret_validation
        )
        require(is_fine, "gradients.publish", True, "false with credit.secret-validation")

    def build(self, run: RunContext) -> Built:
        """Return what encloses the gradient."""
        if not run.config.section(GradientSettings).publish:
            return NOTHING
        return Built(callbacks=[PublishedGradients(run.loaded.validation)])


class PublishedGradients(Callback):
    """Sends the gradient with the model, so that members can inspect their own data.

    A strategy that weighs by the same gradient takes it once for both.

    Parameters
    ----------
    validation : Validation
        The server's.
    """

    def __init__(self, validation: Validation) -> None:
        self._validation = validation
        self._model: GlobalModel | None = None
        self._record: ArrayRecord | None = None

    def on_start(self, strategy: RunningStrategy) -> None:
        """Note where the model of each round is."""
        self._model = strategy.model

    def on_asked(self, question: Question) -> None:
        """Take the gradient of the round's model."""
        assert self._model is not None
        self._record = None
        vectors, buffers = self._model.vectors, self._model.named_buffers
        try:
            found = self._validation.gradients.begin(vectors.params, buffers).result()
        except ValuationError as error:
            logger.warning("round %d: no gradient is published: %s", question.server_round, error)
            return
        self._record = tensor_arrays({GRADIENT: found.gradient.detach()})

    def enclose(self, node: ClientNode) -> Mapping[str, ArrayRecord]:  # noqa: ARG002
        """Return the gradient."""
        return {} if self._record is None else {GRADIENT: self._record}


@dataclass(frozen=True)
class KeptGradient:
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


def read_gradient(content: RecordDict, at_most: int) -> NDArray[np.floating] | None:
    """Return the gradient ``[d]`` that came with a model; ``None``: there is none.

    Parameters
    ----------
    content : RecordDict
        A message's.
    at_most : int
        Numbers in the model.

    Raises
    ------
    FedIFError
        If it is no vector of finite numbers, or longer than the model.
    """
    record = content.get(GRADIENT)
    if not isinstance(record, ArrayRecord):
        return None
    if list(record) != [GRADIENT]:
        raise FedIFError(f"the published gradient has arrays {list(record)!r:.100}")
    try:
        vector = record[GRADIENT].numpy()
    except Exception as error:  # whatever NumPy makes of another's bytes
        raise FedIFError(f"the published gradient is unreadable: {error!r:.100}") from error
    if vector.ndim != 1 or not 0 < len(vector) <= at_most or vector.dtype.kind != "f":
        raise FedIFError(
            f"the published gradient is {vector.dtype} {list(vector.shape)}; expected a vector of "
            f"at most {at_most} numbers"
        )
    if not np.isfinite(vector).all():
        raise FedIFError("the published gradient is not finite")
    return vector


def keep_gradient(content: RecordDict, folder: Path) -> None:
    """Keep what a message brings in a node's ``gradients-dir``.

    At most 16 rounds are kept: of more, those that lie spread over the run.
    """
    settings = cast(ConfigRecord, content["config"])
    arrays = cast(ArrayRecord, content["arrays"])
    try:
        model = {name: array.numpy() for name, array in arrays.items()}
        gradient = read_gradient(content, sum(array.size for array in model.values()))
        if gradient is None:
            return
        texts = {name: np.array(str(settings[name])) for name in _TEXTS}
        held = {**{_MODEL + name: array for name, array in model.items()}, **texts}
        buffer = io.BytesIO()
        np.savez(buffer, **{_VECTOR: gradient}, **held)  # type: ignore[arg-type]
        _write(folder, cast(int, settings[ROUND_KEY]), buffer.getvalue())
    except (FedIFError, OSError) as error:
        logger.warning("a published gradient was not kept: %s", error)


def _write(folder: Path, server_round: int, content: bytes) -> None:
    """Write a round's file, and remove one where there are too many."""
    make_folder(folder)
    there = {number: path.stat().st_size for number, path in _files(folder).items()}
    there.pop(server_round, None)
    if sum(there.values()) + len(content) > MOST_BYTES:
        raise StorageError(f"{folder} would hold more than {MOST_BYTES} bytes: move some away")
    write_atomically(folder / f"round-{server_round:06d}.npz", content)
    rounds = sorted(_files(folder))
    while len(rounds) > MOST_ROUNDS:
        gaps = {rounds[i]: rounds[i + 1] - rounds[i - 1] for i in range(1, len(rounds) - 1)}
        closest = min(gaps, key=lambda number: gaps[number])
        with writing(folder):
            _files(folder)[closest].unlink(missing_ok=True)
        rounds.remove(closest)


def _files(folder: Path) -> dict[int, Path]:
    named = ((_FILE.fullmatch(path.name), path) for path in folder.iterdir())
    return {int(match[1]): path for match, path in named if match}


def kept_rounds(folder: Path) -> list[Path]:
    """Return the files in a ``gradients-dir``, by round.

    Raises
    ------
    ConfigError
        If there are none.
    """
    found = _files(folder) if folder.is_dir() else {}
    if not found:
        raise ConfigError(
            f"gradients-dir = {str(folder)!r} holds no gradient: the node keeps them where the run "
            "config has gradients.publish=true"
        )
    return [found[number] for number in sorted(found)]


def read_kept(path: Path) -> KeptGradient:
    """Return what :func:`keep_gradient` wrote.

    Raises
    ------
    ConfigError
        If the file is damaged.
    """
    try:
        match = _FILE.fullmatch(path.name)
        with np.load(path, allow_pickle=False) as held:
            texts = [str(held[name]) for name in _TEXTS]
            arrays = {n.removeprefix(_MODEL): held[n] for n in held if n.startswith(_MODEL)}
            return KeptGradient(int(match[1]) if match else 0, arrays, held[_VECTOR], *texts)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{path} is no kept gradient: {error!r:.200}") from error
