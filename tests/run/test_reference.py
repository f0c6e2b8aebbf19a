from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

from flwr.common.config import flatten_dict

from fedif_consortium.member.reference import policy_page
from fedif_consortium.parts import server_parts
from fedif_flower.run.config import RunConfig
from fedif_flower.run.reference import update

PROJECT = Path(__file__).parents[2]


def test_flwr_run_s_defaults_and_the_documentation_follow_the_declarations(tmp_path):
    (tmp_path / "docs").mkdir()
    for name in ("pyproject.toml", "docs/configuration.md", "docs/member-policy.md"):
        shutil.copy(PROJECT / name, tmp_path / name)
    changed = update(tmp_path, server_parts(), policy_page())
    stale = [str(path.relative_to(tmp_path)) for path in changed]
    assert stale == [], "`python -m fedif_consortium.member.reference` writes them"
    tool = tomllib.loads((tmp_path / "pyproject.toml").read_text())["tool"]
    assert flatten_dict(tool["flwr"]["app"]["config"]).items() >= RunConfig.defaults().items()
