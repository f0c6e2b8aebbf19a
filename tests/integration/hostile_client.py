"""What a hostile member may run in place of ``flwr-clientapp``: its own answers, from its own node.

The member is real: a registered SuperNode whose host starts this instead of Flower's program. In
every round it answers with the next of its kinds of nonsense.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import add_header_to_object_body
from flwr.supernode.cli.flwr_clientapp import flwr_clientapp
from flwr.supernode.runtime import run_clientapp

from tests.strategies.hostile import step_reply

# What is said of its answers in round 1 and 2; in round 3 it sends the model as it came.
NONSENSE = ("cannot be read", "hostile")


def install(folder: Path, path: str) -> dict[str, str]:
    """Put this program before Flower's in a search path; return the environment for it.

    As long as there is a file ``honest`` in the folder, it is Flower's after all.

    Parameters
    ----------
    folder : Path
        A new one.
    path : str
        The rest of the search path.
    """
    folder.mkdir(parents=True)
    program = folder / "flwr-clientapp"
    repository = str(Path(__file__).parents[2])
    # The package without its __init__, which imports torch: a member starts a process every round.
    code = f"""
import sys, types
sys.path.insert(0, {repository!r})
sys.modules["fedif_flower"] = package = types.ModuleType("fedif_flower")
package.__path__ = [{repository!r} + "/fedif_flower"]
from {__name__} import main
main()
"""
    program.write_text(
        f'#!/bin/sh\n[ -e {folder}/honest ] && PATH={path} && exec flwr-clientapp "$@"\n'
        f'exec {sys.executable} -c {shlex.quote(code)} "$@"\n'
    )
    program.chmod(0o755)
    return {"PATH": os.pathsep.join([str(folder), path])}


class Garbage(MetricRecord):
    def deflate(self) -> bytes:
        return add_header_to_object_body(b"\xff garbage", MetricRecord())


def answer(message: Message, context: Context) -> Message:
    """Be what a ClientApp is."""
    if message.metadata.message_type == "query":
        partition_id = int(context.node_config["partition-id"])
        node = ConfigRecord({"partition-id": partition_id, "attack": "label-noise"})
        return Message(RecordDict({"node": node}), reply_to=message)
    server_round = int(message.content.config_records["config"]["server-round"])
    if server_round == 2:
        raise RuntimeError("hostile")
    reply = step_reply(message, 0.0)
    if server_round == 1:
        reply.content["metrics"] = Garbage({"num-examples": 10})
    return reply


def main() -> None:
    """Run as ``flwr-clientapp`` does, but with this module's answers."""
    run_clientapp.get_load_client_app_fn = lambda **_: lambda *_: answer
    flwr_clientapp()
