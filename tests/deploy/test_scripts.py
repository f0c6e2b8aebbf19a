"""The shell scripts, which few checkouts run to their end: what they import of ours is there."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

DEPLOY = Path(__file__).parents[2] / "deploy"


def imports() -> list[tuple[str, str]]:
    """Return each of our modules that a script imports from, with the name."""
    found = []
    for script in DEPLOY.rglob("*.sh"):
        for module, names in re.findall(
            r"^\s*from (fedif_\S+) import (.+)$", script.read_text(), re.M
        ):
            found += [(module, name) for name in names.split(", ")]
    return found


def test_what_scripts_import_is_there():
    assert imports()
    missing = [
        f"{module}.{name}"
        for module, name in imports()
        if not hasattr(importlib.import_module(module), name)
    ]
    assert not missing
