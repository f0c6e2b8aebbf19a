"""Bringing members their pages: at the end of a run, or once a node is there again.

A run's ``undelivered.json`` holds who is still to get which page. Every later run with the same
``output-dir`` tries again.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from fedif_consortium.evidence.receipt_book import last_receipts
from fedif_consortium.statement.bundle import make_statement, parse_budget
from fedif_consortium.statement.delivery_messages import ACTION, delivery, read_receipt
from fedif_consortium.statement.manifest import ACCOUNT, ENVELOPE
from fedif_consortium.statement.settings import StatementSettings
from fedif_consortium.statement.signing import default_key_path, load_or_make_key
from fedif_flower.errors import FedIFError
from fedif_flower.messages.screened_grid import screened
from fedif_flower.run.config import RunConfig
from fedif_flower.run.folder import RunFolder
from fedif_flower.strategies.nodes import is_simulated

# A node starts a process to answer; one that is slower gets its page another time.
TIMEOUT = 60.0
logger = logging.getLogger(__name__)


def state_and_deliver(grid: Grid, config: RunConfig, run_dir: Path) -> None:
    """Make a finished run's statement, and send every node that is online its pages.

    Only where clients are real nodes, and contributions were attributed. Nothing that fails here
    fails the run: the log says what, and pages stay to be delivered.
    """
    if is_simulated(grid):
        return
    run, own = RunFolder(run_dir), config.section(StatementSettings)
    if run.attribution.path.is_file():
        try:
            folder = make_statement(
                *(run_dir, load_or_make_key(default_key_path())),
                budget_cents=parse_budget(own.budget) if own.budget else None,
                contact=own.contact,
                pay_by=own.pay_by or "sum",
                ties=own.ties or "apart",
                again=True,
            )
            run.undelivered.write({str(m["client_id"]): m["page"] for m in _members(folder)})
            logger.info("Statement: %s", folder)
        except FedIFError as error:
            logger.error("the run has no statement: %s", error)
    deliver(grid, run_dir.parent)


def deliver(grid: Grid, output_dir: Path) -> None:
    """Send the nodes that are online every page that they did not get yet, the oldest first."""
    if is_simulated(grid):
        return
    name = RunFolder(output_dir).undelivered.path.name
    waiting = sorted(output_dir.glob(f"*/{name}"), key=lambda path: path.stat().st_mtime_ns)
    silent: set[int] = set()
    for path in waiting:
        try:
            silent |= _deliver_run(screened(grid), RunFolder(path.parent), silent)
        except (FedIFError, OSError, ValueError, KeyError) as error:
            logger.error("%s: statements cannot be delivered: %r", path.parent, error)


def _members(folder: Path) -> list[dict[str, Any]]:
    """Return what a statement says of each member."""
    members: list[dict[str, Any]] = json.loads((folder / ACCOUNT).read_bytes())["members"]
    return members


def _deliver_run(grid: Grid, run: RunFolder, silent: set[int]) -> set[int]:
    """Send one run's pages; return the nodes that did not answer."""
    left = {int(key): name for key, name in run.undelivered.read().items()}
    folder = run.statement
    names = {member["client_id"]: member["name"] for member in _members(folder)}
    envelope = (folder / ENVELOPE).read_bytes()
    online = (set(grid.get_node_ids()) & left.keys()) - silent
    receipts = last_receipts(run, online)
    messages = []
    for node_id in sorted(online):
        content = delivery((folder / left[node_id]).read_bytes(), envelope)
        content.update(receipts[node_id])
        messages.append(Message(content, node_id, f"{MessageType.QUERY}.{ACTION}"))
    answered = set()
    for reply in grid.send_and_receive(messages, timeout=TIMEOUT) if messages else ():
        node_id = reply.metadata.src_node_id
        if node_id not in online or not reply.has_content():
            continue
        answered.add(node_id)
        receipt = read_receipt(reply.content)
        if receipt.kept or not receipt.wanted:
            left.pop(node_id, None)
        if not receipt.kept:
            logger.info("%s did not keep its statement: %s", names.get(node_id), receipt.reason)
    if left:
        run.undelivered.write({str(key): name for key, name in left.items()})
    else:
        run.undelivered.path.unlink()
    return online - answered
