"""What a subclass's own constructor and methods get, and have to return."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import wraps
from inspect import GEN_CREATED, getgeneratorstate, isgenerator
from typing import Any

from flwr.app import ArrayRecord, Message

from fedif_flower.errors import ConfigError, ReplyError
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.server.model import GlobalModel
from fedif_flower.words import enumerated

_TAKES_A_LIST = "_takes_a_list"


def given_a_list(aggregate: Callable[..., Any]) -> Callable[..., Any]:
    """Return a subclass's own ``aggregate_train`` or ``aggregate_evaluate``, given a list.

    It may look through the replies before it hands them on, as over Flower's grids. Those of a
    screened grid can be gone through once: none would be left. All of them stay in memory then,
    which the strategies here do without.
    """
    if hasattr(aggregate, _TAKES_A_LIST):
        return aggregate

    @wraps(aggregate)
    def aggregate_list(strategy: Any, server_round: int, replies: Iterable[Message]) -> Any:
        return aggregate(strategy, server_round, list(replies))

    setattr(aggregate_list, _TAKES_A_LIST, True)
    return aggregate_list


def require_fresh(method: str, replies: Iterable[Message]) -> None:
    """Raise ConfigError where a loop has gone through a round's replies, and none are left.

    Parameters
    ----------
    method : str
        What was given them, for errors.
    replies : iterable of Message
        Those of a screened grid come while they are gone through, and are not kept.
    """
    if isgenerator(replies) and getgeneratorstate(replies) != GEN_CREATED:
        raise ConfigError(
            f"{method} is given replies that were gone through before, and none are left: make a "
            "list of them first, list(grid.send_and_receive(messages))"
        )


def require_constructed(strategy: object) -> None:
    """Raise ConfigError for a subclass whose own constructor does not call the one above."""
    if not hasattr(strategy, "intake"):
        raise ConfigError(
            f"{type(strategy).__name__}.__init__ does not call super().__init__(...): without it "
            "the strategy has no callbacks, stages or settings"
        )


def messages_of(method: str, returned: object) -> list[Message]:
    """Return the messages that a method returned; raise ConfigError if it returned others."""
    allowed = "an iterable of Message"
    messages = _listed(method, returned, allowed)
    for message in messages:
        if not isinstance(message, Message):
            raise _returned(method, message, allowed)
    return messages


def pair_of(method: str, returned: object) -> tuple[Any, Any]:
    """Return the model and the metrics that a method returned; raise ConfigError for no pair."""
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        allowed = (
            "a pair of an ArrayRecord and a MetricRecord, None in the place of each that there is "
            "not"
        )
        raise _returned(method, returned, allowed)
    model, metrics = returned
    return model, metrics


def selection_of(method: str, selected: object) -> list[ClientNode]:
    """Return the nodes that a method has drawn; raise ConfigError if they are none, or one twice.

    An empty list is one: nobody is asked in the round.
    """
    allowed = "a list of some of the nodes that it was given, ClientNode each"
    nodes = _listed(method, selected, allowed)
    for node in nodes:
        if not isinstance(node, ClientNode):
            raise _returned(method, node, allowed)
    if len({node.node_id for node in nodes}) < len(nodes):
        raise ConfigError(f"{method} returned a node twice; allowed: each at most once")
    return nodes


def _listed(method: str, returned: object, allowed: str) -> list[Any]:
    """Return a list of what a method returned; raise ConfigError if that cannot be gone through."""
    if not isinstance(returned, Iterable):
        raise _returned(method, returned, allowed)
    return list(returned)


def _returned(method: str, value: object, allowed: str) -> ConfigError:
    """Return the error that a method returned a value of another kind, or one among others."""
    return ConfigError(f"{method} returned {type(value).__name__}; allowed: {allowed}")


def require_messages(
    method: str, messages: Sequence[Message], members: Collection[ClientNode]
) -> None:
    """Raise ConfigError unless a round's messages go to those who were drawn for it.

    Who is drawn and never asked would count as away; who is asked and was not drawn counts for
    nothing.

    Parameters
    ----------
    method : str
        What returned the messages, for errors.
    messages : sequence of Message
        By which the round's members are asked to train.
    members : collection of ClientNode
        Who was drawn; empty: nobody.
    """
    drawn = {node.node_id: node for node in members}
    asked_ids = {message.metadata.dst_node_id for message in messages}
    if asked_ids == drawn.keys():
        return
    if not drawn:
        raise ConfigError(
            f"{method} asks {len(asked_ids)} clients, and none was drawn: it has to call "
            "super().configure_train, and return messages to those whom that has drawn"
        )
    missing = [node.label for node_id, node in drawn.items() if node_id not in asked_ids]
    if missing:
        wrong = f"does not ask {enumerated(missing)}"
    else:
        others = [f"node {node_id}" for node_id in sorted(asked_ids - drawn.keys())]
        wrong = f"asks {enumerated(others)}"
    raise ConfigError(
        f"{method} {wrong}; allowed: a message to each of the {len(drawn)} that were drawn, and "
        "to no other (select decides who is drawn)"
    )


def take_model(method: str, arrays: object, model: GlobalModel) -> None:
    """Go on from the model that a round has led to.

    Parameters
    ----------
    method : str
        What returned the model, for errors.
    arrays : object
        The model that it returned.
    model : GlobalModel
        The run's, which takes it over.

    Raises
    ------
    ConfigError
        If it is no model of this run.
    """
    if not isinstance(arrays, ArrayRecord):
        raise ConfigError(
            f"{method} returned a model of type {type(arrays).__name__}; allowed: an ArrayRecord, "
            "or None where the old model stays"
        )
    try:
        model.receive(arrays)
    except (ReplyError, ValueError) as error:
        raise ConfigError(f"{method} returned no model of this run: {error}") from error
