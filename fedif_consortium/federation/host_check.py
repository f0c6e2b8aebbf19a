"""What a member's host finds out by itself, before any run asks: for ``fedif node check``."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from types import MappingProxyType

from flwr.app import ConfigRecord

from fedif_consortium.evidence.keys import load_key
from fedif_consortium.evidence.member_receipts import SIGNATURES_KEY, TakenReceipts
from fedif_consortium.evidence.part import EvidenceSettings
from fedif_consortium.federation.certificates import (
    SOON,
    authority_of,
    reach,
    require_for_supernode,
)
from fedif_consortium.federation.node import NodeFolder
from fedif_consortium.masking.masked_reply import MASKING_KEY, MaskedReplies
from fedif_consortium.member.policy import read_member_policy
from fedif_consortium.parts import server_parts
from fedif_flower.client.preflight import check_member, tried
from fedif_flower.client.trust import require_trusted
from fedif_flower.errors import FedIFError
from fedif_flower.messages.node_config import NodeConfig
from fedif_flower.messages.preflight import Finding, Status, clock_finding, seconds_ahead
from fedif_flower.run.config import RunConfig
from fedif_flower.runtime.supernode import MOST_AHEAD, MOST_BEHIND
from fedif_flower.settings import Scalar
from fedif_flower.tasks.config import IMAGES
from fedif_flower.tasks.images import settled, task_of_folder
from fedif_flower.tasks.registry import build_task
from fedif_flower.tasks.task import Task

# Where the keeper is, and how the server shows who it is, are no part of a member's host.
_SOME_KEEPER: Mapping[str, Scalar] = MappingProxyType(
    {
        "masking.keeper-url": "https://keeper.example",
        "masking.keeper-certificate": "keeper.crt",
        "masking.client-certificate": "keeper-client.crt",
        "masking.client-key": "keeper-client.key",
    }
)


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
    run_values = dict(run_config)
    if node.num_partitions is not None:
        run_values.setdefault("num-clients", node.num_partitions)
    masking_mode = _masking_mode(node, run_config)
    if masking_mode == "keeper":
        run_values = {**_SOME_KEEPER, **run_values, "masking.mode": "keeper"}
    config = RunConfig.from_run_config(run_values, server_parts())

    def build_host_task() -> Task:
        require_trusted(config, node)
        if config.task == IMAGES and node.num_partitions is None:
            return task_of_folder(config, str(node.data_dir))
        return build_task(settled(config))

    findings = check_member(config, node, build_host_task)
    if config.task == IMAGES and "task" not in run_config and not _has_images(node):
        findings = [_untried(finding) for finding in findings]
    # What a run with this config would tell the node.
    instructions = ConfigRecord(
        {
            MASKING_KEY: masking_mode,
            SIGNATURES_KEY: config.section(EvidenceSettings).require_signatures,
        }
    )
    findings += MaskedReplies().checks(node, instructions)
    if settings.policy:
        findings.append(tried("app", lambda: _approved(folder.path / settings.policy)))
        findings.append(tried("signing-key", lambda: _readable(folder.key)))
    else:
        findings += TakenReceipts().checks(node, instructions)
    findings += check_server(settings.superlink, folder.authority)
    return findings


def _masking_mode(node: NodeConfig, run_config: Mapping[str, Scalar]) -> str:
    """Return a run's ``masking.mode``; where it is left open, the one that the node wants."""
    wanted = "off" if node.keeper_key is None else "keeper"
    return str(run_config.get("masking.mode", wanted))


def _has_images(node: NodeConfig) -> bool:
    """Return whether a node's data are a tree of images, or a part of a set that has a name."""
    return node.num_partitions is not None or (Path(str(node.data_dir)) / "train").is_dir()


def _untried(finding: Finding) -> Finding:
    """Return a finding without a verdict where it failed for want of images.

    An app with a task of its own reads its data in its own way, and says so before round 1.
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
        require_for_supernode(ca)
        asked_at = time.time()
        certificate, date = reach(address, ca)
        came_at = time.time()
        told = parsedate_to_datetime(date).timestamp()  # Without fractions of a second.
        authority = authority_of(certificate, ca)
        end = min(certificate.not_valid_after_utc, authority.not_valid_after_utc)
    except (FedIFError, ValueError) as error:
        return [Finding("certificate", Status.FAILED, str(error))]
    status = Status.WARNING if end < datetime.now(UTC) + SOON else Status.OK
    validity = Finding("certificate", status, f"valid until {end:%Y-%m-%d}")
    ahead = seconds_ahead((asked_at, came_at), (told, told + 1.0))
    return [validity, _clock_of_member(ahead)]


def _clock_of_member(seconds: float) -> Finding:
    """Return what to say of this host's clock; Flower lets nobody in whose clock is far off."""
    finding = clock_finding(seconds)
    if seconds >= MOST_AHEAD:
        limit = f"{MOST_AHEAD} s ahead"
    elif -seconds >= MOST_BEHIND:
        limit = f"{MOST_BEHIND} s behind"
    else:
        return finding
    words = f"{finding.words}, which lets in no member that is {limit}"
    return Finding(finding.check, Status.FAILED, words)


def _readable(key: Path) -> str:
    """Return that a key can be read; a ConfigError if it cannot."""
    load_key(key)
    return "readable, by its owner alone"


def _approved(policy: Path) -> str | Finding:
    """Return how many apps a member's policy lets run; a ConfigError if it cannot be read."""
    count = len(read_member_policy(policy).apps.digests())
    words = f"approved apps: {count}"
    if count == 0:
        return Finding("app", Status.WARNING, words)
    return words
