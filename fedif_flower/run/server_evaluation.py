"""The server's evaluation of each new model, on its validation and its test split."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from flwr.app import ArrayRecord

from fedif_flower.messages.text import printable
from fedif_flower.strategies.global_model import GlobalModel
from fedif_flower.valuation import Validation

logger = logging.getLogger(__name__)


class Evaluated(NamedTuple):
    """What a model was measured by, how long it took, and why there is nothing where it failed."""

    metrics: Mapping[str, float] = MappingProxyType({})
    seconds: float = 0.0
    reason: str = ""


def evaluate(
    server_round: int,
    model: GlobalModel,
    judges: Mapping[str, Validation | None],
    keys: Sequence[str],
) -> Evaluated:
    """Measure a round's model on held-out data; one that cannot be measured is taken back.

    An error ends the run before its first round.

    Parameters
    ----------
    server_round : int
        The round; 0: before the first.
    model : GlobalModel
        What is measured.
    judges : mapping of str to Validation
        The splits ``validation`` and ``test``, and ``triggered``: test examples with a backdoor's
        trigger, labelled with its target.
    keys : sequence of str
        What is measured of the two splits: ``accuracy``, ``loss``, a metric's key.
    """
    if not any(judges.values()):
        return Evaluated()
    started = time.perf_counter()

    def measure(record: ArrayRecord) -> dict[str, float]:
        is_now = record is model.record
        vectors = model.vectors if is_now else model.layout.to_vectors(record)
        buffers = model.layout.named_buffers(vectors)
        metrics: dict[str, float] = {}
        for split, judge in judges.items():
            if judge is None:
                continue
            if split == "triggered":
                metrics["attack-success"] = judge.accuracy(vectors.params, buffers)
                continue
            found = judge.measure(vectors.params, buffers)
            metrics |= {f"{split}-{k.replace('_', '-')}": found[k] for k in keys if k in found}
        return metrics

    try:
        metrics = model.examined(measure)
    except Exception as error:  # out of the model or the loss: the run goes on
        if not server_round:
            raise
        reason = printable(f"the evaluation failed: {error!r}")
        logger.error("round %d: %s", server_round, reason)
        return Evaluated(reason=reason)
    return Evaluated(metrics, time.perf_counter() - started)
