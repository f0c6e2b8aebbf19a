"""The checks of ``fedif node check``: whether a member's host could take part in a run."""

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

# Settings that a masked run needs and that a member's host does not know: they are the server's.
_SOME_KEEPER: Mapping[str, Scalar] = MappingProxyType(
    {
        "masking.keeper-url": "https://keeper.example",
        "masking.keeper-certificate": "keeper.crt",
        "masking.client-certificate": "keeper-client.crt",
        "masking.client-key": "keeper-client.key",
    }
)


def check_host(folder: NodeFolder, run_config: Mapping[str, Scalar]) -> list[Finding]:
    """Return the findings of all checks that this host can make without a run.

    The classes and the size of this host's own images are taken as they are. Whether they fit those
    of other members is found only when the server of a run asks.

    Parameters
    ----------
    folder : NodeFolder
        The node's folder.
    run_config : mapping of str to bool, int, float or str
        The settings of the run to check for; other settings have their defaults.

    Raises
    ------
    ConfigError
        If there is no node, or a setting of the node or of the run is wrong.
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
    # The instructions that a run with this config would send to the node.
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
    """Return a run's ``masking.mode``; if the run config lacks it, the mode that the node needs."""
    wanted = "off" if node.keeper_key is None else "keeper"
    return str(run_config.get("masking.mode", wanted))


def _has_images(node: NodeConfig) -> bool:
    """Return whether a node's data are a tree of images, or a part of a shared data set."""
    return node.num_partitions is not None or (Path(str(node.data_dir)) / "train").is_dir()


def _untried(finding: Finding) -> Finding:
    """Return a warning in place of a failed check of data or training, for a node without images.

    An app's own task may read other data, and checks them before round 1.
    """
    if finding.check not in ("data", "training") or finding.status is not Status.FAILED:
        return finding
    words = "not tried: there are no images here; name the app's task, -c task='MODULE:OBJECT'"
    return Finding(finding.check, Status.WARNING, words)


def check_server(address: str, ca: Path) -> list[Finding]:
    """Return findings about the server's certificate, and about this host's clock beside its own.

    Parameters
    ----------
    address : str
        ``HOST:PORT`` of the SuperLink.
    ca : Path
        The certificate of the federation's authority, which alone is trusted.
    """
    try:
        require_for_supernode(ca)
        asked_at = time.time()
        certificate, date = reach(address, ca)
        came_at = time.time()
        server_time = parsedate_to_datetime(date).timestamp()  # The header has whole seconds only.
        authority = authority_of(certificate, ca)
        end = min(certificate.not_valid_after_utc, authority.not_valid_after_utc)
    except (FedIFError, ValueError) as error:
        return [Finding("certificate", Status.FAILED, str(error))]
    status = Status.WARNING if end < datetime.now(UTC) + SOON else Status.OK
    validity = Finding("certificate", status, f"valid until {end:%Y-%m-%d}")
    ahead = seconds_ahead((asked_at, came_at), (server_time, server_time + 1.0))
    return [validity, _clock_of_member(ahead)]


def _clock_of_member(seconds: float) -> Finding:
    """Return a finding about this host's clock, ``seconds`` ahead of the server's.

    It fails if Flower would not let this member in because of its clock.
    """
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
    """Return words that a key can be read by its owner alone; raise ConfigError if not."""
    load_key(key)
    return "readable, by its owner alone"


def _approved(policy: Path) -> str | Finding:
    """Return how many apps a member's policy lets run, in words; a warning if it lets run none.

    Raises
    ------
    ConfigError
        If the policy cannot be read.
    """
    count = len(read_member_policy(policy).apps.digests())
    words = f"approved apps: {count}"
    if count == 0:
        return Finding("app", Status.WARNING, words)
    return words
