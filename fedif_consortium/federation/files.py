"""Files that a command makes, each said in a line: what is there already stays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import typer

from fedif_flower.storage import (
    make_folder,
    require_private,
    write_atomically,
    write_private,
    writing,
)


def secret(path: Path, purpose: str, make: Callable[[], bytes]) -> None:
    """Make a private key's file, for its owner alone, unless there is one."""
    if path.exists():
        require_private(path, "the key")
        typer.echo(f"kept {path}")
    else:
        write_private(path, make())
        typer.echo(f"made {path}, secret: {purpose}")


def new(path: Path, purpose: str, make: Callable[[], bytes | str]) -> None:
    """Write a file unless there is one."""
    if path.exists():
        typer.echo(f"kept {path}")
    else:
        replace(path, purpose, make())


def replace(path: Path, purpose: str, content: bytes | str) -> None:
    """Write a file that may be there with other content."""
    data = content.encode() if isinstance(content, str) else content
    if path.is_file() and path.read_bytes() == data:
        typer.echo(f"kept {path}")
    else:
        make_folder(path.parent)
        write_atomically(path, data, 0o644)
        typer.echo(f"wrote {path}: {purpose}")


def private_folder(path: Path) -> None:
    """Make a folder that is its owner's alone, unless there is one."""
    with writing(path):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
