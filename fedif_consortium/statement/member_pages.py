"""A node keeps the statements that the server sends it: in its own folder, under its own names."""

from __future__ import annotations

import logging
import shutil
from datetime import UTC, datetime
from pathlib import Path

from flwr.app import Context, Message

from fedif_consortium.evidence.member_receipts import take_receipts
from fedif_consortium.statement.delivery_messages import Receipt, read_delivery
from fedif_flower.errors import FedIFError, StorageError
from fedif_flower.messages.node_config import NodeConfig
from fedif_flower.storage import make_folder, temporary_sibling, writing

MAX_STATEMENTS = 100
logger = logging.getLogger(__name__)


def keep_statement(message: Message, context: Context) -> Message:
    """Write this node's page into its ``statement-dir``, and say whether that was done.

    Its last receipts come with it.
    """
    take_receipts(message.content, context)
    return Message(content=_keep(message, context).to_content(), reply_to=message)


def _keep(message: Message, context: Context) -> Receipt:
    node = NodeConfig.from_node_config(context.node_config)
    if not node.statement_dir:
        return Receipt(kept=False, wanted=False, reason="this node has no statement-dir")
    folder = Path(node.statement_dir).expanduser().absolute()
    try:
        kept = write_statement(*read_delivery(message.content), folder)
    except FedIFError as error:
        logger.warning("a statement was not kept: %s", error)
        return Receipt(kept=False, reason=str(error))
    logger.info("a statement for this node: %s", kept)
    return Receipt(kept=True)


def write_statement(page: bytes, manifest: bytes, folder: Path) -> Path:
    """Write a statement into a new folder below ``folder``, and return its page's path.

    The new folder is called after this host's clock. The server chooses no name, and nothing that
    is there is replaced or removed: a folder with 100 statements takes no more.

    Raises
    ------
    StorageError
        If that many are there, or the disk takes no more.
    """
    make_folder(folder)
    if len(list(folder.glob("statement-*"))) >= MAX_STATEMENTS:
        raise StorageError(f"{folder} holds {MAX_STATEMENTS} statements: move some away")
    target = folder / datetime.now(UTC).strftime("statement-%Y-%m-%d-%H%M%S-%f")
    fresh = temporary_sibling(target)
    try:
        with writing(target):
            fresh.mkdir()
            (fresh / "statement.html").write_bytes(page)
            (fresh / "manifest.intoto.json").write_bytes(manifest)
            fresh.rename(target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return target / "statement.html"
