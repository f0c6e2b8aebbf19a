"""A member's statement on its way to the node: what is sent, how much of it, what comes back."""

from __future__ import annotations

from typing import NamedTuple

from flwr.app import ConfigRecord, RecordDict

from fedif_consortium.page import MAX_PAGE_BYTES, refuse_page
from fedif_flower.errors import ReplyError
from fedif_flower.messages.text import printable

ACTION = "statement"  # Messages of type ``query.statement``.
_RECORD = "statement"


class Receipt(NamedTuple):
    """A node's answer: ``kept``; not, for ``reason``; or not ``wanted``, now or later."""

    kept: bool
    wanted: bool = True
    reason: str = ""

    def to_content(self) -> RecordDict:
        """Return the content of a reply."""
        return RecordDict({_RECORD: ConfigRecord(self._asdict())})


def delivery(page: bytes, manifest: bytes) -> RecordDict:
    """Return what brings a member its page, and the signed manifest that shows that it is whole."""
    return RecordDict({_RECORD: ConfigRecord({"page": page, "manifest": manifest})})


def read_delivery(content: RecordDict) -> tuple[bytes, bytes]:
    """Return page and manifest that a server sent, if a node may keep them.

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
    return page, manifest


def read_receipt(content: RecordDict) -> Receipt:
    """Return a node's answer; one that is unreadable keeps nothing."""
    record = content.config_records.get(_RECORD, ConfigRecord())
    kept, wanted = record.get("kept"), record.get("wanted")
    if not (isinstance(kept, bool) and isinstance(wanted, bool)):
        return Receipt(kept=False, reason="unreadable answer")
    return Receipt(kept, wanted, printable(record.get("reason", "")))
