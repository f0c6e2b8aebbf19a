"""A deployed run's statement: it is made at the run's end, and delivered to the members.

A run's ``undelivered.json`` says which members have not got their pages yet. Every later run with
the same ``output-dir`` tries again to deliver them. It also delivers statements that the operator
made by hand: for a run that had none, or a second one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from fedif_consortium.evidence.keys import default_key_path, load_or_make_key
from fedif_consortium.evidence.part import last_receipts
from fedif_consortium.statement.bundle import make_by_terms
from fedif_consortium.statement.client_part import ACTION
from fedif_consortium.statement.manifest import ENVELOPE
from fedif_consortium.statement.member_pages import UNWANTED, delivery, read_answer
from fedif_consortium.statement.settings import CLIPPING, TERMS_OF_PAY, StatementSettings
from fedif_consortium.statement.undelivered import of_members, take_off_queue
from fedif_flower.errors import FedIFError, require
from fedif_flower.messages.polling_grid import CONNECTION_ERRORS
from fedif_flower.messages.screened_grid import screened
from fedif_flower.run.config import RunConfig
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.part import NOTHING, Built, RunContext, RunPart
from fedif_flower.sections import section_name
from fedif_flower.server.nodes import is_simulated
from fedif_flower.settings import Scalar
from fedif_flower.strategies.config import default_clipping
from fedif_flower.strategies.influence_descent import InfluenceDescent
from fedif_flower.strategies.registry import STRATEGIES, gives_coefficients, strategy_class

# Seconds to wait for the nodes' answers; each node starts a process to answer. A node that takes
# longer gets its page another time.
TIMEOUT = 60.0
logger = logging.getLogger(__name__)


class Stated(RunPart):
    """Delivers statements: those of earlier runs at a run's start, its own at its end."""

    settings = StatementSettings

    def automatic(self, values: Mapping[str, Scalar]) -> Mapping[str, Scalar]:
        """Return clipping of updates, and relative weights, if the run pays its members.

        Without clipping, one very long update could make a round that cannot be attributed. Without
        relative weights, influence descent gives a longer update more weight, and its sender would
        be credited for both.
        """
        strategy = str(values["strategy"])
        # An unknown strategy is refused later, where the setting is checked.
        if not values.get("statement.budget") or strategy not in STRATEGIES:
            return {}
        if not gives_coefficients(strategy):
            return {}
        bounds: dict[str, Scalar] = {}
        if not default_clipping(strategy):
            bounds["update-clipping"] = CLIPPING
        kind = strategy_class(strategy)
        if kind is not None and issubclass(kind, InfluenceDescent):
            bounds[f"{section_name(strategy)}.relative"] = True
        return bounds

    def fits(self, config: RunConfig) -> None:
        """Raise ConfigError for terms of pay without attribution: there would be no statement."""
        if config.attribution != "off":
            return
        settings = config.section(StatementSettings)
        for key, value in settings.to_mapping().items():
            if key in TERMS_OF_PAY:
                require(not value, key, value, "'' with attribution = 'off'")

    def build(self, run: RunContext) -> Built:
        """Deliver pages of earlier runs to nodes that were away then; add nothing to the run."""
        deliver(run.grid, run.folder.path.parent)
        return NOTHING

    def finished(self, run: RunContext) -> None:
        """Make the statement, and send every node that is online its pages.

        A statement is made only if clients are real nodes, and contributions were attributed. If it
        cannot be made or delivered, the run does not fail for that: the log has the error, and
        pages that were not delivered stay in the queue.
        """
        folder = run.folder
        if folder.attribution.path.is_file() and not is_simulated(run.grid):
            try:
                terms = run.config.section(StatementSettings)
                # It queues the pages of all members: a run of real nodes counts its attempts.
                make_by_terms(folder.path, receipt_key(), terms, again=True)
                logger.info("Statement: %s", folder.statement)
            except FedIFError as error:
                logger.error("the run has no statement: %s", error)
        deliver(run.grid, folder.path.parent)


def receipt_key() -> Ed25519PrivateKey:
    """Return the key that signs members' receipts: the key that signs statements."""
    return load_or_make_key(default_key_path())


def deliver(grid: Grid, output_dir: Path) -> None:
    """Send the nodes that are online every page that they did not get yet, the oldest first.

    Parameters
    ----------
    grid : Grid
        The way to the nodes.
    output_dir : Path
        The folder whose runs' statements are delivered.
    """
    if is_simulated(grid):
        return
    written: dict[Path, int] = {}  # By file of undelivered pages: when it was written.
    for path in output_dir.glob(f"*/{RunFolder(output_dir).undelivered.path.name}"):
        # The file is gone if another run has delivered all its pages meanwhile.
        with suppress(FileNotFoundError):
            written[path] = path.stat().st_mtime_ns
    silent: set[int] = set()  # Nodes that did not answer: they are not asked for a second run.
    for path in sorted(written, key=written.__getitem__):
        try:
            silent |= _deliver_run(screened(grid), RunFolder(path.parent), silent)
        except (FedIFError, *CONNECTION_ERRORS, ValueError, KeyError) as error:
            logger.error("%s: statements cannot be delivered: %r", path.parent, error)


def _deliver_run(grid: Grid, run: RunFolder, silent: set[int]) -> set[int]:
    """Send one run's pages to the nodes that are online, except those in ``silent``.

    Returns
    -------
    set of int
        The nodes that did not answer.
    """
    if not run.statement.is_dir():
        # The run has begun anew since, and its statement is not made yet.
        return set()
    pages = run.undelivered.read()
    names = of_members(run, "name")
    envelope = (run.statement / ENVELOPE).read_bytes()
    waiting = {int(node_id) for node_id in pages}
    recipients = (waiting & set(grid.get_node_ids())) - silent
    answers = _send_pages(grid, run, pages, recipients)
    done = set()
    for node_id, refused in answers.items():
        if refused:
            logger.info("%s did not keep its statement: %s", names.get(str(node_id)), refused)
        if refused in ("", UNWANTED):
            done.add(node_id)
    # If the operator made another statement meanwhile, the queue is about that one, and stays.
    if (run.statement / ENVELOPE).read_bytes() == envelope:
        # The queue is read again: the operator may have erased a member from it meanwhile.
        take_off_queue(run, done)
    return recipients - answers.keys()


def _send_pages(
    grid: Grid, run: RunFolder, pages: Mapping[str, str], recipients: set[int]
) -> dict[int, str]:
    """Send some nodes their pages, and return the answers of those that answered.

    An answer says why the node did not keep its page; it is empty if the node kept it.
    """
    envelope = (run.statement / ENVELOPE).read_bytes()
    messages = []
    for node_id, receipts in last_receipts(run, sorted(recipients)).items():
        page = (run.statement / pages[str(node_id)]).read_bytes()
        content = delivery(page, envelope)
        content.update(receipts)
        messages.append(Message(content, node_id, f"{MessageType.QUERY}.{ACTION}"))
    if not messages:
        return {}
    answers = {}
    for reply in grid.send_and_receive(messages, timeout=TIMEOUT):
        node_id = reply.metadata.src_node_id
        if node_id in recipients and reply.has_content():
            answers[node_id] = read_answer(reply.content)
    return answers
