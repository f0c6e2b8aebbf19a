from __future__ import annotations

from pathlib import Path

import pytest

# What they import, transformers and peft, takes each process longer than a hundred tests.
HEAVY = ("test_help_desk.py", "test_language_model.py")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the language model's tests, all marked ``all``, unread where they are not wanted."""
    wanted = "not all" not in config.option.markexpr
    return None if wanted or collection_path.name not in HEAVY else True
