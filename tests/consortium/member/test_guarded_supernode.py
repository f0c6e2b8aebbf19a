from __future__ import annotations

import sys
from contextlib import nullcontext
from importlib import import_module
from unittest.mock import Mock

import pytest

from fedif_consortium.federation.records import make_node_key
from fedif_consortium.member.guarded_supernode import install, main
from fedif_consortium.member.policy import read_member_policy
from fedif_flower.errors import ConfigError

COMMAND = import_module("flwr.supernode.cli.flower_supernode")
LOOP = import_module("flwr.supernode.start_client_internal")


@pytest.fixture
def policy(tmp_path):
    return read_member_policy(tmp_path)


def test_flower_s_connection_goes_through_a_guard_which_alone_has_the_key(
    policy, monkeypatch, tmp_path
):
    (tmp_path / "node.key").write_bytes(make_node_key())
    start = Mock()
    monkeypatch.setenv("FLWR_HOME", "")  # put back at the end
    monkeypatch.setattr(COMMAND, "start_client_internal", start)
    monkeypatch.setattr(LOOP, "http_request_response", lambda host: nullcontext((7, *[host] * 7)))
    install(policy, [f"--auth-supernode-private-key={tmp_path / 'node.key'}"])
    own = {"a": 1, "signing-key": "/k", "receipts-dir": "/r"}
    COMMAND.start_client_internal(state_factory=Mock(), node_config=own, isolation="process")
    assert start.call_args.kwargs["isolation"] == "process"
    assert start.call_args.kwargs["node_config"] == {"a": 1}
    with LOOP.http_request_response("host:1") as guarded:
        # The rest is the guard's.
        assert [part for part in guarded if not callable(part)] == [7, "host:1"]


def test_an_app_that_lies_in_flower_s_folder_already_never_runs(policy, monkeypatch, tmp_path):
    # Flower runs what lies under the first eight digits of the digest, which can be made to fit.
    other = tmp_path / "member-state" / "flower" / "apps" / "fedif.app.1.0.01234567" / "app.py"
    other.parent.mkdir(parents=True)
    other.write_text("steal()")
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "shared"))
    monkeypatch.setattr(COMMAND, "start_client_internal", None)
    install(policy, [])
    from flwr.common.config import get_project_dir

    unpacked = get_project_dir("fedif/app", "1.0", "01234567" + 56 * "0")
    assert unpacked == other.parent
    assert not unpacked.exists()


def test_a_key_that_cannot_be_read_ends_it_before_anything_starts(policy, tmp_path):
    with pytest.raises(ConfigError, match=r"--auth-supernode-private-key = .* cannot be read"):
        install(policy, ["--auth-supernode-private-key", str(tmp_path / "none")])


@pytest.mark.parametrize("arguments", [[], ["--insecure"], ["--help"]])
def test_without_a_policy_nothing_starts(monkeypatch, arguments):
    monkeypatch.setattr(sys, "argv", ["guarded_supernode", *arguments])
    with pytest.raises(SystemExit, match=r"usage: .*POLICY ARGUMENT"):
        main()
