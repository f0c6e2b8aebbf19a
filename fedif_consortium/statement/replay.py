"""Recomputing weights and contributions of a run from its kept updates, and comparing them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedif_consortium.statement.examined_again import examine_again
from fedif_consortium.statement.kept_steps import (
    read_kept_steps,
    read_weights,
    require_led,
    require_led_on,
    require_lengths,
    require_received,
    require_same_end,
    require_weighed,
    without_momentum,
)
from fedif_consortium.statement.records import RunRecords, read_run
from fedif_consortium.statement.taken_back import rounds_taken_back
from fedif_consortium.statement.weighed_again import weigh_again
from fedif_flower.attribution.callback import PathAttribution
from fedif_flower.attribution.records import RoundAttribution
from fedif_flower.attribution.table import OF_DESCENT, client_lines, round_line
from fedif_flower.errors import ConfigError, StatementError
from fedif_flower.foreign import refused_as
from fedif_flower.messages.models import model_arrays
from fedif_flower.registry import importing_only
from fedif_flower.run.config import RunConfig
from fedif_flower.run.correction import with_recorded_noise
from fedif_flower.run.folder import HELD_OUT_KEY
from fedif_flower.run.loaded_task import LoadedTask, load_task, tensors_in
from fedif_flower.run.outside_code import hashes_here
from fedif_flower.run.own_sections import CreditSettings, ValidationSettings
from fedif_flower.run.provenance import MODULES, code_hash, data_hash
from fedif_flower.run.record_files import Table
from fedif_flower.run.rows import csv_text
from fedif_flower.run.secret_validation import PAYING_KEY, paying_part, with_recorded_loss
from fedif_flower.run.strategy import build_strategy
from fedif_flower.server.record import Round, Step
from fedif_flower.tasks.config import OWN
from fedif_flower.tasks.task import Task


class Replayed(NamedTuple):
    """The result of :func:`replay`.

    Attributes
    ----------
    rounds, contributions : int
        The numbers of rounds and of contributions that were recomputed, to the same bits in all
        columns.
    weighed : int
        The number of rounds whose updates got the same weights from the strategy again.
    examined : tuple of str
        The held-out data, by their keys in ``provenance.json``, whose examination gave the same
        again.
    not_examined : tuple of str
        The held-out data that the run did not examine.
    not_compared : tuple of str
        What was not compared, and why, in words.
    not_recorded : tuple of str
        Columns that the run's version did not write, so that they were not compared.
    """

    rounds: int
    contributions: int
    weighed: int = 0
    examined: tuple[str, ...] = ()
    not_examined: tuple[str, ...] = ()
    not_compared: tuple[str, ...] = ()
    not_recorded: tuple[str, ...] = ()


def replay(run_dir: Path, task: Task | None = None, import_from: Collection[str] = ()) -> Replayed:
    """Recompute weights and attribution from the kept updates, and compare them with the records.

    The attribution is every column of ``attribution.csv`` and ``attribution_rounds.csv``. First the
    held-out data are examined again, however long that takes: they determine for which share of
    wrong labels the loss has to be corrected.

    The attribution is compared bit by bit. The bits are the same on the same kind of processor,
    with the same versions and number of threads. Elsewhere the last digits may differ, and the
    error says by how much.

    Parameters
    ----------
    run_dir : Path
        The folder of a complete run with ``attribution`` and ``updates.keep``.
    task : Task, optional
        The app's own task, if the run had one.
    import_from : collection of str
        Packages whose code may be imported if the run's settings name it as ``module:object``.

    Raises
    ------
    StatementError
        If one of these differs from the records: a cell of the two tables; the model of a round,
        which has to be the one that members received and to follow from the kept updates and their
        coefficients; ``model.pt``, to which the last of them has to lead; a weight; the validation
        set; or what was found in held-out data. The message names the round, the client and the
        figure.
    ConfigError
        If the run kept no updates or has no run config, it had a task of its app's own and none is
        given, or its settings name a module of a package that may not be imported.
    """
    with importing_only(import_from), refused_as(StatementError, "the run cannot be recomputed"):
        records = read_run(run_dir)
        loaded = _load(records, task)
        steps = read_kept_steps(records)
        part = _paying_part(records, loaded)
        not_compared = _examine_again(records, loaded, part)
        taken_back = rounds_taken_back(records, steps)
        weighing = with_recorded_noise(loaded, records.provenance)
        measuring = _measuring(records, weighing, part)
        attributed = _attribute(measuring, steps, records, taken_back)
        compared = _compare(records, attributed)
        weighed = weigh_again(records, weighing, steps, taken_back)
        examined: tuple[str, ...] = ()
        not_examined: tuple[str, ...] = ()
        if loaded.config.section(ValidationSettings).vet:
            examined = tuple(key for key, words in not_compared.items() if not words)
        else:
            not_examined = tuple(not_compared)
        model = ""
        if not records.folder.model.is_file():
            model = f"{records.folder.model.name}: it is not here"
        words = [*not_compared.values(), weighed.not_compared, model]
        return compared._replace(
            weighed=weighed.rounds,
            examined=examined,
            not_examined=not_examined,
            not_compared=tuple(filter(None, words)),
        )


def _load(records: RunRecords, task: Task | None) -> LoadedTask:
    """Return the run's task and validation set, with the loss not corrected yet.

    Raises
    ------
    ConfigError
        If the run has no run config, or ``task`` is missing.
    StatementError
        If the validation set is not the one that the run had.
    """
    if not records.folder.config.path.is_file():
        raise ConfigError(
            f"{str(records.folder.path)!r} is of an app of its own, without a run config: it kept "
            "no updates, and nothing says how to attribute them"
        )
    config = RunConfig.of_records(records.config, where=str(records.folder.config.path))
    if task is None and config.task.startswith(OWN):
        raise ConfigError(f"the run's task is its app's own, {config.task!r}: call replay with it")
    loaded = load_task(config, task)
    if data_hash(tensors_in(loaded.validation_data)) != records.provenance["validation_sha256"]:
        raise StatementError("the validation set is not the one that the run had")
    return loaded


def _paying_part(records: RunRecords, loaded: LoadedTask) -> LoadedTask | None:
    """Return the task with the secret data that pay; ``None``: the run has none."""
    salt = records.salt()
    if not salt:
        return None
    return paying_part(loaded, salt)


def _examine_again(
    records: RunRecords, loaded: LoadedTask, part: LoadedTask | None
) -> dict[str, str]:
    """Examine the held-out data again; return what was not compared, by their keys."""
    weighing = examine_again(HELD_OUT_KEY, loaded, records.provenance, is_in_test=False)
    not_compared = {HELD_OUT_KEY: weighing}
    if part is not None:
        paying = examine_again(PAYING_KEY, part, records.provenance, is_in_test=True)
        not_compared[PAYING_KEY] = paying
    return not_compared


def _measuring(records: RunRecords, weighing: LoadedTask, part: LoadedTask | None) -> LoadedTask:
    """Return the task whose validation set are the data on which contributions were measured."""
    if part is None:
        return weighing
    return replace(weighing, validation=with_recorded_loss(part, records.provenance))


def _attribute(
    loaded: LoadedTask,
    steps: Mapping[int, Step],
    records: RunRecords,
    taken_back: Collection[int],
) -> list[RoundAttribution]:
    """Attribute the kept steps as the run did, and return the attribution of each round.

    Parameters
    ----------
    loaded : LoadedTask
        The run's task; its validation set are the data on which contributions were measured.
    steps : mapping of int to Step
        The kept step of each round that made one.
    records : RunRecords
        The run's records.
    taken_back : collection of int
        The rounds that took the last step back.

    Raises
    ------
    StatementError
        If the kept steps contradict the records, each other, or what members signed.
    """
    # The kept models already have the server optimizer's momentum in them.
    settings = loaded.config.replace(server_optimizer="off")
    strategy = build_strategy(replace(loaded, config=settings))
    model = strategy.model
    model.receive(model_arrays(loaded.model))
    attribution = _attribution_of(loaded, records)
    attribution.on_start(strategy)
    last: Step | None = None
    recorded_weights = read_weights(records)
    by_themselves: list[Tensor] = []  # Steps without server momentum, the newest first.
    for row in records.rounds:
        number = row.round
        step = steps.get(number)
        if step is not None:
            require_received(records, model, step)
            require_weighed(records, step, recorded_weights)
            by_themselves.insert(0, without_momentum(step))
            require_led(records, model, step, by_themselves)
            require_lengths(records, step, settings, sets_lengths=strategy.sets_lengths)
            # The first model is not checked: a task may make another one each time.
            if last is not None:
                require_led_on(records, model, step)
            if not torch.equal(step.before.params, model.vectors.params):
                model.advance(step.before)
        attribution.finish_last_round(number)
        if step is not None:
            before = model.vectors
            model.advance(step.after)
            # The model may hold the step's end in another type, such as float16, so the step is
            # recorded between the tensors that the model really held.
            last = replace(step, before=before, after=model.vectors)
            attribution.on_step(last)
        if last is not None and number in taken_back:
            # The attribution recognises a model by its tensor object. So the model goes back to
            # equal parameters in a new tensor.
            model.advance(replace(last.before, params=last.before.params.clone()))
            del by_themselves[0]
        if step is None:
            attribution.on_round(Round(number, status="failed"))
    if last is not None:
        require_same_end(records, model)
    attribution.on_end()
    return attribution.rounds


def _attribution_of(loaded: LoadedTask, records: RunRecords) -> PathAttribution:
    """Return the callback that attributes rounds as the run's did."""
    credit = loaded.config.section(CreditSettings)
    return PathAttribution(
        loaded.validation,
        loaded.config.attribution,
        per_class=credit.per_class,
        blocks=len(records.block_weights),
        bounds=credit.bounds(),
    )


