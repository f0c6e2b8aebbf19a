"""A member's statement on its way to the node: what is sent, how much of it, what comes back."""

from __future__ import annotations

from dataclasses import dataclass

from flwr.app import ConfigRecord, RecordDict

from fedif_consortium.page import MAX_PAGE_BYTES, refuse_page
from fedif_flower.errors import ReplyError
from fedif_flower.messages.text import printable

ACTION = "statement"  # Messages of type ``query.statement``.
_RECORD = "statement"


@dataclass(frozen=True)
class Delivery:
    """A member's page, and the signed manifest that shows that it is as it was made."""

    page: bytes
    manifest: bytes

    def to_content(self) -> RecordDict:
        """Return the content of a message."""
        return RecordDict({_RECORD: ConfigRecord(dict(vars(self)))})


@dataclass(frozen=True)
class Receipt:
    """A node's answer: ``kept``; not, for ``reason``; or not ``wanted``, now or later."""

    kept: bool
    wanted: bool = True
    reason: str = ""

    def to_content(self) -> RecordDict:
        """Return the content of a reply."""
        return RecordDict({_RECORD: ConfigRecord(dict(vars(self)))})


def read_delivery(content: RecordDict) -> Delivery:
    """Return what a server sent, if a node may keep it.

    Raises
    ------
    ReplyError
        If it is larger than 1 MiB each, no page, or not of these types.
    """
    record = content.config_records.get(_RECORD, ConfigRecord())
    page, manifest = record.get("page"), record.get("manifest")
    if not (isinstance(page, bytes) and isinstance(manifest, bytes)):
        raise ReplyError("the message holds no page and manifest")
    if reason := refuse_page(page):
        raise ReplyError(reason)
    if len(manifest) > MAX_PAGE_BYTES:
        raise ReplyError(f"the manifest has {len(manifest)} bytes; allowed: {MAX_PAGE_BYTES}")
    return Delivery(page, manifest)


def read_receipt(content: RecordDict) -> Receipt:
    """Return a node's answer; one that is unreadable keeps nothing."""
    try:
        record = content.config_records[_RECORD]
        kept, wanted = record["kept"], record["wanted"]
        if isinstance(kept, bool) and isinstance(wanted, bool):
            return Receipt(kept, wanted, printable(record["reason"]))
    except Exception as error:  # a hostile answer must not stop the server
        return Receipt(kept=False, reason=printable(f"unreadable answer: {error!r}"))
    return Receipt(kept=False, reason="unreadable answer")
