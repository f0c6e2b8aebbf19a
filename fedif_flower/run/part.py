"""What can be plugged into a run: a part has files, wires, callbacks, kept state, an end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from flwr.app import ConfigRecord
from flwr.serverapp import Grid

from fedif_flower.errors import ConfigError
from fedif_flower.messages.client_config import ClientConfig
from fedif_flower.messages.instructions import instructions
from fedif_flower.run.checkpoint import Checkpoint, lies_in
from fedif_flower.run.config import ConfiguredPart, RunConfig
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.loaded_task import LoadedTask
from fedif_flower.run.provenance import RUN_ID
from fedif_flower.server.loop import ScreenedStrategy
from fedif_flower.server.record import Round
from fedif_flower.server.run import Callback
from fedif_flower.settings import Scalar

# In checkpoints: the run's own tables, and what it remembers beside them.
OWN_RECORDS = ("rounds", "clients", "attendance", "names", "seconds", RUN_ID)
Wire = Callable[[Grid], Grid]
_T = TypeVar("_T")


class Kept:
    """Something that checkpoints keep: the lines of a table, and what it remembers beside them.

    A checkpoint asks every part for its lines before it asks any for its memory.
    """

    def lines(self, after: int, last_round: int) -> list[dict[str, Any]]:  # noqa: ARG002
        """Return the lines of the rounds after one, up to another."""
        return []

    def memory(self, last_round: int) -> dict[str, Any]:  # noqa: ARG002
        """Return what is not in the lines, as of a round.

        It is made of Python's own numbers (no NumPy's), texts, ``None``, tensors, and lists, tuples
        and dicts of these, so that it can be read back without running code.
        """
        return {}

    def restore(
        self, lines: Sequence[Mapping[str, Any]], memory: Mapping[str, Any] | None, last_round: int
    ) -> None:
        """Take over a checkpoint's lines and memory; files are written once the run begins.

        ``memory`` is ``None`` where the checkpoint's run did not have this part.

        Raises
        ------
        ValueError, TypeError, KeyError
            If they do not belong to this run.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Built:
    """What a part adds to a run.

    Attributes
    ----------
    wires : sequence of callable
        Each wraps the way to the clients, before any reply is screened.
    setup : mapping
        Arguments of :class:`~fedif_flower.server.setup.Setup`.
    told : mapping
        What clients are told beside their settings: in each round, and before the first one, when
        they are asked whether they can take part.
    callbacks : sequence of Callback
        Told of each round, after the run's own records.
    kept : mapping of str to Kept
        What checkpoints have of it, by a name that no other part has.
    provenance : mapping
        What it adds to ``provenance.json``.
    on_row : callable, optional
        Called with each line of ``rounds.csv``.
    copies : int
        What it writes at most, in multiples of the model's size.
    columns : sequence of str
        Columns of ``rounds.csv`` that its callbacks' metrics have.
    stays : sequence of Path
        Its files that are not removed as the run begins, since it replaces them itself.
    remarks : sequence of str
        What it has to say about the data, for the report.
    loaded : LoadedTask, optional
        The task as later parts, the strategy and the records take it.
    """

    wires: Sequence[Wire] = ()
    setup: Mapping[str, Any] = field(default_factory=dict)
    told: Mapping[str, Scalar] = field(default_factory=dict)
    callbacks: Sequence[Callback] = ()
    kept: Mapping[str, Kept] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    on_row: Callable[[Round], object] | None = None
    copies: int = 0
    columns: Sequence[str] = ()
    stays: Sequence[Path] = ()
    remarks: Sequence[str] = ()
    loaded: LoadedTask | None = None


NOTHING = Built()


