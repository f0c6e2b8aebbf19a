from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

from flwr.common.config import flatten_dict

from fedif_consortium.member.reference import policy_page
from fedif_consortium.parts import server_parts
from fedif_flower.run.config import RunConfig
from fedif_flower.run.reference import (
    SECTIONS,
    all_sections,
    markdown_tables,
    own_keys,
    update,
)

PROJECT = Path(__file__).parents[2]


def test_flwr_run_s_defaults_and_the_documentation_follow_the_declarations(tmp_path):
    (tmp_path / "docs").mkdir()
    for name in ("pyproject.toml", "docs/configuration.md", "docs/member-policy.md"):
        shutil.copy(PROJECT / name, tmp_path / name)
    changed = update(tmp_path, server_parts(), policy_page())
    assert changed == [], "run `python -m fedif_flower.run.reference`"
    manifest = tomllib.loads((tmp_path / "pyproject.toml").read_text())
    manifest = manifest["tool"]["flwr"]["app"]["config"]
    sections = all_sections(server_parts()).values()
    of_sections = {key: value for section in sections for key, value in section.defaults().items()}
    assert flatten_dict(manifest) == RunConfig.defaults() | of_sections


def test_every_key_is_in_one_section_with_its_words():
    own = [key for section in SECTIONS.values() for key in own_keys(section)]
    assert sorted(own) == sorted(RunConfig.key_names())
    assert all(words != "None" for *_, words in RunConfig.describe())
    tables = markdown_tables(server_parts())
    assert "| `batch-size` | `16` | integer ≥ 1 | B, examples per step;" in tables
    assert "| `masking.mode` | " in tables
