"""The SuperLink's figures of its federation, for Prometheus.

A run serves figures of its own, but only as long as its process lives. The SuperLink goes on when a
run dies, so an alert on these figures notices that.
"""

from __future__ import annotations

import logging
import math
import shutil
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography.x509 import load_pem_x509_certificate
from flwr.common.constant import Status, SubStatus
from flwr.supercore.constant import NodeStatus

from fedif_flower.errors import ConfigError
from fedif_flower.foreign import refused_as

_UNFINISHED = (Status.PENDING, Status.STARTING, Status.RUNNING)
_REGISTERED = (NodeStatus.REGISTERED, NodeStatus.ONLINE, NodeStatus.OFFLINE)
logger = logging.getLogger(__name__)


def federation_figures(
    state: Callable[[], Any], certificate: Path | None
) -> Mapping[str, Callable[[], float]]:
    """Return a function for each figure, by name; each is called whenever the figures are read.

    Parameters
    ----------
    state : callable
        Returns Flower's link state. The figures are read from its database, so they also show that
        the database answers.
    certificate : Path, optional
        The server's certificate; ``None``: the days until it ends are not among the figures.
    """

    def count_members(*statuses: str) -> float:
        nodes = state().get_node_info(statuses=list(statuses))
        return len(nodes)

    def count_unfinished() -> float:
        runs = state().get_run_info(statuses=list(_UNFINISHED))
        return len(runs)

    def count_failed() -> float:
        finished = state().get_run_info(statuses=[Status.FINISHED])
        return len([run for run in finished if run.status.sub_status == SubStatus.FAILED])

    figures: dict[str, Callable[[], float]] = {
        "members_online": lambda: count_members(NodeStatus.ONLINE),
        "members_registered": lambda: count_members(*_REGISTERED),
        "runs_unfinished": count_unfinished,
        "runs_failed": count_failed,
        "free_bytes": lambda: shutil.disk_usage(Path.cwd()).free,
    }
    if certificate is not None:
        figures["certificate_days"] = _CertificateDays(certificate)
    return figures


class _CertificateDays:
    """The days until a certificate ends; NaN while its file cannot be read.

    An operator who renews the certificate moves its file away for a while. If that raised an error,
    the other figures could not be read meanwhile either.
    """

    def __init__(self, certificate: Path) -> None:
        self._certificate = certificate
        self._is_logged = False

    def __call__(self) -> float:
        """Return the days; of several failures in a row, only the first one is logged."""
        try:
            days = days_left(self._certificate)
        except ConfigError as error:
            if not self._is_logged:
                logger.warning("certificate_days is no number: %s", error)
            self._is_logged = True
            return math.nan
        self._is_logged = False
        return days


def days_left(certificate: Path) -> float:
    """Return how many days are left until a certificate ends; negative: it has ended.

    Raises
    ------
    ConfigError
        If the file cannot be read, or holds no certificate in PEM.
    """
    with refused_as(ConfigError, f"{certificate} is no certificate in PEM"):
        content = load_pem_x509_certificate(certificate.read_bytes())
    left = content.not_valid_after_utc - datetime.now(UTC)
    return left.total_seconds() / 86_400
