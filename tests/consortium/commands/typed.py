"""What a command prints."""

from __future__ import annotations

from typer.testing import CliRunner

from fedif_studies.commands import cli


def call(*words: object, status: int = 0) -> str:
    """Return what ``fedif`` prints when it is given these words; raise what it raises."""
    result = CliRunner().invoke(cli, [*map(str, words)], catch_exceptions=False)
    assert result.exit_code == status, result.output
    return result.output
