"""Units of systemd for the SuperLink, a SuperNode and the keeper of masks, to adapt."""

from __future__ import annotations

import getpass
import ipaddress
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


# The policy decides which apps run; what one could do besides its replies is decided here.
_SANDBOX = """\
# With a GPU: false, and DeviceAllow= for it.
PrivateDevices=true
ProtectProc=invisible
ProtectControlGroups=true
ProtectKernelLogs=true
ProtectKernelModules=true
ProtectKernelTunables=true
CapabilityBoundingSet=
LockPersonality=true
RestrictNamespaces=true
RestrictSUIDSGID=true
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
SystemCallArchitectures=native
SystemCallFilter=@system-service
UMask=0077
"""


def superlink_unit(folder: Path) -> str:
    """Return the server's unit: the ServerApp is a child, and gets time to end before the rest."""
    log = "--log-file superlink.log --log-rotation-interval-hours 24 --log-rotation-backup-count 14"
    command = f"{_fedif()} federation superlink --in {_word(folder)} -- {log}"
    return _unit("fedif-superlink", "SuperLink", command, folder, restart=5)


def node_unit(folder: Path, data: str, server: str = "") -> str:
    """Return a member's unit.

    A SuperNode that was killed is let in again once the SuperLink has missed its heartbeats.

    Parameters
    ----------
    folder : Path
        Of the node.
    data : str
        Folder of its training data, for reading only; empty: none.
    server : str
        The server's host, to which alone a guarded node connects; empty: it is not guarded.
    """
    more = f"Environment=XDG_CACHE_HOME={_word(folder / 'cache')}\n"
    more += f"ReadOnlyPaths={_word(Path(data))}\n" if data else ""
    if server:
        more += _SANDBOX + _connections(server)
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


def _connections(server: str) -> str:
    """Return the lines that leave no connection but to the server, which needs an address."""
    try:
        ipaddress.ip_address(server)
    except ValueError:
        return (
            "# No connection but to the server: name it by its address, in node.toml too, since\n"
            "# names that are asked for can carry data.\n"
            "#IPAddressDeny=any\n#IPAddressAllow=localhost ADDRESS\n"
        )
    return f"IPAddressDeny=any\nIPAddressAllow=localhost {server}\n"


def _fedif() -> str:
    return _word(Path(sysconfig.get_path("scripts")) / "fedif")


def _word(path: Path) -> str:
    """Return a path as systemd takes it: one word, without its own specifiers."""
    text = str(path).replace("%", "%%").replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"' if " " in text else text
