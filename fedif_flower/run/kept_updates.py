"""The updates of a run's rounds, kept so that others can recompute what each contributed."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedif_flower.errors import StatementError, require
from fedif_flower.foreign import require_plain_archive
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.round import Aggregation, ModelVectors, RoundUpdates
from fedif_flower.run.checkpoint import Checkpoint
from fedif_flower.run.config import RunConfig
from fedif_flower.run.folder import RunFolder, file_of_round, files_of_rounds, write_tensors
from fedif_flower.run.own_sections import UpdatesSettings
from fedif_flower.run.part import NOTHING, Built, RunContext, RunPart
from fedif_flower.server.record import Step
from fedif_flower.server.run import Callback, RunningStrategy
from fedif_flower.storage import make_folder
from fedif_flower.words import listed

logger = logging.getLogger(__name__)


class KeepUpdates(RunPart):
    """``updates.keep``: keep every round's updates, from which the run can be replayed."""

    settings = UpdatesSettings

    def fits(self, config: RunConfig) -> None:
        """Raise ConfigError if updates are to be kept although nothing is attributed."""
        keep = config.section(UpdatesSettings).keep
        if config.attribution == "off":
            require(not keep, "updates.keep", keep, "false with attribution = 'off'")

    def build(self, run: RunContext) -> Built:
        """Return the callback that writes each round's step."""
        config = run.config
        if not config.section(UpdatesSettings).keep:
            return NOTHING
        rounds_left = config.num_server_rounds - run.done
        # Beside the updates, the model before the step and the model after it.
        copies_per_round = config.most_replies + 2
        return Built(
            callbacks=[KeptUpdates(run.folder, _earlier_steps(run.checkpoint))],
            copies=rounds_left * copies_per_round,
        )


def _earlier_steps(checkpoint: Checkpoint | None) -> list[int]:
    """Return which of the rounds up to a checkpoint made a step."""
    if checkpoint is None:
        return []
    lines = checkpoint.lines["rounds"]
    return [line["round"] for line in lines if line["round"] and line["status"] == "advanced"]


class KeptUpdates(Callback):
    """Writes each round's step as ``updates/round-000001.pt``: the updates, and what was applied.

    Parameters
    ----------
    folder : RunFolder
        The run's folder.
    earlier_steps : sequence of int
        The rounds of earlier processes that made a step; the run warns if their files are missing.
    """

    def __init__(self, folder: RunFolder, earlier_steps: Sequence[int]) -> None:
        self.folder = folder.updates
        self.earlier_steps = earlier_steps

    def on_start(self, strategy: RunningStrategy) -> None:  # noqa: ARG002
        """Make the folder; warn if rounds from which the run is resumed are not in it."""
        make_folder(self.folder)
        kept = files_of_rounds(self.folder)
        lacking = [number for number in self.earlier_steps if number not in kept]
        if lacking:
            logger.warning(
                "%s lacks the rounds %s, from which this run goes on: nobody can replay it; copy "
                "them from the folder of the run that kept them",
                self.folder,
                listed(lacking),
            )

    def on_step(self, step: Step) -> None:
        """Write a round's step."""
        aggregation = step.aggregation
        # The attribution, without which no updates are kept, refuses rules without coefficients.
        assert aggregation.applied is not None
        content = {
            "server_round": step.updates.server_round,
            "members": [[node.partition_id, node.client_id] for node in step.nodes],
            "updates": _copied(step.updates.client_updates),
            "buffers": _copied(step.updates.buffer_updates),
            "counters": [_all_copied(counters) for counters in step.updates.counters],
            "examples": _copied(step.updates.num_examples),
            "weights": _copied(aggregation.weights),
            "applied": _copied(aggregation.applied),
            "shortening": _copied_if_there(aggregation.shortening),
            "rescaling": _copied_if_there(aggregation.rescaling),
            "noise": _copied_if_there(aggregation.noise),
            "shares": list(step.step_factors),
            "before": _vectors(step.before),
            "after": _vectors(step.after),
        }
        write_tensors(file_of_round(self.folder, step.updates.server_round), content)


def read_step(path: Path) -> Step:
    """Read a file that :class:`KeptUpdates` wrote; no code in the file can run.

    The squared norms of the updates are not kept: they are 0 in the step that is returned.

    Raises
    ------
    StatementError
        If the file is damaged, is not there, or holds no round's step.
    """
    try:
        require_plain_archive(path)
        content = torch.load(path, weights_only=True)
        updates = content["updates"]
        buffers = content["buffers"]
        counters = content["counters"]
        examples = content["examples"]
        weights = content["weights"]
        applied = content["applied"]
        shortening = content["shortening"]
        rescaling = content["rescaling"]
        noise = content["noise"]
        before = ModelVectors(**content["before"])
        after = ModelVectors(**content["after"])
        nodes = [ClientNode(*member) for member in content["members"]]
        for rows in (updates, buffers, counters, examples, weights, applied, shortening, rescaling):
            if rows is not None and len(rows) != len(nodes):
                raise ValueError("members, updates and coefficients are not equally many")
        server_round = int(content["server_round"])
        step_factors = tuple(content["shares"])
    except Exception as error:  # A file that was made by hand can hold anything.
        raise StatementError(f"{path.name} is no kept round: {error!r:.200}") from error
    round_updates = RoundUpdates(
        server_round=server_round,
        client_ids=tuple(node.client_id for node in nodes),
        num_examples=examples,
        model=before,
        client_updates=updates,
        # A reader that needs the norms computes them from the updates.
        squared_norms=torch.zeros(len(nodes), dtype=torch.float64),
        buffer_updates=buffers,
        counters=counters,
    )
    aggregation = Aggregation(
        weights, noise=noise, applied=applied, shortening=shortening, rescaling=rescaling
    )
    return Step(round_updates, nodes, before, after, aggregation, step_factors)


def _copied(tensor: Tensor) -> Tensor:
    """Return a copy on the CPU: of a view, torch.save writes the whole memory behind it."""
    return tensor.detach().cpu().clone()


def _copied_if_there(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else _copied(tensor)


def _all_copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: _copied(values) for name, values in tensors.items()}


def _vectors(vectors: ModelVectors) -> dict[str, Any]:
    """Return copies of a model's vectors, by their names in :class:`ModelVectors`."""
    return {
        "params": _copied(vectors.params),
        "buffers": _copied(vectors.buffers),
        "counters": _all_copied(vectors.counters),
    }
