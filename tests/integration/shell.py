"""A user's shell with a home of its own, in which ``flwr run`` finds its programs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.integration.deployed import REPOSITORY, free_port, search_path
from tests.integration.watch import MarkedProcesses, if_killed, kill_marked


class Shell(MarkedProcesses):
    """Processes with a home of their own, in an activated environment."""

    def flwr_run(self, app: Path, *options: str) -> str:
        """Run the app in a folder by ``flwr run . --stream``; return what it printed."""
        for _ in range(4):
            result = subprocess.run(
                ["flwr", "run", ".", "--stream", *options],
                cwd=app,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=400,
                check=False,
            )
            printed = result.stdout + result.stderr
            if "start local SuperLink within" not in printed:  # Flower waits for 15 s.
                break
        assert result.returncode == 0, printed[-3000:]
        return printed


@contextmanager
def open_shell(home: Path, path: str | None = None) -> Iterator[Shell]:
    """Yield a shell; what it started must end.

    Parameters
    ----------
    home : Path
        A folder to be made.
    path : str, optional
        Where it looks for programs; default: first in this environment.
    """
    home.mkdir()
    ours = {k: v for k, v in os.environ.items() if not k.startswith(("FLWR_", "XDG_", "RAY_"))}
    ours.pop("PYTHONPATH", None)
    marked = Shell(
        {
            **ours,
            "PATH": path or search_path(),
            "HOME": str(home),
            # As the README says; all of it would be installed again otherwise.
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
            "FLWR_LOCAL_CONTROL_API_PORT": str(free_port()),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "PYTHONUNBUFFERED": "1",
        }
    )
    with if_killed(kill_marked(marked.mark)):
        yield marked
        # The SuperLink that `flwr run` started would stay.
        assert marked.terminate() == []


def clone(folder: Path) -> Path:
    """Copy the files of a clone that Flower reads."""
    folder.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "server_app.py", "client_app.py"):
        shutil.copy(REPOSITORY / name, folder)
    unwanted = shutil.ignore_patterns("__pycache__")
    for package in ("fedif_flower", "fedif_consortium"):
        shutil.copytree(REPOSITORY / package, folder / package, ignore=unwanted)
    return folder
