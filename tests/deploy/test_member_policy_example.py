from __future__ import annotations

import re
import tomllib
from pathlib import Path

from fedif_consortium.member.app_rules import AppRules
from fedif_consortium.member.policy import read_member_policy
from fedif_consortium.member.run_rules import RunRules
from fedif_consortium.parts import server_parts
from fedif_flower.run.config import RunConfig

EXAMPLE = Path(__file__).parents[2] / "deploy" / "member-policy.toml"


def test_the_member_s_example_has_every_key_and_every_default(tmp_path):
    text = EXAMPLE.read_text()
    (tmp_path / "policy.toml").write_text(text)
    read_member_policy(tmp_path / "policy.toml")
    content = tomllib.loads(text)
    for section, settings in (("apps", AppRules), ("runs", RunRules)):
        defaults = {
            key: value for key, value in settings().to_mapping().items() if value is not None
        }
        assert content[section] == defaults
        assert all(f"{key} = " in text or f".{key}]" in text for key in settings.key_names())
    assert content["leaves"] == {}


def test_the_example_accepts_values_once_they_are_not_commented_out(tmp_path):
    text = re.sub(r"^# (?=[\w.\"-]+ = )", "", EXAMPLE.read_text(), flags=re.M)
    (tmp_path / "policy.toml").write_text(text)
    policy = read_member_policy(tmp_path / "policy.toml")
    assert set(policy.runs.config) == {
        "num-server-rounds",
        "local-epochs",
        "strategy",
        "masking.mode",
    }
    assert policy.runs.first_day < policy.runs.last_day
    own = [key for part in server_parts() if part.settings for key in part.settings.key_names()]
    assert {*RunConfig.defaults(), *own} >= policy.runs.config.keys()
