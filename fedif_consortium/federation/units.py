"""Units of systemd for the SuperLink, a SuperNode and the keeper of masks, to adapt."""

from __future__ import annotations

import getpass
import ipaddress
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from fedif_consortium.federation.folder import split_address

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
ProtectHome={homes}
ReadWritePaths={folder}
Environment=HOME={folder}
{more}
[Install]
WantedBy=multi-user.target
"""


# The policy decides which apps run. What one could do besides its replies is decided here.
_BOUNDED = """\
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
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
SystemCallArchitectures=native
SystemCallFilter=@system-service
UMask=0077
"""


def superlink_unit(folder: Path) -> str:
    """Return the server's unit: the ServerApp is a child, and gets time to end before the rest."""
    log = "--log-file superlink.log --log-rotation-interval-hours 24 --log-rotation-backup-count 14"
    command = f"{_fedif()} federation superlink --in {_word(folder)} -- {log}"
    return _unit("fedif-superlink", "SuperLink", command, folder, restart=5)


def node_unit(folder: Path, address: str, data: str, policy: str) -> str:
    """Return a member's unit, which bounds what an app can do besides its replies.

    A SuperNode that was killed is let in again once the SuperLink has missed its heartbeats.

    Parameters
    ----------
    folder : Path
        The node's, in which the SuperNode writes; its settings and key are for reading only.
    address : str
        The server's ``host:port``. No connection but to that is allowed, where it is no name.
    data : str
        Folder of its training data, for reading only; empty: not known.
    policy : str
        File with what this host lets apps do; empty: none.
    """
    read_only = [folder / name for name in ("node.toml", "node.key", "ca.crt")]
    read_only += [Path(policy)] if policy else []
    more = f"Environment=XDG_CACHE_HOME={_word(folder / 'cache')}\n"
    if data and _below("/srv", Path(data)) and not any(_below("/srv", p) for p in _own(folder)):
        more += "# Of /srv, its data alone.\nTemporaryFileSystem=/srv\n"
        more += f"BindReadOnlyPaths={_word(Path(data))}\n"
    elif data:
        read_only.append(Path(data))
    more += f"ReadOnlyPaths={' '.join(map(_word, read_only))}\n"
    more += _only_to(split_address(address)[0]) + _BOUNDED
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
        homes="read-only" if any(map(_in_home, _own(folder))) else "true",
        command=command,
        folder=_word(folder),
        restart=restart,
        more=more,
    )


def _only_to(host: str) -> str:
    """Return what allows connections to a host alone; where it has a name only, as a comment."""
    try:
        allowed = str(ipaddress.ip_address(host))
    except ValueError:
        return (
            "# To allow no connection but to the server, put its address into /etc/hosts, since\n"
            "# names that are asked for can carry data, and here:\n"
            f"# IPAddressDeny=any\n# IPAddressAllow=localhost ADDRESS-OF-{host}\n"
        )
    return (
        "# No connection but to the server.\n"
        f"IPAddressDeny=any\nIPAddressAllow=localhost {allowed}\n"
    )


def _own(folder: Path) -> Sequence[Path]:
    """Return what a service needs beside its data: its folder, and the programs."""
    return folder, Path(sysconfig.get_path("scripts"))


def _below(top: str, path: Path) -> bool:
    return path.is_relative_to(top) and path != Path(top)


def _in_home(path: Path) -> bool:
    return path.is_relative_to("/home") or path.is_relative_to("/root")


def _fedif() -> str:
    return _word(Path(sysconfig.get_path("scripts")) / "fedif")


def _word(path: Path) -> str:
    """Return a path as systemd takes it: one word, without its own specifiers."""
    text = str(path).replace("%", "%%").replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"' if " " in text else text
