"""Recomputing the weights of a run's rounds: its strategy weighs the kept updates again."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedif_consortium.statement.records import RunRecords
from fedif_flower.errors import FedIFError, StatementError
from fedif_flower.messages.models import model_arrays
from fedif_flower.round import Aggregation, ModelVectors, RoundUpdates
from fedif_flower.run.loaded_task import LoadedTask
from fedif_flower.run.server_seed import read_server_seed
from fedif_flower.run.strategy import build_strategy
from fedif_flower.server.loop import ScreenedStrategy
from fedif_flower.server.record import Step

# Figures are the same if they differ by at most this part of the largest one: the same arithmetic
# may run with another number of threads, or on another processor.
_SAME = 1e-4

# The figures that a round keeps of each client beside its update, in the order in which they come
# about, with their names in error messages.
_OF_CLIENTS = {
    "shortening": "a shortening",
    "rescaling": "a rescaling",
    "weights": "a weight",
    "applied": "a coefficient",
}


class WeighedAgain(NamedTuple):
    """The result of :func:`weigh_again`.

    ``rounds`` is the number of rounds whose weights came out the same. ``not_compared`` says which
    weights were not compared, and why; empty: all were.
    """

    rounds: int
    not_compared: str = ""


def weigh_again(
    records: RunRecords,
    loaded: LoadedTask,
    steps: Mapping[int, Step],
    taken_back: Collection[int],
) -> WeighedAgain:
    """Weigh the kept updates of all rounds by the run's strategy, and compare with what was kept.

    The updates, the settings and the held-out data determine the weights, how much updates are
    shortened or rescaled, and the noise that the rule itself adds. So an operator who weighed
    updates otherwise is found out.

    Parameters
    ----------
    records : RunRecords
        The run's records.
    loaded : LoadedTask
        The run's task, with the held-out data and the loss by which updates were weighed.
    steps : mapping of int to Step
        The kept step of each round that made one.
    taken_back : collection of int
        The rounds that took the last step back.

    Raises
    ------
    StatementError
        If a weight or another figure of a client differs, or a round's noise, or the strategy
        cannot weigh a round's updates. The message names the round, and the client if it is one.
        Also if the secret from which the server's draws follow is not there.
    """
    setup: dict[str, Any] = {}
    server_seed = read_server_seed(records.folder, records.provenance)
    if server_seed is not None:
        setup["seed"] = server_seed
    strategy = build_strategy(loaded, setup)
    if strategy.intake.reweighs:
        method = loaded.config.local_method
        why = f"{method} changes them by what clients report, which the run does not keep"
        return WeighedAgain(0, f"weights: local_method = {method!r}: {why}")
    strategy.stages.begin(strategy.validation)
    strategy.model.receive(model_arrays(loaded.model))
    without_step = _weighed_without_step(records, steps)
    num_compared = 0
    for row in records.rounds:
        number = row.round
        if number in steps:
            _compare(steps[number], strategy, loaded.config.strategy)
            num_compared += 1
        elif number in without_step and _remembers(strategy):
            why = (
                f"the strategy also learned from the updates of round {number}, which made no "
                "step, and such updates are not kept"
            )
            return WeighedAgain(num_compared, f"weights after round {number}: {why}")
        if number in taken_back:
            strategy.model.take_back()
    return WeighedAgain(num_compared)


def _weighed_without_step(records: RunRecords, steps: Mapping[int, Step]) -> set[int]:
    """Return the rounds whose updates were weighed but made no step: runs do not keep these.

    In a round that failed before its updates were weighed, all weights are 0, too. The strategy
    learned nothing from it.
    """
    weighed = {line["round"] for line in records.lines if line["status"] == "kept"}
    for line in records.folder.clients.read():
        if line["status"] == "accepted" and float(line["weight"] or 0.0) != 0.0:
            weighed.add(int(line["round"]))
    return weighed - steps.keys()


def _remembers(strategy: ScreenedStrategy) -> bool:
    """Return whether a strategy's weights depend on the updates of earlier rounds."""
    if strategy.stages.remembering:
        return True
    learned_beside_stages = strategy.learned().keys() - {"stages"}
    return len(learned_beside_stages) > 0


def _compare(step: Step, strategy: ScreenedStrategy, name: str) -> None:
    """Weigh a round's updates, and raise StatementError if the run weighed them otherwise."""
    number = step.updates.server_round
    model = strategy.model
    received = model.receive(model.layout.to_arrays(step.before))
    strategy.prepare(received.params, model.named_buffers)
    try:
        vectors, aggregation = strategy.aggregate(_updates_for(strategy, step))
    except FedIFError as error:
        raise StatementError(
            f"round {number}: {name!r} cannot weigh its updates: {error}"
        ) from error
    for figure, words in _OF_CLIENTS.items():
        recorded = _figures(step.aggregation, figure)
        expected = _figures(aggregation, figure)
        for row in _rows_apart(recorded, expected):
            raise StatementError(
                f"round {number}: client {step.nodes[row].client_id} has {words} of "
                f"{float(recorded[row]):.6g} in the kept updates, and {float(expected[row]):.6g} "
                f"by {name!r}"
            )
    _require_same_noise(number, step.aggregation.noise, aggregation.noise, name)
    model.advance(vectors)


def _updates_for(strategy: ScreenedStrategy, step: Step) -> RoundUpdates:
    """Return a round's updates in the form in which the strategy gets them in a run."""
    updates = step.updates
    device = strategy.device
    model = strategy.model.vectors
    client_updates = updates.client_updates.to(device)
    # Squares are summed in float64, one update at a time: a copy of all updates in float64 would
    # take twice their memory.
    squared_norms = [update.double().square().sum().cpu() for update in client_updates]
    return replace(
        updates,
        seed=strategy.seed,
        names=strategy.model.layout,
        model=ModelVectors(model.params.to(device), model.buffers.to(device), model.counters),
        client_updates=client_updates,
        squared_norms=torch.stack(squared_norms),
        buffer_updates=updates.buffer_updates.to(device),
    )


def _figures(aggregation: Aggregation, name: str) -> Tensor:
    """Return one figure of each client in a round, ``[m]``; ones if the round has none."""
    figures: Tensor | None = getattr(aggregation, name)
    if figures is None:
        return torch.ones(len(aggregation.weights), dtype=torch.float64)
    return figures.double().cpu()


def _rows_apart(recorded: Tensor, expected: Tensor) -> Iterator[int]:
    """Yield the rows in which figures ``[m]`` differ, the largest difference first."""
    differences = (recorded - expected).abs()
    largest = torch.maximum(recorded.abs(), expected.abs()).max()
    for row in differences.argsort(descending=True).tolist():
        # Not written as "more than", so that NaN counts as a difference.
        if not differences[row] <= _SAME * largest:
            yield row


def _require_same_noise(
    number: int, recorded: Tensor | None, expected: Tensor | None, name: str
) -> None:
    """Raise StatementError if a round's noise ``[d]`` differs from the noise that the rule adds."""
    if recorded is None and expected is None:
        return
    is_same = False
    if recorded is not None and expected is not None:
        expected = expected.to(recorded)
        is_same = bool((recorded - expected).norm() <= _SAME * expected.norm())
    if not is_same:
        raise StatementError(
            f"round {number}: the noise in the kept updates is not the one that {name!r} adds"
        )