@dataclass
class RunContext:
    """A run before its first round: what a part may look at, and what earlier parts added.

    Attributes
    ----------
    loaded : LoadedTask
        The task with model and data.
    grid : Grid
        The way to the clients, as the run was given it.
    folder : RunFolder
        The run's files; nothing is written there before the run begins.
    run_id : str
        Drawn for this run; a run that goes on has the same.
    checkpoint : Checkpoint, optional
        From which it goes on.
    run_config : mapping of str to bool, int, float or str
        The run config as Flower gives it to both sides of an app; empty: there was none.
    built : list of Built
        What earlier parts added.
    wait_listeners : list of callable
        Told what was waited for besides clients, and for how many seconds.
    stack : ExitStack
        Left when the run is over, however it ended.
    modules : mapping of str to str
        The code beside this package that it executes: a hash of each module.
    """

    loaded: LoadedTask
    grid: Grid
    folder: RunFolder
    run_id: str
    checkpoint: Checkpoint | None = None
    run_config: Mapping[str, Scalar] = field(default_factory=dict)
    built: list[Built] = field(default_factory=list)
    wait_listeners: list[Callable[[str, float], object]] = field(default_factory=list)
    stack: ExitStack = field(default_factory=ExitStack)
    modules: Mapping[str, str] = field(default_factory=dict)

    @property
    def config(self) -> RunConfig:
        """Its settings."""
        return self.loaded.config

    @property
    def done(self) -> int:
        """The rounds that are behind it."""
        if self.checkpoint is None:
            return 0
        return self.checkpoint.server_round

    @property
    def is_done(self) -> bool:
        """Whether every round is behind it: what is left are the records of its end."""
        return self.checkpoint is not None and self.done == self.config.num_server_rounds

    @property
    def goes_on_here(self) -> bool:
        """Whether the rounds behind it are this folder's own: their records stay."""
        if self.checkpoint is None or self.checkpoint.source is None:
            return False
        return lies_in(self.folder.checkpoints, self.checkpoint.source[0])

    @property
    def folder_before(self) -> RunFolder | None:
        """The folder of the attempt that it goes on from; ``None``: it begins anew."""
        if self.checkpoint is None or self.checkpoint.source is None:
            return None
        return RunFolder(self.checkpoint.source[0].absolute().parents[1])

    @property
    def instructions(self) -> ConfigRecord:
        """What clients are told beside the model."""
        return instructions(
            self.config.part(ClientConfig),
            self.loaded.task,
            run=self.config.digest(),
            run_id=self.run_id,
            more=self.told,
        )

    @property
    def callbacks(self) -> list[Callback]:
        """The callbacks of earlier parts."""
        callbacks: list[Callback] = []
        for built in self.built:
            callbacks += built.callbacks
        return callbacks

    def find(self, kind: type[_T]) -> _T | None:
        """Return the first callback of a kind that an earlier part added, if there is one."""
        for callback in self.callbacks:
            if isinstance(callback, kind):
                return callback
        return None

    def add(self, built: Built) -> None:
        """Add what a part built.

        Raises
        ------
        ConfigError
            If something of it has the name of another part's, or of the run's own records: one of
            the two would be lost.
        """
        columns = list(self.folder.rounds.columns)
        for earlier in self.built:
            columns += earlier.columns
        _require_free("kept", built.kept, (*OWN_RECORDS, *self.kept))
        _require_free("setup", built.setup, self.setup)
        _require_free("columns", built.columns, columns)
        self.built.append(built)
        if built.loaded is not None:
            self.loaded = built.loaded

    @property
    def setup(self) -> dict[str, Any]:
        """Arguments of Setup that earlier parts added."""
        return _merged(built.setup for built in self.built)

    @property
    def told(self) -> dict[str, Scalar]:
        """What earlier parts tell clients; of two, the later one's word stands."""
        return _merged(built.told for built in self.built)

    @property
    def kept(self) -> dict[str, Kept]:
        """What checkpoints have of earlier parts, by name."""
        return _merged(built.kept for built in self.built)

    @property
    def provenance(self) -> dict[str, Any]:
        """What earlier parts add to ``provenance.json``; of two, the later one's word stands."""
        return _merged(built.provenance for built in self.built)

    def report_wait(self, what: str, seconds: float) -> None:
        """Tell whoever measures it how long something took."""
        for listener in self.wait_listeners:
            listener(what, seconds)


def _merged(mappings: Iterable[Mapping[str, _T]]) -> dict[str, _T]:
    """Return mappings as one; of two values of a name, the later one."""
    merged: dict[str, _T] = {}
    for mapping in mappings:
        merged |= mapping
    return merged


def _require_free(what: str, names: Iterable[str], taken: Collection[str]) -> None:
    """Raise ConfigError for a name that is taken: by the run itself, or by an earlier part."""
    for name in names:
        if name in taken:
            raise ConfigError(
                f"a part of the run: {what}: {name!r} is taken; allowed: a name that no other "
                "part has, nor the run's own records"
            )


class RunPart(ConfiguredPart):
    """Something a run can have beside its core; a subclass overrides what it needs.

    The doors say which parts a run has, in which order. A part that is not set in the run's
    settings adds nothing.

    Attributes
    ----------
    settings : type, optional
        Its section of the run config: a :class:`~fedif_flower.settings.Settings` whose keys are
        :func:`~fedif_flower.settings.in_section`. A run without the part refuses them; those that
        ``flwr run`` sends along may be off.
    """

    def build(self, run: RunContext) -> Built:  # noqa: ARG002
        """Return what it adds; it looks at what earlier parts added, and writes nothing yet.

        Raises
        ------
        ConfigError
            For a run that cannot have it.
        """
        return NOTHING

    def refuse(self, strategy: ScreenedStrategy, run: RunContext) -> None:
        """Raise ConfigError for a strategy that it cannot stand beside; nobody was asked yet."""

    def finished(self, run: RunContext) -> None:
        """Do what comes after a run that ended in good order; its folder is complete."""
