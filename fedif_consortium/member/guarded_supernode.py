"""``flower-supernode`` within the limits of a member's policy: what runs, when, and what leaves.

Flower 1.41 runs whatever app the server sends, with whatever run config, and sends back whatever
the app replies. Here a *guard* asks the member's policy
(:mod:`~fedif_consortium.member.policy`, ``docs/member-policy.md``) before an app starts and before
a reply leaves (:mod:`~fedif_consortium.member.message_guard`). The guard cannot keep a running app
from reading files that its user may read, or from opening connections. systemd can, see
``deploy/systemd/fedif-node.service``.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from fedif_consortium.evidence.keys import SigningKey, read_key_file
from fedif_consortium.member.message_guard import Connection, MessageGuard
from fedif_consortium.member.own_replies import app_config
from fedif_consortium.member.policy import MemberPolicy, read_member_policy
from fedif_flower.errors import FedIFError
from fedif_flower.run.logs import show_logs
from fedif_flower.runtime.supernode import COMMAND, prepare
from fedif_flower.storage import writing

# With its full name, since this module is run as __main__.
logger = logging.getLogger("fedif_consortium.member.guarded_supernode")

USAGE = """\
usage: python -m fedif_consortium.member.guarded_supernode POLICY ARGUMENT...

Run flower-supernode with its own arguments (flower-supernode --help lists them), in the limits of
a member's policy: a file, or the folder of member-policy.toml, without which the defaults hold.
See docs/member-policy.md."""
APPS = "flower"  # The folder in the policy's state into which Flower unpacks apps.
_LOOP = "flwr.supernode.start_client_internal"


def login_key(arguments: Sequence[str]) -> str:
    """Return the path of the private key with which a SuperNode logs in; empty if it has none.

    ``arguments`` are those of ``flower-supernode``.
    """
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--auth-supernode-private-key", dest="key")
    known_arguments, _ = parser.parse_known_args(arguments)
    if not known_arguments.key:
        return ""
    return str(Path(known_arguments.key).expanduser().absolute())


def install(policy: MemberPolicy, arguments: Sequence[str]) -> None:
    """Put a guard into Flower's SuperNode; replace two of its functions, since it has no hook.

    Parameters
    ----------
    policy : MemberPolicy
        The member's policy.
    arguments : sequence of str
        The arguments of ``flower-supernode``.

    Raises
    ------
    FedIFError
        If the node's log is in use, cannot be written or was changed; the counts of rounds or the
        seen attempts are damaged; noise is set but cannot be added; or the SuperNode's key cannot
        be read.
    """
    command: Any = import_module(COMMAND)
    loop: Any = import_module(_LOOP)
    key_path = login_key(arguments)
    key: SigningKey | None = None
    if key_path:
        key = read_key_file(Path(key_path), "--auth-supernode-private-key")
    guard = MessageGuard(policy, key)
    _use_own_folder(policy.state / APPS)
    start = command.start_client_internal
    connect = loop.http_request_response

    def start_guarded(*, state_factory: Any, node_config: Any, **options: Any) -> None:
        """Start the SuperNode's loop, with a guard in its connections."""
        store = state_factory.objectstore_factory.store()
        node_config = node_config or {}

        @contextmanager
        def connect_guarded(*arguments: Any) -> Iterator[Connection]:
            """Connect as Flower does, and put the guard into the connection."""
            with connect(*arguments) as functions:
                yield guard.guarded(Connection(*functions), store, node_config)

        loop.http_request_response = connect_guarded
        config_of_apps = app_config(node_config, key_path)
        start(state_factory=state_factory, node_config=config_of_apps, **options)

    command.start_client_internal = start_guarded


def _use_own_folder(home: Path) -> None:
    """Let Flower unpack apps into the folder ``home``, which is emptied first.

    Flower names an app's folder by eight digits of the bundle's digest only, and runs what lies
    there. So it could run another app's code that was unpacked there earlier.
    """
    shutil.rmtree(home, ignore_errors=True)
    with writing(home):  # mkdir fails if the folder could not be removed.
        home.mkdir(mode=0o700, parents=True)
    os.environ["FLWR_HOME"] = str(home)


def main() -> None:
    """Run ``flower-supernode`` with its own arguments and a guard."""
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(USAGE)
    try:
        show_logs()
        policy = read_member_policy(Path(sys.argv.pop(1)))
        prepare(sys.argv[1:])
        install(policy, sys.argv[1:])
    except FedIFError as error:
        sys.exit(f"error: {error}")
    logger.info("Guarded by the policy of this member; it writes to %s", policy.state)
    import_module(COMMAND).flower_supernode()


if __name__ == "__main__":
    main()
