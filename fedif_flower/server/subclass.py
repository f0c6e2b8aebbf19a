"""What a subclass's own constructor and methods get, and have to return."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import wraps
from inspect import GEN_CREATED, getgeneratorstate, isgenerator
from typing import Any

from flwr.app import ArrayRecord, Message

from fedif_flower.errors import ConfigError, ReplyError
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.server.model import GlobalModel
from fedif_flower.words import enumerated

_MAY_LOOK = "_may_look_through_replies"
logger = logging.getLogger(__name__)


class Replies(Iterable[Message]):
    """A round's replies, which a subclass may go through before it hands them on.

    Those of a screened grid come while they are gone through, and only once: what a subclass has
    seen is kept here. Where it has seen none, the strategy gets them as they come.

    Parameters
    ----------
    replies : iterable of Message
        What came from the grid.
    """

    def __init__(self, replies: Iterable[Message]) -> None:
        self._replies = replies
        self._coming = iter(replies)
        self._seen: list[Message] = []

    @property
    def were_seen(self) -> bool:
        """Whether anybody has gone through some of them."""
        return bool(self._seen)

    def __iter__(self) -> Iterator[Message]:
        """Go through them from the first one on; those to come are waited for."""
        place = 0
        while True:
            if place == len(self._seen):
                reply = next(self._coming, None)
                if reply is None:
                    return
                self._seen.append(reply)
            yield self._seen[place]
            place += 1

    def handed_on(self) -> Iterable[Message]:
        """Return them all: as they come, and kept by nobody, where nobody has seen any."""
        if self.were_seen:
            return self
        return self._replies


def may_look_through_replies(aggregate: Callable[..., Any]) -> Callable[..., Any]:
    """Return a subclass's own ``aggregate_train`` or ``aggregate_evaluate``, as a round calls it.

    It is given :class:`Replies`, and may go through them before it hands them on, as over Flower's
    grids.
    """

    @wraps(aggregate)
    def aggregate_replies(strategy: Any, server_round: int, replies: Iterable[Message]) -> Any:
        if isinstance(replies, Replies):  # Of a subclass's subclass.
            return aggregate(strategy, server_round, replies)
        whose = f"{type(strategy).__name__}.{aggregate.__name__}"
        require_fresh(whose, replies)
        looked_through = Replies(replies)
        answer = aggregate(strategy, server_round, looked_through)
        if looked_through.were_seen and strategy.setup.pace.quorum:
            logger.warning(
                "round %d: %s goes through the replies before it hands them on: the round has "
                "waited for all of them, whatever the quorum",
                server_round,
                whose,
            )
        return answer

    setattr(aggregate_replies, _MAY_LOOK, True)
    return aggregate_replies


def looks_through_replies(aggregate: object) -> bool:
    """Tell whether a method is given :class:`Replies` already."""
    return hasattr(aggregate, _MAY_LOOK)


def handed_on(method: str, replies: Iterable[Message]) -> Iterable[Message]:
    """Return the replies that the strategy's own ``method`` takes in, none of them lost.

    Raises
    ------
    ConfigError
        If a loop has gone through them before, and none are left.
    """
    if isinstance(replies, Replies):
        return replies.handed_on()
    require_fresh(method, replies)
    return replies


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
