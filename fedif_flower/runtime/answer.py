"""How what a ClientApp returns becomes a reply."""

from __future__ import annotations

from flwr.app import Error, Message
from flwr.common.constant import ErrorCode


def reply_of(answer: object, message: Message) -> Message:
    """Return a ClientApp's answer to a message; an error reply if the answer is no message.

    A function without a ``return``, for example, answers ``None``.
    """
    if isinstance(answer, Message):
        return answer
    reason = (
        f"the ClientApp returned {type(answer).__name__}; allowed: a Message, as "
        "Message(content, reply_to=message)"
    )
    return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)
