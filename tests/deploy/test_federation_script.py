from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from fedif_flower.masking import KeeperPolicy
from fedif_flower.member.app_rules import AppRules
from fedif_flower.member.node_log import LogSettings
from fedif_flower.member.policy import SignRules, read_member_policy
from fedif_flower.member.run_rules import RunRules
from fedif_flower.run.config import default_run_config
from fedif_flower.runtime.keeper_config import KeeperSettings

SCRIPT = Path(__file__).parents[2] / "deploy" / "federation.sh"
pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


@pytest.fixture
def call(tmp_path: Path):
    """Call the script where Flower's programs print what they are called with."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("flower-supernode", "flower-superexec", "python", "flwr"):
        (programs / name).write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
        (programs / name).chmod(0o755)
    (tmp_path / "server.key").touch()

    def run(*arguments: object) -> list[str]:
        result = subprocess.run(
            [SCRIPT, *map(str, arguments)],
            env={"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )
        assert result.returncode in (0, 2), result.stderr
        return result.stdout.splitlines() if result.returncode == 0 else ["usage"]

    return run


def after(words: list[str], option: str) -> str:
    return words[words.index(option) + 1]


def test_a_supernode_s_options_are_handed_to_flower(call):
    given = ("supernode", "fl:9092", "ca.crt", "node.key", "partition-id=0")
    assert after(call(*given), "--port") == "9094"
    assert after(call(*given, 9100), "--port") == "9100"
    options = ("--trusted-entities", "keys.yaml", "--health-server-address", "127.0.0.1:9096")
    for port in ((), (9100,)):
        words = call(*given, *port, *options)
        assert after(words, "--port") == str(*port or ("9094",))
        assert words[-4:] == list(options)
    assert call(*given[:4]) == ["usage"]


def test_a_supernode_with_a_policy_is_the_guarded_one(call, tmp_path):
    given = ("supernode", "fl:9092", "ca.crt", "node.key", "partition-id=0")
    options = ("--trusted-entities", "keys.yaml")
    for port in ((), (9100,)):
        words = call(*given, *port, "--policy", "policy.toml", *options)
        module = "fedif_flower.runtime.guarded_supernode"
        assert words[:3] == ["-m", module, f"{tmp_path}/policy.toml"]
        assert after(words, "--port") == str(*port or ("9094",))
        assert words[-2:] == list(options)
    assert call(*given, "--policy") == ["usage"]


def test_a_superlink_s_options_are_handed_to_flower(call, tmp_path):
    words = call("superlink", tmp_path, "[::1]:9092", "--log-file", "superlink.log")
    assert (after(words, "--host"), after(words, "--port")) == ("::1", "9092")
    assert "--enable-supernode-auth" in words
    assert after(words, "--log-file") == "superlink.log"
    assert call("superlink", tmp_path) == ["usage"]


def test_a_node_is_registered_under_its_key_file_s_name(call):
    words = call("register", "consortium", "keys/hospital-2.pub", "hospital-3.pub")
    assert [words[i + 1] for i, word in enumerate(words) if word == "--name"] == [
        "hospital-2",
        "hospital-3",
    ]
    assert words[:4] == ["supernode", "register", "keys/hospital-2.pub", "consortium"]


def test_a_keeper_s_certificates_are_made_once(call, tmp_path):
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    assert call("keeper-client", tmp_path)[0].startswith(f"{tmp_path}/keeper-client.crt: send it")
    assert "keeper.crt: send it" in call("keeper-certificate", tmp_path, "keeper.org", "::2")[0]
    text = subprocess.run(
        ["openssl", "x509", "-in", tmp_path / "keeper.crt", "-noout", "-ext", "subjectAltName"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "DNS:keeper.org" in text
    assert "IP Address:0:0:0:0:0:0:0:2" in text
    keys = [(tmp_path / f"{name}.key") for name in ("keeper", "keeper-client")]
    assert all(key.stat().st_mode & 0o077 == 0 for key in keys)
    before = [key.read_bytes() for key in keys]
    with pytest.raises(AssertionError, match="exists already; nothing was changed"):
        call("keeper-client", tmp_path)
    assert [key.read_bytes() for key in keys] == before


def test_a_keeper_is_started_with_its_file(call, tmp_path):
    assert call("keeper", tmp_path)[-3:] == ["keeper", "--policy", f"{tmp_path}/keeper.toml"]


def test_the_keeper_s_example_has_every_default():
    content = tomllib.loads((SCRIPT.parent / "keeper.toml").read_text())
    assert len(content.pop("members")) >= KeeperPolicy().least_members
    assert content.pop("policy") == KeeperPolicy().to_mapping()
    assert content == KeeperSettings().to_mapping()


def test_the_member_s_example_has_every_key_and_every_default(tmp_path):
    text = (SCRIPT.parent / "member-policy.toml").read_text()
    (tmp_path / "policy.toml").write_text(text)
    assert read_member_policy(tmp_path / "policy.toml").config == {}
    content = tomllib.loads(text)
    assert content["runs"].pop("config") == {}
    for section, settings in (("apps", AppRules), ("runs", RunRules), ("log", LogSettings)):
        defaults = {
            key: value for key, value in settings().to_mapping().items() if value is not None
        }
        assert content[section] == defaults
        assert all(f"{key} = " in text for key in settings.key_names())
    assert content["sign"] == SignRules().to_mapping()
    assert content["leaves"] == {}


def test_the_example_accepts_values_once_they_are_not_commented_out(tmp_path):
    text = (SCRIPT.parent / "member-policy.toml").read_text()
    (tmp_path / "policy.toml").write_text(re.sub(r"^# (?=[\w-]+ = )", "", text, flags=re.M))
    policy = read_member_policy(tmp_path / "policy.toml")
    assert set(policy.config) == {"num-server-rounds", "local-epochs", "strategy", "masking"}
    assert policy.runs.first_day < policy.runs.last_day
    assert all(key in default_run_config() for key in policy.config)
