"""A ``flower-supernode`` that says in one sentence why it cannot start, or why it is refused.

Flower 1.41 itself ends a node whose key is not registered with the words "terminated gracefully" or
an exit code, and a node whose port is taken with a traceback.
"""

from __future__ import annotations

import argparse
import logging
import socket
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE

from fedif_flower.errors import ConfigError, FedIFError
from fedif_flower.run.logs import show_logs

# Not __name__, which is __main__ here: only loggers below ``fedif_flower`` are shown.
logger = logging.getLogger("fedif_flower.runtime.supernode")

# A registered node signs the time of each request. A SuperLink refuses a request if that time is
# more seconds ahead of its own clock, or behind it, than this.
MOST_AHEAD = SYSTEM_TIME_TOLERANCE
MOST_BEHIND = TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE

COMMAND = "flwr.supernode.cli.flower_supernode"
_CONNECTION = "flwr.supernode.fleet_http_connection"
_ASK = "Ask the operator to add this member (`fedif federation add-member`)."
NOT_KNOWN = (
    "The SuperLink does not know this node's key: it is not registered there, or is no longer. "
    f"{_ASK} If it is registered, this host's clock may be wrong: `fedif node check` compares the "
    "clocks."
)
NOT_LET_IN = (
    "The SuperLink does not let this node in: its key is not registered there, or is no longer. "
    f"{_ASK} If it is registered, another node uses it; after a crash it counts as online for a "
    "minute."
)


def require_free_port(arguments: Sequence[str]) -> None:
    """Raise ConfigError if a SuperNode cannot listen on the port that it is to use.

    Parameters
    ----------
    arguments : sequence of str
        The command-line arguments of ``flower-supernode``.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=9094)
    options, _ = parser.parse_known_args(arguments)
    host = options.host
    port = options.port
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        socket.create_server((host, port), family=family).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"this node cannot listen on {host}, port {port}: {error}; if another node has it, "
            "give this one another: `port = ...` in its node.toml"
        ) from error


def _reason_of_refusal(call: str, status: int) -> str:
    """Return why the SuperLink refuses a node's key, by the HTTP status of a call; else no text."""
    if status == 401:
        return NOT_KNOWN
    if status == 412 and call == "activate-node":
        return NOT_LET_IN
    return ""


def say_why_it_is_refused() -> None:
    """Let Flower's SuperNode log why the SuperLink refuses its key."""
    module: Any = import_module(_CONNECTION)
    signing: Any = module.NodeAuthHttpInterceptor

    class Telling(signing):  # type: ignore[misc]
        has_told = False  # The reason is logged once, though Flower asks again and again.

        def intercept(self, context: Any, call_next: Any) -> Any:
            """Sign a request, send it, and log the reason if the answer is a refusal."""
            response = super().intercept(context, call_next)
            call = context.request.url.path.split("/")[-1]
            reason = _reason_of_refusal(call, response.status_code)
            if reason and not self.has_told:
                self.has_told = True
                logger.error(reason)
            return response

    module.NodeAuthHttpInterceptor = Telling


def prepare(arguments: Sequence[str]) -> None:
    """Check a SuperNode's port, and let it say why it is refused; to be called before it starts.

    Raises
    ------
    ConfigError
        If the SuperNode cannot listen on its port.
    """
    require_free_port(arguments)
    say_why_it_is_refused()


def main() -> None:
    """Run ``flower-supernode`` with its own arguments."""
    try:
        show_logs()
        prepare(sys.argv[1:])
    except FedIFError as error:
        sys.exit(f"error: {error}")
    import_module(COMMAND).flower_supernode()


if __name__ == "__main__":
    main()
