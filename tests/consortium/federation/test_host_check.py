from __future__ import annotations

import re

import pytest

from fedif_consortium.federation import host_check
from fedif_consortium.federation.files import read_document
from fedif_consortium.federation.host_check import check_host
from fedif_consortium.federation.members import invite
from fedif_consortium.federation.node import NodeFolder
from fedif_consortium.federation.records import Invitation
from fedif_flower.errors import ConfigError
from tests.consortium.federation.folders import join_as

KEEPER = "16" * 32
WITH_URL = {"masking.mode": "keeper", "masking.keeper-url": "https://keeper.example.org:9443"}


@pytest.mark.parametrize(
    ("keeper_key", "run_config", "status"),
    [
        (KEEPER, {}, "ok"),
        (KEEPER, {"masking.mode": "keeper"}, "ok"),
        (KEEPER, WITH_URL, "ok"),
        (KEEPER, {"masking.mode": "off"}, "failed"),
        ("", {}, "ok"),
        ("", {"masking.mode": "trial"}, "ok"),
        ("", {"masking.mode": "keeper"}, "failed"),
    ],
)
def test_a_host_is_checked_against_the_masking_that_its_node_wants(
    folder, tmp_path, monkeypatch, keeper_key, run_config, status
):
    monkeypatch.setattr(host_check, "check_member", lambda *_: [])
    monkeypatch.setattr(host_check, "check_server", lambda *_: [])
    invitation = read_document(invite(folder, "hospital-a"), Invitation)
    node = NodeFolder(tmp_path / "node")
    invitation = invitation.replace(keeper_key=keeper_key)
    join_as(node.path, invitation, config={"num-partitions": 8})
    findings = {finding.check: finding for finding in check_host(node, run_config)}
    assert findings["masking"].status == status


def test_a_masking_that_does_not_exist_is_refused(folder, tmp_path):
    invitation = read_document(invite(folder, "hospital-a"), Invitation)
    join_as(tmp_path / "node", invitation, config={"num-partitions": 8})
    with pytest.raises(ConfigError, match=r"masking\.mode = 'none'"):
        check_host(NodeFolder(tmp_path / "node"), {"masking.mode": "none"})


@pytest.mark.parametrize(
    ("run_config", "reason"),
    [
        ({"masking.keper-url": "x"}, "did you mean masking.keeper-url"),
        ({"masking.keeper-url": "http://plain"}, "allowed: a URL that begins with https://"),
        (
            {"attack": "alie", "malicious-fraction": 0.25},
            "no accomplices with masking.mode = 'keeper'",
        ),
    ],
)
def test_with_a_keeper_a_run_is_checked_as_the_server_would(folder, tmp_path, run_config, reason):
    invitation = read_document(invite(folder, "hospital-a"), Invitation).replace(keeper_key=KEEPER)
    join_as(tmp_path / "node", invitation, config={"num-partitions": 8})
    with pytest.raises(ConfigError, match=re.escape(reason)):
        check_host(NodeFolder(tmp_path / "node"), run_config)
