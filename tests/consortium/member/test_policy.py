from __future__ import annotations

import re
from datetime import date

import pytest

from fedif_consortium.member.outgoing import LeavesSettings
from fedif_consortium.member.policy import read_member_policy
from fedif_consortium.member.run_rules import RunRules
from fedif_flower.errors import ConfigError

NOISE = "[leaves]\nnoise-multiplier = 1.0\nclip-length = 1.0\n"


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "policy.toml"
        path.write_text(text)
        return path

    return write


def test_a_file_is_read_with_its_paths_beside_it(write, tmp_path):
    policy = read_member_policy(
        write(
            "state = '/var/lib/it'\n[apps]\napproved = 'here'\n[runs]\nnames = ['a/b']\n"
            "first-day = 2026-01-31\nmost-rounds-a-day = 3\n[runs.config]\nrate = {most = 0.5}"
        )
    )
    assert str(policy.state) == "/var/lib/it"
    assert policy.apps.approved == tmp_path / "here"
    assert (policy.runs.names, policy.runs.first_day) == (["a/b"], date(2026, 1, 31))
    assert policy.runs.config["rate"].most == 0.5


def test_a_folder_stands_for_its_file_or_for_the_defaults(write, tmp_path):
    default = read_member_policy(tmp_path)
    assert (default.runs, default.leaves) == (RunRules(), LeavesSettings())
    assert default.apps.approved == tmp_path / "approved-apps"
    write("[runs]\nmost-rounds-a-day = 3").rename(tmp_path / "member-policy.toml")
    assert read_member_policy(tmp_path).runs.most_rounds_a_day == 3
    with pytest.raises(ConfigError, match=r"none\.toml"):
        read_member_policy(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("stat = 'x'", "unknown key 'stat'; did you mean state?"),
        ("[app]", "unknown key 'app'; did you mean apps?"),
        ("apps = 3", "apps = 3; allowed: a section, [apps]"),
        ("[apps]\nleast-signers = 0", "[apps] least-signers = 0; allowed: an integer >= 1"),
        ("[runs]\nnames = [3]", "[runs] names = 3; allowed: a list of strings"),
        ("[runs]\nfirst-day = '31.1.'", "[runs] first-day = '31.1.'; allowed: a date, such as"),
        ("[runs]\nconfig = 3", "[runs] config = 3; allowed: for each key a value, a list"),
        ("[runs.config]\nkey = []", "[runs] config = []; allowed: for each key"),
        ("[runs.config]\nkey = {leest = 1}", "[runs] config = {'leest': 1}; allowed"),
        ("[runs.config]\nkey = {most = true}", "[runs] config = {'most': True}; allowed"),
        ("[leaves]\nmetric-digit = 3", "[leaves] unknown key 'metric-digit'; did you mean metric-"),
        ("[leaves]\nmetrics = 'a'", "[leaves] metrics = 'a'; allowed: a list of names"),
        ("[leaves]\narrays = ['a.b']", "[leaves] arrays = 'a.b'; allowed: a list such as"),
        ("[leaves]\narrays = ['a.b nofloat']", "[leaves] arrays = "),
        ("[leaves]\nconfig = ['a.b']", "[leaves] config = 'a.b'; allowed: a list such as"),
        ("[leaves]\nconfig = ['a.b text[*]']", "[leaves] config = "),
        ("[leaves]\nnoise-multiplier = 1.0", "[leaves] clip-length = 0.0; allowed: more than 0"),
        (f"{NOISE}buffers = true", "[leaves] buffers = True; allowed: none with noise"),
    ],
)
def test_an_error_names_the_file_and_the_key(write, text, reason):
    path = write(text)
    with pytest.raises(ConfigError, match=re.escape(f"{path}: {reason}")):
        read_member_policy(path)
