"""A command line's process: how it is called again."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path


def own_command(*more: str) -> str:
    """Return the command line of this process, with more arguments, as a shell takes it."""
    python, *arguments = sys.orig_argv
    if arguments and os.access(arguments[0], os.X_OK):  # A script that names its interpreter.
        script, *arguments = arguments
        name = Path(script).name
        return shlex.join([name if shutil.which(name) == script else script, *arguments, *more])
    return shlex.join([python, *arguments, *more])
