"""What can be plugged into a run: a :class:`RunPart`, which adds a :class:`Built` to it."""

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

# Names in checkpoints that the run itself uses: its tables, and what it remembers besides.
OWN_RECORDS = ("rounds", "clients", "attendance", "names", "seconds", RUN_ID)
Wire = Callable[[Grid], Grid]  # Wraps the way to the clients, to change what goes along it.
_T = TypeVar("_T")


class PartState:
    """A part's state in checkpoints: the lines of a table, and what the part remembers besides.

    For a checkpoint, :meth:`lines` of every part is called before :meth:`memory` of any: to return
    its lines, a part may have to finish work that changes what it remembers.
    """

    def lines(self, after: int, last_round: int) -> list[dict[str, Any]]:  # noqa: ARG002
        """Return the lines of the rounds after round ``after``, up to ``last_round``.

        ``after`` is the round of the last checkpoint; -1: there is none.
        """
        return []

    def memory(self, last_round: int) -> dict[str, Any]:  # noqa: ARG002
        """Return what the part remembered after round ``last_round``, beside its lines.

        The values are Python's own numbers (not NumPy's), strings, ``None``, tensors, and lists,
        tuples and dicts of these: only such values can be read back without running code.
        """
        return {}

    def restore(
        self, lines: Sequence[Mapping[str, Any]], memory: Mapping[str, Any] | None, last_round: int
    ) -> None:
        """Take over lines and memory from a checkpoint; no file is written before the run begins.

        Parameters
        ----------
        lines : sequence of mapping
            The part's lines of the rounds up to ``last_round``.
        memory : mapping, optional
            What :meth:`memory` returned; ``None``: the checkpoint's run did not have this part.
        last_round : int
            The checkpoint's round.

        Raises
        ------
        ValueError, TypeError, KeyError
            If lines and memory do not belong to this run.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Built:
    """What a part adds to a run.

    Attributes
    ----------
    wires : sequence of callable
        Each wraps the grid, which is the way to the clients. Replies are screened after all wires,
        so a wire sees them as the clients sent them.
    setup : mapping
        Arguments of :class:`~fedif_flower.server.setup.Setup` that the part sets.
    instructions : mapping
        What is sent to clients beside their settings: in each round, and before the first one, when
        they are asked whether they can take part.
    callbacks : sequence of Callback
        They are told of each round, after the run's own recorder.
    state : mapping of str to PartState
        The part's state in checkpoints, by a name that no other part uses.
    provenance : mapping
        What the part adds to ``provenance.json``.
    on_row : callable, optional
        Called with each round, once its line of ``rounds.csv`` is written.
    copies : int
        How much the part writes at most, in multiples of the model's size: a run does not begin if
        the disk has no room for it.
    columns : sequence of str
        Columns that ``rounds.csv`` gets for the metrics that the part's callbacks return.
    stays : sequence of Path
        Files of an earlier run that are not removed as this run begins, since the part replaces
        them itself.
    remarks : sequence of str
        What the report says about the data on the part's behalf.
    loaded : LoadedTask, optional
        The task, where the part changes it: later parts, the strategy and the records use this one.
    """

    wires: Sequence[Wire] = ()
    setup: Mapping[str, Any] = field(default_factory=dict)
    instructions: Mapping[str, Scalar] = field(default_factory=dict)
    callbacks: Sequence[Callback] = ()
    state: Mapping[str, PartState] = field(default_factory=dict)
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
        The way to the clients, before any part has wrapped it.
    folder : RunFolder
        The run's files; nothing is written there before the run begins.
    run_id : str
        A random id of this run; a run that is resumed keeps it.
    checkpoint : Checkpoint, optional
        The checkpoint from which the run is resumed; ``None``: it begins at the beginning.
    run_config : mapping of str to bool, int, float or str
        The run config as Flower gives it to both sides of an app; empty: there was none.
    built : list of Built
        What earlier parts added.
    wait_listeners : list of callable
        Called with what the server waited for besides clients, and for how many seconds.
    stack : ExitStack
        It is closed when the run is over, however it ended; a part enters in it what it has to
        close.
    modules : mapping of str to str
        The code beside this package that the run executes: the SHA-256 of each module, by name.
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
        """The run's settings."""
        return self.loaded.config

    @property
    def done(self) -> int:
        """How many rounds are done already; 0 unless the run is resumed."""
        if self.checkpoint is None:
            return 0
        return self.checkpoint.server_round

    @property
    def is_done(self) -> bool:
        """Whether all rounds are done, so that only the records of the run's end are left."""
        return self.checkpoint is not None and self.done == self.config.num_server_rounds

    @property
    def goes_on_here(self) -> bool:
        """Whether the run is resumed in its own folder, where the records of its rounds stay."""
        if self.checkpoint is None or self.checkpoint.source is None:
            return False
        return lies_in(self.folder.checkpoints, self.checkpoint.source[0])

    @property
    def folder_before(self) -> RunFolder | None:
        """The folder of the run whose checkpoint this run is resumed from, if there is one."""
        if self.checkpoint is None or self.checkpoint.source is None:
            return None
        # The file is <run's folder>/checkpoints/round-000001.pt.
        return RunFolder(self.checkpoint.source[0].absolute().parents[1])

    @property
    def instructions(self) -> ConfigRecord:
        """What is sent to clients beside the model."""
        return instructions(
            self.config.extract(ClientConfig),
            self.loaded.task,
            run=self.config.digest(),
            run_id=self.run_id,
            more=self.part_instructions,
        )

    @property
    def callbacks(self) -> list[Callback]:
        """The callbacks of earlier parts."""
        callbacks: list[Callback] = []
        for built in self.built:
            callbacks += built.callbacks
        return callbacks

    def find(self, kind: type[_T]) -> _T | None:
        """Return the first callback of a class that an earlier part added; ``None``: none did."""
        for callback in self.callbacks:
            if isinstance(callback, kind):
                return callback
        return None

    def add(self, built: Built) -> None:
        """Add what a part built.

        Raises
        ------
        ConfigError
            If an earlier part or the run itself uses a name in ``state``, ``setup`` or ``columns``
            already: one of the two would be lost.
        """
        columns = list(self.folder.rounds.columns)
        for earlier in self.built:
            columns += earlier.columns
        _require_free("state", built.state, (*OWN_RECORDS, *self.state))
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
    def part_instructions(self) -> dict[str, Scalar]:
        """What earlier parts send to clients; where two use one name, the later value counts."""
        return _merged(built.instructions for built in self.built)

    @property
    def state(self) -> dict[str, PartState]:
        """The state of earlier parts in checkpoints, by name."""
        return _merged(built.state for built in self.built)

    @property
    def provenance(self) -> dict[str, Any]:
        """What earlier parts add to ``provenance.json``; of one name the later value counts."""
        return _merged(built.provenance for built in self.built)

    def report_wait(self, what: str, seconds: float) -> None:
        """Tell every listener what the server waited for, and for how many seconds."""
        for listener in self.wait_listeners:
            listener(what, seconds)


