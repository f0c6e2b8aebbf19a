"""The replies that a subclass's own methods are given, and checks of what its methods return."""

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

# The attribute that marks a method which `may_look_through_replies` returned.
_MAY_LOOK = "_may_look_through_replies"
logger = logging.getLogger(__name__)


class Replies(Iterable[Message]):
    """A round's replies, which a subclass may go through before it hands them on.

    A screened grid yields replies as they arrive, and only once. So replies that a subclass has
    seen are kept here. If it has seen none, the strategy gets the grid's own iterator, and no reply
    stays in memory longer than needed.

    Parameters
    ----------
    replies : iterable of Message
        The replies as the grid returned them.
    """

    def __init__(self, replies: Iterable[Message]) -> None:
        self._replies = replies
        self._coming = iter(replies)
        self._seen: list[Message] = []

    @property
    def were_seen(self) -> bool:
        """Whether some of the replies were gone through already."""
        return bool(self._seen)

    def __iter__(self) -> Iterator[Message]:
        """Yield all replies from the first one on; wait for those that have not arrived yet."""
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
        """Return all replies; the grid's own iterator if none was seen, so that none is kept."""
        if self.were_seen:
            return self
        return self._replies


def may_look_through_replies(aggregate: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a subclass's ``aggregate_train`` or ``aggregate_evaluate``: it gets :class:`Replies`.

    It may then go through the replies before it hands them on to ``super()``, as it may with
    Flower's own grids, which return lists.
    """

    @wraps(aggregate)
    def aggregate_replies(strategy: Any, server_round: int, replies: Iterable[Message]) -> Any:
        if isinstance(replies, Replies):  # The method of a further subclass has called this one.
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
    """Tell whether a method is wrapped by :func:`may_look_through_replies` already."""
    return hasattr(aggregate, _MAY_LOOK)


def handed_on(method: str, replies: Iterable[Message]) -> Iterable[Message]:
    """Return all of a round's replies, for the strategy's own ``method``, named for errors.

    Raises
    ------
    ConfigError
        If ``replies`` are an iterator that was gone through before, so that some are lost.
    """
    if isinstance(replies, Replies):
        return replies.handed_on()
    require_fresh(method, replies)
    return replies


def require_fresh(method: str, replies: Iterable[Message]) -> None:
    """Raise ConfigError if a round's replies are an iterator that was gone through before.

    Parameters
    ----------
    method : str
        The method that was given the replies, for errors.
    replies : iterable of Message
        The replies. A screened grid returns a generator, which yields each only once.
    """
    if isgenerator(replies) and getgeneratorstate(replies) != GEN_CREATED:
        raise ConfigError(
            f"{method} is given replies that were gone through before, and none are left: make a "
            "list of them first, list(grid.send_and_receive(messages))"
        )


def require_constructed(strategy: object) -> None:
    """Raise ConfigError if a subclass's constructor does not call ``super().__init__``."""
    # The constructor sets `intake` near its end.
    if not hasattr(strategy, "intake"):
        raise ConfigError(
            f"{type(strategy).__name__}.__init__ does not call super().__init__(...): without it "
            "the strategy has no callbacks, stages or settings"
        )


def messages_of(method: str, returned: object) -> list[Message]:
    """Return the messages that a method returned; raise ConfigError if they are no messages."""
    allowed = "an iterable of Message"
    messages = _listed(method, returned, allowed)
    for message in messages:
        if not isinstance(message, Message):
            raise _returned(method, message, allowed)
    return messages


def pair_of(method: str, returned: object) -> tuple[Any, Any]:
    """Return the model and the metrics that a method returned; raise ConfigError if no pair."""
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        allowed = "a pair (ArrayRecord or None, MetricRecord or None)"
        raise _returned(method, returned, allowed)
    model, metrics = returned
    return model, metrics


def selection_of(method: str, selected: object) -> list[ClientNode]:
    """Return the nodes that a method has drawn; an empty list is allowed.

    Raises
    ------
    ConfigError
        If something else than nodes is among them, or a node is drawn twice.
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
    """Return a method's result as a list; raise ConfigError if it is not iterable."""
    if not isinstance(returned, Iterable):
        raise _returned(method, returned, allowed)
    return list(returned)


def _returned(method: str, value: object, allowed: str) -> ConfigError:
    """Return the error that a method returned a value of a wrong type."""
    return ConfigError(f"{method} returned {type(value).__name__}; allowed: {allowed}")


def require_messages(
    method: str, messages: Sequence[Message], members: Collection[ClientNode]
) -> None:
    """Raise ConfigError unless a round's messages go to exactly the members drawn for it.

    A member that is drawn and not asked would count as one that does not answer. A client that is
    asked and was not drawn would train for nothing: its reply is refused.

    Parameters
    ----------
    method : str
        The method that returned the messages, for errors.
    messages : sequence of Message
        The messages that ask members to train.
    members : collection of ClientNode
        The members drawn; may be empty.
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
    """Make the model that a method returned the global model.

    Parameters
    ----------
    method : str
        The method that returned the model, for errors.
    arrays : object
        The model that it returned.
    model : GlobalModel
        The run's global model, which takes ``arrays`` over.

    Raises
    ------
    ConfigError
        If ``arrays`` are no ArrayRecord, or do not have the layout of this run's model.
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
