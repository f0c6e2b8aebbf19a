"""Who evaluates a round's model: clients that are drawn for it, and the user's own function."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import Grid

from fedif_flower.arithmetic import share_of
from fedif_flower.errors import FedIFError, ValuationError, with_place
from fedif_flower.seeding import numpy_generator
from fedif_flower.server.model import GlobalModel
from fedif_flower.server.nodes import sample_clients
from fedif_flower.server.roster import Roster

logger = logging.getLogger(__name__)

EvaluateFunction = Callable[[int, ArrayRecord], MetricRecord | None]


def draw_evaluators(
    roster: Roster, grid: Grid, server_round: int, *, share: float, least: int, seed: int
) -> list[int]:
    """Return the ids of the nodes that evaluate a round's model, by (seed, round).

    Parameters
    ----------
    roster : Roster
        Knows who is online, and who is paused.
    grid : Grid
        The way to the nodes.
    server_round : int
        The round.
    share : float
        Of the nodes online, in (0, 1].
    least : int
        How many are drawn at least.
    seed : int
        The strategy's.
    """
    needed = max(least, 1)
    nodes = roster.directory.online(grid, needed, "min_evaluate_nodes")
    free = roster.failures.available(nodes, server_round, needed)
    size = share_of(len(nodes), share, least)
    generator = numpy_generator("sample-evaluators", seed, server_round)
    return [node.node_id for node in sample_clients(free, size, generator)]


def users_metrics(
    evaluate_fn: EvaluateFunction, server_round: int, model: GlobalModel
) -> Mapping[str, float]:
    """Return the metrics that the user's own function gives a round's model; none where it fails.

    A model that it cannot bear is taken back.

    Raises
    ------
    Exception
        What the function raises, if that is an error of this package but for a ValuationError, or
        before the first round (0).
    """
    try:
        metrics = model.evaluate_or_take_back(lambda arrays: evaluate_fn(server_round, arrays))
        return metrics_of("evaluate_fn", metrics)
    except Exception as error:
        is_ours = isinstance(error, FedIFError) and not isinstance(error, ValuationError)
        if is_ours or not server_round:
            raise
        reason = with_place(error)
        logger.error("round %d: the evaluation failed: %s", server_round, reason)
        return {}


def metrics_of(whose: str, returned: object) -> Mapping[str, Any]:
    """Return what somebody else's function says of a model, by name; none where it is ``None``.

    Parameters
    ----------
    whose : str
        The function, for errors.
    returned : object
        What it returned.

    Raises
    ------
    ValuationError
        If these are no metrics.
    """
    if returned is None:
        return {}
    if not isinstance(returned, Mapping):
        raise ValuationError(
            f"{whose} returned {type(returned).__name__}; allowed: "
            'MetricRecord({"loss": ..., "accuracy": ...}) or None'
        )
    try:
        # A record refuses what is no number.
        return dict(MetricRecord(dict(returned)))
    except (TypeError, ValueError) as error:
        raise ValuationError(f"{whose} returned no metrics: {error}") from error
