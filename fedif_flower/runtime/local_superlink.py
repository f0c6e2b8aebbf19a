"""A SuperLink in simulation mode for one launch; all of its processes end with it.

``flwr run`` on its own joins whatever SuperLink answers on its port, with that one's packages and
working directory, or starts one that stays. This one has a free loopback port, a temporary
``FLWR_HOME`` and an empty working directory, and shares nothing with others on the machine.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

from fedif_flower.errors import FedIFError
from fedif_flower.runtime.processes import MarkedProcesses

CONNECTION = "launch"
START_TIMEOUT = 60.0


class LaunchError(FedIFError):
    """The run did not complete; the message says why in one line."""


class LocalSuperLink:
    """A context manager: a SuperLink within, no process and no temporary file after it.

    Parameters
    ----------
    log : IO[bytes]
        File, open for writing and reading, that receives what Flower and the app print.
    check_stop : Callable[[], None]
        Called while waiting; raises to end the wait.
    """

    def __init__(self, log: IO[bytes], check_stop: Callable[[], None]) -> None:
        self._log = log
        self._check_stop = check_stop
        self._home = Path(tempfile.mkdtemp(prefix="fedif-"))
        # Ray's workers import from the working directory first: empty, it leaves the app bundle.
        self._cwd = self._home / "empty"
        self._cwd.mkdir()
        self.processes = MarkedProcesses(_environment(self._home))

    def __enter__(self) -> LocalSuperLink:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        # The ServerApp before its clients: their end would count as failures in its round.
        left = self.processes.terminate(first="flwr-simulation")
        shutil.rmtree(self._home, ignore_errors=True)
        if left:
            raise LaunchError(f"processes {left} could not be ended")

    def submit(
        self, app_dir: Path, run_config: Mapping[str, object], federation: Mapping[str, object]
    ) -> subprocess.Popen[bytes]:
        """Start ``flwr run --stream``; it ends with the run, its exit status says little.

        Parameters
        ----------
        app_dir : Path
            The app's source tree.
        run_config, federation : Mapping[str, object]
            Overrides, for ``--run-config`` and ``--federation-config``.

        Returns
        -------
        subprocess.Popen[bytes]
            The CLI's process.
        """
        # A file, because the CLI splits its argument's strings by a simple pattern.
        path = self._home / "run-config.toml"
        path.write_text(_toml(run_config), encoding="utf-8")
        options = " ".join(f"{key}={value}" for key, value in federation.items())
        return self.processes.start(
            self._command(
                *("flwr", "run", str(app_dir), CONNECTION, "--stream"),
                *("--run-config", str(path), "--federation-config", options),
            ),
            cwd=self._cwd,
            output=self._log,
        )

    def check(self) -> None:
        """Raise if the SuperLink has died or the launch was asked to stop."""
        self._check_stop()
        if self._superlink.poll() is not None:
            raise LaunchError(f"Flower's SuperLink ended: {self.last_words()}")

    def outcome(self) -> tuple[str, str]:
        """Wait until the one submitted run has finished; return its status and details."""
        while True:
            self.check()
            listing = subprocess.run(
                self._command("flwr", "list", CONNECTION, "--format", "json"),
                cwd=self._cwd,
                env=self.processes.environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
            )
            with contextlib.suppress(ValueError, LookupError):
                run = json.loads(listing.stdout)["runs"][0]
                if run["status"].startswith("finished"):
                    return run["status"], run["status-details"]

    def printed(self) -> str:
        """Return all that Flower and the app have printed so far."""
        # Read by descriptor: neither the path nor the writers' position matters.
        descriptor = self._log.fileno()
        content = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
        return content.decode(encoding="utf-8", errors="replace")

    def last_words(self) -> str:
        """Return the last error that Flower's CLI printed in a frame, else the last line."""
        text = self.printed()
        framed = re.findall(r"^╭[^\n]*\n(.*?)^╰", text, re.DOTALL | re.MULTILINE)
        if framed:
            return " ".join(framed[-1].replace("│", " ").split())
        lines = text.strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def _start(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        (self._home / "config.toml").write_text(
            f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
            f'address = "127.0.0.1:{port}"\ninsecure = true\n'
        )
        self._superlink = self.processes.start(
            self._command(
                *("flower-superlink", "--insecure", "--simulation"),
                *("--host", "127.0.0.1", "--port", str(port)),
            ),
            cwd=self._cwd,
            output=self._log,
        )
        deadline = time.monotonic() + START_TIMEOUT
        while not _is_healthy(port):
            self.check()
            if time.monotonic() > deadline:
                raise LaunchError(f"Flower's SuperLink did not answer within {START_TIMEOUT:.0f} s")
            time.sleep(0.1)

    def _command(self, name: str, *arguments: str) -> list[str]:
        path = shutil.which(name, path=self.processes.environment["PATH"])
        if path is None:
            raise LaunchError(f"{name!r} not found beside {sys.executable}: is flwr installed?")
        return [path, *arguments]


def _environment(home: Path) -> dict[str, str]:
    scripts = sysconfig.get_path("scripts")
    environment = {
        **os.environ,
        # The SuperLink finds SuperExec, and that one the simulation, by PATH.
        "PATH": os.pathsep.join([scripts, os.environ.get("PATH", os.defpath)]),
        "FLWR_HOME": str(home),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONUNBUFFERED": "1",
    }
    for name in ("NO_PROXY", "no_proxy"):
        environment[name] = ",".join(filter(None, [os.environ.get(name), "127.0.0.1"]))
    # Ray's socket paths, some 70 bytes below this directory, must not exceed 107 (104 on macOS).
    if not os.environ.get("RAY_ADDRESS") and len(str(home)) <= 30:
        environment["RAY_TMPDIR"] = str(home)
    return environment


def _is_healthy(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1.0)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _toml(values: Mapping[str, object]) -> str:
    # JSON writes strings, numbers and booleans as TOML does.
    return "".join(
        f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in values.items()
    )
