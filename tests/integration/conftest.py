"""A user's shell, in which ``flwr run`` starts what it starts."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.deployed import free_port, search_path
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


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A user's shell with a home of its own; what it started must end."""
    home = tmp_path / "home"
    home.mkdir()
    ours = {k: v for k, v in os.environ.items() if not k.startswith(("FLWR_", "XDG_", "RAY_"))}
    ours.pop("PYTHONPATH", None)
    marked = Shell(
        {
            **ours,
            "PATH": search_path(),
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