def _merged(mappings: Iterable[Mapping[str, _T]]) -> dict[str, _T]:
    """Return several mappings as one; where two have the same name, the later value counts."""
    merged: dict[str, _T] = {}
    for mapping in mappings:
        merged |= mapping
    return merged


def _require_free(what: str, names: Iterable[str], taken: Collection[str]) -> None:
    """Raise ConfigError if the run itself or an earlier part uses one of the names already."""
    for name in names:
        if name in taken:
            raise ConfigError(
                f"Built.{what}: the name {name!r} is taken by another part or by the run itself; "
                "allowed: a name that nothing else has"
            )


class RunPart(ConfiguredPart):
    """Something that a run can have beside its core; a subclass overrides what it needs.

    The doors (``server_app.py``, the command ``fedif``) say which parts a run has, and in which
    order. A part that the run's settings do not turn on adds nothing.

    Attributes
    ----------
    settings : type, optional
        The part's section of the run config: a :class:`~fedif_flower.settings.Settings` whose keys
        are made by :func:`~fedif_flower.settings.in_section`. A run without the part refuses these
        keys, unless ``flwr run`` has sent one along with a value that means "off".
    """

    def build(self, run: RunContext) -> Built:  # noqa: ARG002
        """Return what the part adds to a run; write nothing in the run's folder yet.

        ``run`` has what earlier parts added.

        Raises
        ------
        ConfigError
            If the run cannot have this part.
        """
        return NOTHING

    def refuse(self, strategy: ScreenedStrategy, run: RunContext) -> None:
        """Raise ConfigError if the part cannot work with a strategy; no client was asked yet."""

    def finished(self, run: RunContext) -> None:
        """Do what is to follow a run that ended in good order; the run's folder is complete."""
