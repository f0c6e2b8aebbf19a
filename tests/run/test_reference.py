from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

from flwr.common.config import flatten_dict

from fedif_consortium.member.reference import policy_page
from fedif_flower.run.config import RunConfig
from fedif_flower.run.reference import SECTIONS, markdown_tables, own_keys, update

PROJECT = Path(__file__).parents[2]


def test_flwr_run_s_defaults_and_the_documentation_follow_the_declarations(tmp_path):
    (tmp_path / "docs").mkdir()
    for name in ("pyproject.toml", "docs/configuration.md", "docs/member-policy.md"):
        shutil.copy(PROJECT / name, tmp_path / name)
    assert update(tmp_path, policy_page()) == [], "run `python -m fedif_flower.run.reference`"
    manifest = tomllib.loads((tmp_path / "pyproject.toml").read_text())
    manifest = manifest["tool"]["flwr"]["app"]["config"]
    assert flatten_dict(manifest) == RunConfig.defaults()


def test_every_key_is_in_one_section_with_its_words():
    own = [key for section in SECTIONS.values() for key in own_keys(section)]
    assert sorted(own) == sorted(RunConfig.key_names())
    assert all(words != "None" for *_, words in RunConfig.describe())
    assert "| `batch-size` | `16` | an integer ≥ 1 | B, examples per step;" in markdown_tables()
