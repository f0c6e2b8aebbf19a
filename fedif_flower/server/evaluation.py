"""Evaluation of a round's model: by clients drawn for it, and by the user's own function."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
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
    roster: Roster,
    grid: Grid,
    server_round: int,
    *,
    share: float,
    least: int,
    at_work: Collection[int],
    seed: int,
) -> list[int]:
    """Draw the nodes that evaluate a round's model, and return their ids.

    The random numbers depend on ``(seed, server_round)`` alone. They are independent of the random
    numbers by which the clients that train are drawn.

    Parameters
    ----------
    roster : Roster
        Knows which nodes are online, and which of them may be asked.
    grid : Grid
        The connection to the nodes.
    server_round : int
        The round.
    share : float
        The share of the nodes online that is drawn, in (0, 1].
    least : int
        The smallest number of nodes to draw, if so many may be asked.
    at_work : collection of int
        The ids of the nodes that still train: they are not drawn, since all evaluators are awaited.
    seed : int
        The strategy's seed.
    """
    needed = max(least, 1)
    present = roster.call(
        grid,
        server_round,
        least=needed,
        awaited=needed,
        key="min_evaluate_nodes",
        at_work=at_work,
    )
    size = share_of(len(present.online), share, least)
    generator = numpy_generator("sample-evaluators", seed, server_round)
    return [node.node_id for node in sample_clients(present.candidates, size, generator)]


def users_metrics(
    evaluate_fn: EvaluateFunction, server_round: int, model: GlobalModel
) -> Mapping[str, float]:
    """Return the metrics that the user's ``evaluate_fn`` gives the model; none if it fails.

    If ``evaluate_fn`` raises on the model but not on the last one that worked, the model is taken
    back (see :meth:`GlobalModel.evaluate_or_take_back`). Other errors are logged: a run that has
    begun does not end because its evaluation fails.

    Parameters
    ----------
    evaluate_fn : callable
        Takes the round and the model as an ArrayRecord; returns a MetricRecord or ``None``.
    server_round : int
        The round; 0: before the first.
    model : GlobalModel
        The model to evaluate.

    Raises
    ------
    Exception
        Whatever ``evaluate_fn`` raises before the first round (0). Later, only an error of this
        package that is no ValuationError.
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
    """Return the metrics that a user's function returned, checked; empty for ``None``.

    Parameters
    ----------
    whose : str
        The function's name, for errors.
    returned : object
        The value that the function returned.

    Raises
    ------
    ValuationError
        If ``returned`` is neither ``None`` nor a mapping of names to numbers.
    """
    if returned is None:
        return {}
    if not isinstance(returned, Mapping):
        raise ValuationError(
            f"{whose} returned {type(returned).__name__}; allowed: "
            'MetricRecord({"loss": ..., "accuracy": ...}) or None'
        )
    try:
        # MetricRecord raises for a value that is no number.
        return dict(MetricRecord(dict(returned)))
    except (TypeError, ValueError) as error:
        raise ValuationError(f"{whose} returned no metrics: {error}") from error
