"""What a member's host finds out by itself, before any run asks: for ``fedif node check``."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

from flwr.app import ConfigRecord

from fedif_consortium.evidence.keys import load_key
from fedif_consortium.evidence.member_receipts import SIGNATURES_KEY, TakenReceipts
from fedif_consortium.evidence.part import EvidenceSettings
from fedif_consortium.federation.certificates import SOON, reach, read_certificate
from fedif_consortium.federation.node import NodeFolder
from fedif_consortium.masking.masked_reply import MASKING_KEY, MaskedReplies
from fedif_consortium.masking.part import MaskingSettings
from fedif_consortium.member.policy import read_member_policy
from fedif_consortium.parts import server_parts
from fedif_flower.client.preflight import check_member, tried
from fedif_flower.client.trust import require_trusted
from fedif_flower.errors import FedIFError
from fedif_flower.messages.node_config import NodeConfig
from fedif_flower.messages.preflight import Finding, Status, clock_finding
from fedif_flower.run.config import RunConfig
from fedif_flower.settings import Scalar
from fedif_flower.tasks.config import IMAGES
from fedif_flower.tasks.images import settled, task_of_folder
from fedif_flower.tasks.registry import build_task
from fedif_flower.tasks.task import Task


def check_host(folder: NodeFolder, run_config: Mapping[str, Scalar]) -> list[Finding]:
    """Return what this host finds out by itself, without a run.

    Of images of its own it takes classes and size as they are: only the server's question tells
    whether they fit the others'.

    Parameters
    ----------
    folder : NodeFolder
        The member's.
    run_config : mapping of str to bool, int, float or str
        What the run is to be, beside the defaults.

    Raises
    ------
    ConfigError
        If there is no node, or a key is wrong.
    """
    settings = folder.settings()
    node = NodeConfig.from_node_config(settings.config)
    clients = {} if node.num_partitions is None else {"num-clients": node.num_partitions}
    config = RunConfig.from_run_config({**clients, **run_config}, server_parts())

    def of_host() -> Task:
        require_trusted(config, node)
        if config.task == IMAGES and node.num_partitions is None:
            return task_of_folder(config, str(node.data_dir))
        return build_task(settled(config))

    asked = ConfigRecord({MASKING_KEY: config.section(MaskingSettings).mode})
    asked[SIGNATURES_KEY] = config.section(EvidenceSettings).require_signatures
    found = check_member(config, node, of_host)
    if config.task == IMAGES and "task" not in run_config and not _has_images(node):
        found = [_untried(one) for one in found]
    found += MaskedReplies().checks(node, asked)
    if settings.policy:
        found += [
            tried("app", lambda: _approved(folder.path / settings.policy)),
            tried("signing-key", lambda: _readable(folder.key)),
        ]
    else:
        found += TakenReceipts().checks(node, asked)
    return [*found, *check_server(settings.superlink, folder.authority)]


def _has_images(node: NodeConfig) -> bool:
    """Return whether a node's data are a tree of images, or a part of a set that has a name."""
    return node.num_partitions is not None or (Path(str(node.data_dir)) / "train").is_dir()


def _untried(finding: Finding) -> Finding:
    """Return a finding without a verdict where it is of images that are not the app's data.

    An app with a task of its own reads them in its own way, and says so before round 1.
    """
    if finding.check not in ("data", "training") or finding.status is not Status.FAILED:
        return finding
    words = "not tried: there are no images here; name the app's task, -c task='MODULE:OBJECT'"
    return Finding(finding.check, Status.WARNING, words)


def check_server(address: str, ca: Path) -> list[Finding]:
    """Return what a server's certificate and clock are, as seen from here.

    Parameters
    ----------
    address : str
        ``HOST:PORT`` of the SuperLink.
    ca : Path
        The federation's certificate, which alone is trusted.
    """
    try:
        shown, date = reach(address, ca)
        ahead = datetime.now(UTC) - parsedate_to_datetime(date)
        end = min(c.not_valid_after_utc for c in (shown, read_certificate(ca)))
    except (FedIFError, ValueError) as error:
        return [Finding("certificate", Status.FAILED, str(error))]
    status = Status.WARNING if end < datetime.now(UTC) + SOON else Status.OK
    certificate = Finding("certificate", status, f"valid until {end:%Y-%m-%d}")
    return [certificate, clock_finding(ahead.total_seconds())]


def _readable(key: Path) -> str:
    load_key(key)
    return "readable, by its owner alone"


def _approved(policy: Path) -> str | Finding:
    """Return how many apps a member's policy lets run; a ConfigError if it cannot be read."""
    approved = len(list(read_member_policy(policy).apps.approved.glob("*.fab")))
    words = f"approved apps: {approved}"
    return words if approved else Finding("app", Status.WARNING, words)