def _compare(records: RunRecords, recomputed: list[RoundAttribution]) -> Replayed:
    """Return what was recomputed; raise StatementError for the first cell that differs."""
    folder = records.folder
    lines_of_clients = {}
    lines_of_rounds = {}
    for attribution in recomputed:
        number = attribution.server_round
        lines_of_rounds[(number,)] = round_line(attribution)
        for line in client_lines(attribution):
            lines_of_clients[number, line["client_id"]] = line
    recorded_clients = _keyed(folder.attribution, ("round", "client_id"))
    _compare_table(records, folder.attribution, recorded_clients, lines_of_clients)
    recorded_rounds = _keyed(folder.attributed_rounds, ("round",))
    not_recorded = _of_later_versions(recorded_rounds)
    for line in lines_of_rounds.values():
        for column in not_recorded:
            del line[column]
    _compare_table(records, folder.attributed_rounds, recorded_rounds, lines_of_rounds)
    return Replayed(len(recomputed), len(recorded_clients), not_recorded=not_recorded)


def _of_later_versions(
    recorded_rounds: Mapping[tuple[int, ...], Mapping[str, str]],
) -> tuple[str, ...]:
    """Return the columns that a run's version did not write yet.

    These columns were added together, and decide no pay. If one of them is there, all have to be.
    """
    for line in recorded_rounds.values():
        if not line.keys().isdisjoint(OF_DESCENT):
            return ()
    return OF_DESCENT


