"""Small TOML files that an operator or a member edits by hand."""

from __future__ import annotations

import re

import pytest

from fedif_consortium.federation.files import read_document
from fedif_flower.errors import ConfigError
from fedif_flower.settings import Settings, setting


class _Own(Settings):
    name: str = setting("", "A name.")
    most_rounds: int = setting(0, "Rounds.", ge=0)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x = 1", "unknown key 'x'; known keys: name, most-rounds"),
        ("most_round = 1", "unknown key 'most_round'; did you mean most-rounds?"),
        ("most_rounds = 1\nmost-rounds = 1", "most_rounds and most-rounds are one key; allowed: o"),
        ("most-rounds = -1", "most-rounds = -1; allowed: an integer >= 0"),
    ],
)
def test_a_key_is_named_as_the_file_spells_it(tmp_path, text, reason):
    (path := tmp_path / "own.toml").write_text(text)
    with pytest.raises(ConfigError, match=re.escape(f"{path}: {reason}")):
        read_document(path, _Own)
    path.write_text("most_rounds = 2")
    assert read_document(path, _Own).most_rounds == 2
