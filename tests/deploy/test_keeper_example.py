from __future__ import annotations

import tomllib
from pathlib import Path

from fedif_consortium.masking.keeper_service import KeeperSettings
from fedif_consortium.masking.policy import KeeperPolicy

EXAMPLE = Path(__file__).parents[2] / "deploy" / "keeper.toml"


def test_the_keeper_s_example_has_every_default():
    content = tomllib.loads(EXAMPLE.read_text())
    assert len(content.pop("members")) >= KeeperPolicy().least_members
    assert content.pop("policy") == KeeperPolicy().to_mapping()
    assert content == KeeperSettings().to_mapping()
