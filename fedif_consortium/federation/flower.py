"""Flower's own command ``flwr``: how it is called, and what it answers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedif_consortium.federation.steps import Steps
from fedif_flower.errors import ConfigError, FedIFError


class FlowerCommandError(FedIFError):
    """``flwr`` did not do what it was asked for; the message is its own."""


def flower_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which Flower's programs are found: this installation's.

    Packages come from here, not from a registry at every run; the app decides nothing of that.
    """
    own, path = sysconfig.get_path("scripts"), environment.get("PATH", "")
    defaults = {
        "FLWR_TELEMETRY_ENABLED": "0",
        # How often a host looks for a task, in seconds: part of every round's length.
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
    }
    fixed = {
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PYTHONUNBUFFERED": "1",
        "PATH": path if own in path.split(os.pathsep) else os.pathsep.join([own, path]),
    }
    return {**defaults, **environment, **fixed}


def connection_file(environment: Mapping[str, str]) -> Path:
    """Return where Flower's commands look connections up."""
    home = environment.get("FLWR_HOME")
    return (Path(home) if home else Path.home() / ".flwr") / "config.toml"


def connect(name: str, address: str, authority: Path, steps: Steps) -> None:
    """Tell Flower's commands about a SuperLink, by a name.

    Raises
    ------
    ConfigError
        If the name is another SuperLink's already.
    """
    path = connection_file(os.environ)
    wanted = {"address": address, "root-certificates": str(authority.absolute())}
    written = path.read_text() if path.exists() else ""
    try:
        known = tomllib.loads(written).get("superlink", {}).get(name)
    except (ValueError, AttributeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    if known is not None and known != wanted:
        raise ConfigError(
            f"{path} has a connection {name!r} to {known.get('address')!r}, not to {address!r}: "
            "remove it there, or choose another name"
        )
    if known is not None:
        steps.say(f"kept connection {name!r} in {path}")
        return
    section = "".join(f"{key} = {json.dumps(value)}\n" for key, value in wanted.items())
    content = f"{written}\n[superlink.{json.dumps(name)}]\n{section}"
    steps.replace(path, f"connection {name!r} to {address}, for Flower's commands", content)


class Flower:
    """``flwr``, with the name of a connection.

    Parameters
    ----------
    connection : str
        One of Flower's ``config.toml``.
    """

    def __init__(self, connection: str) -> None:
        self.connection = connection
        self.environment = flower_environment(os.environ)

    def register(self, public_key: Path, name: str) -> str:
        """Let the node with this key in; return its id."""
        answer = self._call("supernode", "register", public_key, self.connection, "--name", name)
        return str(answer["node-id"])

    def unregister(self, node_id: str) -> None:
        """End a node's registration: its key opens nothing any more."""
        self._call("supernode", "unregister", node_id, self.connection)

    def nodes(self) -> dict[str, dict[str, Any]]:
        """Return what the SuperLink says of every node, by id."""
        found = self._call("supernode", "list", self.connection)["nodes"]
        return {str(node["node-id"]): node for node in found}

    def runs(self, *arguments: object) -> list[dict[str, Any]]:
        """Return what the SuperLink says of its runs, the latest first."""
        return list(self._call("list", self.connection, *arguments)["runs"])

    def submit(self, app: Path, run_config: str) -> int:
        """Begin a run; return its id."""
        given = ["--run-config", run_config] if run_config else []
        return int(self._call("run", app, self.connection, *given)["run-id"])

    def follow(self, run_id: int, shown: int) -> int:
        """Show a run's log while it goes on, and return how many bytes of it were shown by now.

        ``flwr log`` may lose its connection before the run ends, and begins with the first line
        again: what was shown stays unsaid, and so do its complaints. Whether the SuperLink is
        there, :meth:`runs` tells.
        """
        command = self._command("log", str(run_id), self.connection, "--stream")
        told = 0
        with subprocess.Popen(
            command,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as process:
            assert process.stdout is not None
            while piece := os.read(process.stdout.fileno(), 65536):
                new = piece[max(shown - told, 0) :]
                told += len(piece)
                sys.stdout.buffer.write(new)
                sys.stdout.buffer.flush()
        return max(shown, told)

    def _call(self, *arguments: object) -> dict[str, Any]:
        """Return the JSON that a command answers with."""
        command = self._command(*map(str, arguments), "--format", "json")
        done = subprocess.run(
            command,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        try:
            answer = json.loads(done.stdout[done.stdout.index("{") :])
            if done.returncode == 0 and answer.get("success", True):
                return dict(answer)
            reason = answer.get("error-message", "")
        except ValueError:
            reason = ""
        reason = " ".join(str(reason or done.stderr or done.stdout).split())
        words = " ".join(map(str, arguments[:2]))
        raise FlowerCommandError(f"`flwr {words}` failed: {reason or 'it said nothing'}")

    def _command(self, *arguments: str) -> list[str]:
        program = shutil.which("flwr", path=self.environment["PATH"])
        if program is None:
            raise ConfigError("'flwr' is not there: install fedif-flower in this environment")
        return [program, *arguments]
