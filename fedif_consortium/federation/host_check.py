"""What a member's host finds out by itself, before any run asks: for ``fedif node check``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path

from flwr.app import ConfigRecord

from fedif_consortium.evidence.client_part import SIGNATURES_KEY, TakenReceipts
from fedif_consortium.evidence.keys import read_key_file
from fedif_consortium.federation.certificates import Reached, read_certificate, shake_hands
from fedif_consortium.masking.client_part import MASKING_KEY, MaskedReplies
from fedif_consortium.member.policy import read_member_policy
from fedif_flower.client.preflight import check_member, tried
from fedif_flower.client.trust import require_trusted
from fedif_flower.errors import ConfigError
from fedif_flower.messages.client_config import ClientConfig
from fedif_flower.messages.node_config import NodeConfig
from fedif_flower.messages.preflight import Finding, Status, clock_finding
from fedif_flower.storage import require_private
from fedif_flower.tasks.config import IMAGES
from fedif_flower.tasks.images import settled, task_of_folder
from fedif_flower.tasks.registry import build_task
from fedif_flower.tasks.task import Task

SOON = timedelta(days=30)  # A certificate that ends by then is told.


def own_findings(config: ClientConfig, node: NodeConfig, masking: str) -> list[Finding]:
    """Return what this host finds out by itself, without a server.

    Of images of its own it takes classes and size as they are: only the server's question tells
    whether they fit the others'.
    """

    def of_host() -> Task:
        require_trusted(config, node)
        if config.task == IMAGES and node.num_partitions is None:
            return task_of_folder(config, str(node.data_dir))
        return build_task(settled(config))

    found = check_member(config, node, of_host)
    return [*found, *MaskedReplies().checks(node, ConfigRecord({MASKING_KEY: masking}))]


def guard_findings(
    policy: Path | None, key: Path | None, node: NodeConfig, *, required: bool
) -> list[Finding]:
    """Return which apps run at a member, and whether what leaves it is signed.

    Parameters
    ----------
    policy : Path, optional
        The member's; ``None``: it has no guard.
    key : Path, optional
        With which the SuperNode logs in, and the guard signs; ``None``: it is not known here.
    node : NodeConfig
        The member's.
    required : bool
        Whether the run takes signed replies alone.
    """
    if policy is None:
        return list(TakenReceipts().checks(node, ConfigRecord({SIGNATURES_KEY: required})))
    found = [tried("app", lambda: check_policy(policy))]
    return found if key is None else [*found, tried("signing-key", lambda: check_key(key))]


def check_key(path: Path) -> str | Finding:
    """Return whether the key that the guard signs with can be read.

    Raises
    ------
    ConfigError
        If it is no private key.
    """
    read_key_file(path, "key")
    try:
        require_private(path, "key")
    except ConfigError as error:
        return Finding("signing-key", Status.WARNING, str(error))
    return "readable, by its owner alone"


def check_policy(path: Path) -> str | Finding:
    """Return which apps a member's policy lets run.

    Raises
    ------
    ConfigError
        If the policy cannot be read, naming the key.
    """
    approved = len(list(read_member_policy(path).apps.approved.glob("*.fab")))
    words = f"approved apps: {approved}"
    return words if approved else Finding("app", Status.WARNING, words)


def check_server(address: str, ca: Path) -> list[Finding]:
    """Return what a server's certificate and clock are, as seen from here.

    Parameters
    ----------
    address : str
        ``HOST:PORT`` of the SuperLink.
    ca : Path
        The federation's certificate, which alone is trusted.
    """
    seen: list[Reached] = []

    def certificate() -> str | Finding:
        seen.append(shake_hands(address, ca))
        end = min(c.not_valid_after_utc for c in (seen[0].certificate, read_certificate(ca)))
        status = Status.WARNING if end < datetime.now(UTC) + SOON else Status.OK
        return Finding("certificate", status, f"valid until {end:%Y-%m-%d}")

    def clock() -> str | Finding:
        try:
            ahead = datetime.now(UTC) - parsedate_to_datetime(seen[0].date)
        except (ValueError, IndexError):
            return Finding("clock", Status.WARNING, "the server told no time")
        return clock_finding(ahead.total_seconds())

    return [tried("certificate", certificate), tried("clock", clock)]
