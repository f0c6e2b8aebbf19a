"""Units of systemd for the SuperLink, a SuperNode and the keeper of masks, to adapt."""

from __future__ import annotations

import getpass
import sysconfig
from pathlib import Path

_UNIT = """\
# Copy to /etc/systemd/system/, look at User= and the paths, then
# `systemctl enable --now {name}`.
[Unit]
Description=Federation: {what}
Wants=network-online.target
After=network-online.target

[Service]
User={user}
ExecStart={command}
WorkingDirectory={folder}
Restart=always
RestartSec={restart}
TimeoutStopSec=60
KillMode=mixed
NoNewPrivileges=true
PrivateTmp=true
ProtectSystem=strict
ProtectHome=read-only
ReadWritePaths={folder}
Environment=HOME={folder}
{more}
[Install]
WantedBy=multi-user.target
"""


def superlink_unit(folder: Path) -> str:
    """Return the server's unit: the ServerApp is a child, and gets time to end before the rest."""
    log = "--log-file superlink.log --log-rotation-interval-hours 24 --log-rotation-backup-count 14"
    command = f"{_fedif()} federation superlink --in {_word(folder)} -- {log}"
    return _unit("fedif-superlink", "SuperLink", command, folder, restart=5)


def node_unit(folder: Path, data: str) -> str:
    """Return a member's unit; ``data``: folder of its training data, for reading only.

    A SuperNode that was killed is let in again once the SuperLink has missed its heartbeats.
    """
    more = f"Environment=XDG_CACHE_HOME={_word(folder / 'cache')}\n"
    more += f"ReadOnlyPaths={_word(Path(data))}\n" if data else ""
    command = f"{_fedif()} node start --in {_word(folder)}"
    return _unit("fedif-node", "SuperNode", command, folder, restart=10, more=more)


def keeper_unit(folder: Path) -> str:
    """Return a keeper's unit: a round that is open goes on after a restart."""
    more = "PrivateDevices=true\nMemorySwapMax=0\nLimitCORE=0\n"
    command = f"{_fedif()} keeper --policy {_word(folder / 'keeper.toml')}"
    return _unit("fedif-keeper", "keeper of masks", command, folder, restart=2, more=more)


def _unit(name: str, what: str, command: str, folder: Path, *, restart: int, more: str = "") -> str:
    return _UNIT.format(
        name=name,
        what=what,
        user=getpass.getuser(),
        command=command,
        folder=_word(folder),
        restart=restart,
        more=more,
    )


def _fedif() -> str:
    return _word(Path(sysconfig.get_path("scripts")) / "fedif")


def _word(path: Path) -> str:
    """Return a path as systemd takes it: one word, without its own specifiers."""
    text = str(path).replace("%", "%%").replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"' if " " in text else text
