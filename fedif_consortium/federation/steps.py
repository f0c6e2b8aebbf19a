"""What a command does to files, said line by line; a dry run says it and does nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedif_flower.storage import (
    make_folder,
    require_private,
    sync_directory,
    write_atomically,
    write_private,
    writing,
)


class Steps:
    """Does one thing after another, and says each.

    Parameters
    ----------
    say : callable
        Takes a line for the user.
    dry_run : bool
        Say what would be done, and do nothing.
    """

    def __init__(self, say: Callable[[str], None], *, dry_run: bool = False) -> None:
        self.say = say
        self.dry_run = dry_run

    def do(self, verb: str, done: str, what: str, act: Callable[[], object]) -> None:
        """Do something: ``verb`` is what it is called before, and ``done`` after it was done."""
        if self.dry_run:
            self.say(f"would {verb} {what}")
        else:
            act()
            self.say(f"{done} {what}")

    def folder(self, path: Path) -> None:
        """Make a folder that is its owner's alone, unless there is one."""

        def act() -> None:
            with writing(path):
                path.mkdir(mode=0o700, parents=True)

        if not path.is_dir():
            self.do("make", "made", f"{path}", act)

    def secret(self, path: Path, purpose: str, make: Callable[[], bytes]) -> None:
        """Make a private key's file, for its owner alone, unless there is one."""
        if path.exists():
            require_private(path, "the key")
            self.say(f"kept {path}")
        else:
            what = f"{path}, secret: {purpose}"
            self.do("make", "made", what, lambda: write_private(path, make()))

    def new(self, path: Path, purpose: str, make: Callable[[], bytes | str]) -> None:
        """Write a file unless there is one."""
        if path.exists():
            self.say(f"kept {path}")
        else:
            self.do("write", "wrote", f"{path}: {purpose}", lambda: _write(path, make()))

    def replace(self, path: Path, purpose: str, content: bytes | str) -> None:
        """Write a file that may be there with other content."""
        data = content.encode() if isinstance(content, str) else content
        if path.is_file() and path.read_bytes() == data:
            self.say(f"kept {path}")
        else:
            self.do("write", "wrote", f"{path}: {purpose}", lambda: _write(path, data))

    def rename(self, path: Path, target: Path) -> None:
        """Give a file another name."""

        def act() -> None:
            with writing(target):
                path.replace(target)
                sync_directory(target.parent)

        self.do("rename", "renamed", f"{path} to {target.name}", act)

    def remove(self, path: Path, why: str) -> None:
        """Remove a file that may be there."""

        def act() -> None:
            with writing(path):
                path.unlink()

        if path.exists():
            self.do("remove", "removed", f"{path}: {why}", act)


def _write(path: Path, content: bytes | str) -> None:
    make_folder(path.parent)
    write_atomically(path, content, 0o644)
