"""The limits of the guarded SuperLink: each declared once, set in its environment."""

from __future__ import annotations

from collections.abc import Mapping

import psutil

from fedif_flower.errors import ConfigError
from fedif_flower.settings import Settings, setting

PREFIX = "FEDIF_"
# Besides connections: the database, logs, the ServerApp's pipes, and whoever comes from this host.
SPARE_DESCRIPTORS = 256
LEAST_NODE_CONNECTIONS = 64
UNLIMITED = 1_000_000


class GuardLimits(Settings):
    """What may reach the SuperLink at once, and how fast; :meth:`from_environment` reads them.

    A *stranger* is a connection that has not yet shown a registered node's signature. An *address*
    is an IPv4 address or an IPv6 network of 64 bits.
    """

    reply_budget: float = setting(
        1.0,
        "A reply may weigh this many times the heaviest message of its run. Members that answer a "
        "float32 model in float64 need 2, and masked rounds do.",
        ge=1,
    )
    node_requests: float = setting(
        20.0,
        "Requests a second that every node may send, whatever its run. Where a round takes more "
        "than 100 of them, a node may send a round's requests every 5 seconds.",
        ge=1,
    )
    node_megabytes: float = setting(
        4.0,
        "MiB a second that every node may move, up and down, whatever its run. Where the heaviest "
        "message of a run is larger than 20 MiB, a node may move that every 5 seconds.",
        gt=0,
    )
    node_connections: int = setting(16, "Connections of one node.", ge=4)
    stranger_connections: int = setting(
        128,
        "Connections of strangers, in all. As many again are kept for addresses from which a node "
        "has signed since the SuperLink started. Where there are more, the oldest of the address "
        "that has most is closed.",
        ge=8,
    )
    stranger_handshakes: float = setting(
        50.0, "New connections a second from addresses from which no node has signed yet.", ge=1
    )
    address_connections: int = setting(32, "Connections of strangers from one address.", ge=4)
    address_handshakes: float = setting(10.0, "New connections a second from one address.", ge=1)
    request_seconds: float = setting(
        300.0,
        "A node's request must be whole, and its answer taken, within this many seconds. A "
        "handshake has 5, a stranger's request 10.",
        ge=10,
    )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> GuardLimits:
        """Read ``FEDIF_`` and a limit's name in capitals, such as ``FEDIF_NODE_REQUESTS``.

        Raises
        ------
        ConfigError
            Naming the variable, its value and what is allowed.
        """
        known = {variable(name): name for name in cls.model_fields}
        kinds = {name.split("_")[1] for name in known}
        values: dict[str, int | float | str] = {}
        for name, text in environment.items():
            if name in known:
                values[known[name]] = _number(cls.model_fields[known[name]].annotation, text)
            elif name.startswith(PREFIX) and name.split("_")[1] in kinds:
                raise ConfigError(f"unknown variable {name}; known: {', '.join(known)}")
        try:
            return cls(**values)  # type: ignore[arg-type]
        except ConfigError as error:
            message = str(error)
            for name in values:
                message = message.replace(f"{name} = ", f"{variable(name)} = ")
            raise ConfigError(message) from None

    def most_node_connections(self) -> int:
        """Return how many connections of nodes the limit of open files leaves room for.

        The soft limit is raised to the hard one first.

        Raises
        ------
        ConfigError
            Where that is too few.
        """
        files = _raise_open_files()
        left = files - SPARE_DESCRIPTORS - 2 * self.stranger_connections
        if left < LEAST_NODE_CONNECTIONS:
            least = files - left + LEAST_NODE_CONNECTIONS
            raise ConfigError(
                f"the limit of open files is {files}; allowed: at least {least} with "
                f"{variable('stranger_connections')}={self.stranger_connections} (ulimit -n, or "
                "LimitNOFILE= of the systemd unit)"
            )
        return left


def variable(name: str) -> str:
    """Return the variable of the environment that sets a limit."""
    return PREFIX + name.upper()


def _number(kind: object, text: str) -> int | float | str:
    """Return a number if the text is one; anything else is refused where it is checked."""
    try:
        return int(text) if kind is int else float(text)
    except ValueError:
        return text


def _raise_open_files() -> int:
    """Raise this process's limit of open files as far as it may, and return it."""
    if not hasattr(psutil, "RLIMIT_NOFILE"):  # Linux and FreeBSD alone tell.
        return UNLIMITED
    process = psutil.Process()
    _, most = process.rlimit(psutil.RLIMIT_NOFILE)
    if most == psutil.RLIM_INFINITY:
        return UNLIMITED
    process.rlimit(psutil.RLIMIT_NOFILE, (most, most))
    return most