def _keyed(table: Table, key: Sequence[str]) -> dict[tuple[int, ...], dict[str, str]]:
    """Return a table's lines by the whole numbers in the columns ``key``."""
    keyed = {}
    for row in table.read():
        place = tuple(int(row[name]) for name in key)
        keyed[place] = row
    return keyed


class _Difference(NamedTuple):
    """A cell that differs from the recorded one; of several, the error names the smallest.

    The fields are in the order in which differences are compared.

    Attributes
    ----------
    round : int
        The round.
    rank : int
        The index of the column; -1 for contributions, which come first.
    place : tuple of int
        The key of the line: the round, and in ``attribution.csv`` the client id.
    column : str
        The column.
    was, now : str
        The recorded and the recomputed text.
    """

    round: int
    rank: int
    place: tuple[int, ...]
    column: str
    was: str
    now: str


def _compare_table(
    records: RunRecords,
    table: Table,
    recorded: Mapping[tuple[int, ...], Mapping[str, str]],
    recomputed: Mapping[tuple[Any, ...], Mapping[str, object]],
) -> None:
    """Raise StatementError for the first cell of a table that differs from the recorded one.

    A changed update also changes what is usual, and so the other columns of all members. Its
    member's contribution differs too. So contributions are compared first.
    """
    different: list[_Difference] = []
    for place in recorded.keys() | recomputed.keys():
        recorded_line = recorded.get(place, {})
        line = recomputed.get(place, {})
        columns = dict.fromkeys([*recorded_line, *line])
        for index, column in enumerate(columns):
            was = recorded_line.get(column, "")
            now = _text(line.get(column))
            if was != now:
                rank = index
                if column == "contribution":
                    rank = -1
                different.append(_Difference(place[0], rank, place, column, was, now))
    if different:
        raise StatementError(_in_words(records, table, min(different)))


def _text(value: object) -> str:
    """Return the text that a table has for a value."""
    return csv_text([[value, ""]]).removesuffix(",\n")


def _in_words(records: RunRecords, table: Table, cell: _Difference) -> str:
    """Return an error message: which cell differs, by how much, and why that may be."""
    where = f"round {cell.round}"
    if len(cell.place) > 1:
        _, client_id = cell.place
        where += f", client {client_id}"
    modules = hashes_here(records.provenance.get(MODULES, {}))
    version = ""
    if records.provenance["code_sha256"] != code_hash(modules):
        version = "; this is another version of the code"
    return (
        f"{table.path.name}: {where}: {cell.column} = {cell.was or 'nothing'} is recorded, the "
        f"updates in {records.folder.updates.name}/ give {cell.now or 'nothing'} (relative "
        f"difference {_relative_difference(cell.was, cell.now)}){version}"
    )


def _relative_difference(was: str, now: str) -> str:
    """Return how much two cells differ, in parts of the larger; 1 if one of them is no number."""
    try:
        recorded = float(was)
        recomputed = float(now)
    except ValueError:
        return "1"
    larger = max(abs(recorded), abs(recomputed), 1e-300)
    return f"{abs(recorded - recomputed) / larger:.1g}"
