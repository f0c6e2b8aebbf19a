from __future__ import annotations

import ast
import shutil
import tomllib
from pathlib import Path

from flwr.common.config import flatten_dict

from fedif_consortium.member.reference import policy_page
from fedif_consortium.parts import server_parts
from fedif_flower.run.config import RunConfig
from fedif_flower.run.reference import update

PROJECT = Path(__file__).parents[2]
DECLARATIONS = ("Setting", "setting", "quiet_setting", "typer.Option")


def test_flwr_run_s_defaults_and_the_documentation_follow_the_declarations(tmp_path):
    (tmp_path / "docs").mkdir()
    for name in ("pyproject.toml", "docs/configuration.md", "docs/member-policy.md"):
        shutil.copy(PROJECT / name, tmp_path / name)
    changed = update(tmp_path, server_parts(), policy_page())
    stale = [str(path.relative_to(tmp_path)) for path in changed]
    assert stale == [], "`python -m fedif_consortium.member.reference` writes them"
    tool = tomllib.loads((tmp_path / "pyproject.toml").read_text())["tool"]
    assert flatten_dict(tool["flwr"]["app"]["config"]).items() >= RunConfig.defaults().items()


def _words_of_settings(path: Path) -> list[str]:
    """Return the texts in a file's declarations of settings and of options."""
    texts = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in DECLARATIONS:
            constants = [part for part in ast.walk(node) if isinstance(part, ast.Constant)]
            texts += [part.value for part in constants if isinstance(part.value, str)]
    return texts


def test_settings_say_how_many_they_mean():
    """``so many`` in a text of a setting means its value: nobody reads it so."""
    texts: dict[str, Path] = {}
    for package in ("fedif_flower", "fedif_consortium"):
        for path in sorted((PROJECT / package).rglob("*.py")):
            texts.update(dict.fromkeys(_words_of_settings(path), path))
    assert len(texts) > 200
    assert [(path.name, text) for text, path in texts.items() if "so many" in text.lower()] == []
