"""How Flower's programs are started: a command, its environment, its folder."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from fedif_consortium.federation.flower import flower_environment
from fedif_flower.errors import ConfigError

PROJECT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Program:
    """A program that takes this process's place.

    Parameters
    ----------
    arguments : sequence of str
        Its name, and what it is given.
    environment : mapping of str to str
        All of its environment.
    folder : Path
        Where it works: relative paths in its options are below this.
    """

    arguments: Sequence[str]
    environment: Mapping[str, str]
    folder: Path

    def start(self) -> NoReturn:
        """Become the program; what it writes is for its owner alone.

        Raises
        ------
        ConfigError
            If it is not there, or its folder is not.
        """
        found = shutil.which(self.arguments[0], path=self.environment["PATH"])
        if found is None:
            raise ConfigError(
                f"{self.arguments[0]!r} is not there: install fedif-flower in this environment"
            )
        try:
            os.chdir(self.folder)
            os.umask(0o077)
            sys.stdout.flush()
            os.execve(found, list(self.arguments), dict(self.environment))
        except OSError as error:
            raise ConfigError(f"{self.folder}: {error.strerror}") from error


def module_program(
    module: str, options: Sequence[str], folder: Path, more: Mapping[str, str] | None = None
) -> Program:
    """Return a module of this package that runs one of Flower's programs."""
    environment = {**flower_environment(os.environ), **(more or {})}
    # From a checkout that is not installed, too.
    paths = [str(PROJECT), *filter(None, [environment.get("PYTHONPATH")])]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    return Program([sys.executable, "-m", module, *options], environment, folder)
