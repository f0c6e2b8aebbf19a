"""The examples of a member's policy and a keeper's have every key, with its default."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from flwr.app import Message, RecordDict

from client_app import app as client_app
from fedif_consortium.masking.keeper_service import KeeperSettings
from fedif_consortium.masking.policy import KeeperPolicy, least_for
from fedif_consortium.member.apps import AppRules
from fedif_consortium.member.outgoing import LeavesSettings, OutgoingPolicy
from fedif_consortium.member.policy import read_member_policy
from fedif_consortium.member.runs import RunRules
from fedif_consortium.parts import server_parts
from fedif_consortium.statement.client_part import ACTION
from fedif_consortium.statement.member_pages import UNWANTED, read_answer
from fedif_flower.run.config import RunConfig
from fedif_flower.runtime.local_grid import LocalGrid

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
MEMBER = (DEPLOY / "member-policy.toml").read_text()


def test_the_keeper_s_example_has_every_default():
    content = tomllib.loads((DEPLOY / "keeper.toml").read_text())
    least = {"least-members": least_for(len(content.pop("members")))}
    assert content.pop("policy") | least == KeeperPolicy().to_mapping()
    assert content == KeeperSettings().to_mapping()


def test_the_member_s_example_has_every_key_and_every_default():
    read_member_policy(DEPLOY / "member-policy.toml")
    content = tomllib.loads(MEMBER)
    for section, settings in (("apps", AppRules), ("runs", RunRules)):
        defaults = {k: v for k, v in settings().to_mapping().items() if v is not None}
        assert content[section] == defaults
        assert all(f"{key} = " in MEMBER or f".{key}]" in MEMBER for key in settings.key_names())
    assert content["leaves"] == {}


def test_the_member_s_example_accepts_values_once_they_are_not_commented_out(tmp_path):
    text = re.sub(r"^# (?=[\w.\"-]+ = )", "", MEMBER, flags=re.M)
    (tmp_path / "policy.toml").write_text(text)
    runs = read_member_policy(tmp_path / "policy.toml").runs
    assert {*runs.config} == {"num-server-rounds", "local-epochs", "strategy", "masking.mode"}
    assert runs.first_day < runs.last_day
    own = [key for part in server_parts() if part.settings for key in part.settings.key_names()]
    assert {*RunConfig.defaults(), *own} >= runs.config.keys()


def test_the_pages_policy_for_masked_rounds_lets_answers_to_statements_leave(tmp_path):
    page = (ROOT / "docs" / "member-policy.md").read_text().split("**Masked rounds**")[1]
    (tmp_path / "policy.toml").write_text(re.split("```(?:toml)?", page)[1])
    leaves = read_member_policy(tmp_path / "policy.toml").leaves
    assert {*leaves.config} > {*LeavesSettings().config}
    grid = LocalGrid(client_app, 1)
    asked = Message(RecordDict(), 1000, f"query.{ACTION}")
    (reply,) = grid.send_and_receive([asked])
    guard = OutgoingPolicy(leaves, None)
    left = guard.limit_reply(asked.content, reply.content, 1, asked.metadata.message_type)
    assert read_answer(left) == UNWANTED
