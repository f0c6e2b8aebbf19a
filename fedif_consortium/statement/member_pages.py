"""Statements on their way to a member: the server's message, and the node that keeps its page.

The node chooses the folder and the names of its files, not the server.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict

from fedif_consortium.evidence.member_receipts import take_receipts
from fedif_consortium.page import MAX_PAGE_BYTES, reason_against_page
from fedif_consortium.statement.manifest import ENVELOPE, PAGE, put_folder
from fedif_flower.errors import FedIFError, ReplyError, StorageError
from fedif_flower.messages.node_config import NodeConfig
from fedif_flower.messages.records import records_of
from fedif_flower.messages.text import printable
from fedif_flower.storage import make_folder, remove_leftovers

MAX_STATEMENTS = 100
UNWANTED = "this node has no statement-dir"
_RECORD = "statement"
logger = logging.getLogger(__name__)


def delivery(page: bytes, manifest: bytes) -> RecordDict:
    """Return the content of the message that brings a member its page and the signed manifest."""
    return RecordDict({_RECORD: ConfigRecord({"page": page, "manifest": manifest})})


def keep_statement(message: Message, context: Context) -> Message:
    """Write the page in a message into this node's ``statement-dir``, and return the answer.

    The answer says why the page was not kept; it is empty if the page was kept. The message also
    brings the node's last receipts, which are kept first.
    """
    take_receipts(message.content, context)
    answer = ConfigRecord({"refused": _why_not_kept(message.content, context)})
    return Message(RecordDict({_RECORD: answer}), reply_to=message)


def _why_not_kept(content: RecordDict, context: Context) -> str:
    """Write the page into this node's folder; return why it was not kept, empty: it was."""
    folder = NodeConfig.from_node_config(context.node_config).statement_dir
    if not folder:
        return UNWANTED
    try:
        page = write_statement(content, Path(folder).expanduser().absolute())
    except FedIFError as error:
        logger.warning("a statement was not kept: %s", error)
        return printable(str(error))
    logger.info("a statement for this node: %s", page)
    return ""


def read_answer(content: RecordDict) -> str:
    """Return from a node's answer why it did not keep its page; empty: it did."""
    refused = records_of(content, ConfigRecord).get(_RECORD, ConfigRecord()).get("refused")
    if not isinstance(refused, str):
        return "unreadable answer"
    return printable(refused)


def write_statement(content: RecordDict, folder: Path) -> Path:
    """Write the page and the manifest that a server sent into a new folder below ``folder``.

    The new folder is named after this host's clock, so the server cannot choose a name. No earlier
    statement is replaced or removed; a folder with 100 statements takes no more.

    Returns
    -------
    Path
        The page.

    Raises
    ------
    ReplyError
        If the message has no page and manifest, one of them is larger than 1 MiB, or the page is
        none that a statement may have.
    StorageError
        If the folder holds 100 statements, or cannot be written.
    """
    record = records_of(content, ConfigRecord).get(_RECORD, ConfigRecord())
    page = record.get("page")
    manifest = record.get("manifest")
    if not (isinstance(page, bytes) and isinstance(manifest, bytes)):
        raise ReplyError("the message holds no page and manifest")
    if len(manifest) > MAX_PAGE_BYTES:
        raise ReplyError(f"the manifest has {len(manifest)} bytes; allowed: {MAX_PAGE_BYTES}")
    reason = reason_against_page(page)
    if reason:
        raise ReplyError(reason)
    make_folder(folder)
    remove_leftovers(folder / "statement-*")
    if len(list(folder.glob("statement-*"))) >= MAX_STATEMENTS:
        raise StorageError(f"{folder} holds {MAX_STATEMENTS} statements: move some away")
    target = folder / datetime.now(UTC).strftime("statement-%Y-%m-%d-%H%M%S-%f")
    put_folder(target, {PAGE: page, ENVELOPE: manifest})
    return target / PAGE
