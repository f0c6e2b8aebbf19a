"""What a hostile member may run in place of ``flwr-clientapp``: its own answers, from its own node.

The member is real: a registered SuperNode whose host starts this instead of Flower's program. In
every round it answers with the next kind of nonsense.
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

from tests.strategies.hostile import HOSTILE, spoiled_reply, step_reply

SPOOFED = "another node's name"
UNREADABLE = "unreadable object"
RAISED = "exception"
KINDS = (*HOSTILE, SPOOFED, UNREADABLE, RAISED)
VICTIM = "FEDIF_TEST_VICTIM"


def install(folder: Path) -> dict[str, str]:
    """Put this program before Flower's in a search path; return the environment for it."""
    folder.mkdir(parents=True)
    program = folder / "flwr-clientapp"
    repository, scripts = str(Path(__file__).parents[2]), str(Path(sys.executable).parent)
    # The package without its __init__, which imports torch: a member starts a process every round.
    code = f"""
import sys, types
sys.path.insert(0, {repository!r})
sys.modules["fedif_flower"] = package = types.ModuleType("fedif_flower")
package.__path__ = [{repository!r} + "/fedif_flower"]
from {__name__} import main
main()
"""
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c {shlex.quote(code)} "$@"\n')
    program.chmod(0o755)
    return {"PATH": os.pathsep.join([str(folder), scripts, os.environ["PATH"]])}


def kind_for(server_round: int, member: int, num_members: int) -> str:
    """Return the kind of reply that a hostile member sends in a round."""
    return KINDS[((server_round - 1) * num_members + member) % len(KINDS)]


def answer(message: Message, context: Context) -> Message:
    """Be what a ClientApp is."""
    partition_id = int(context.node_config["partition-id"])
    if message.metadata.message_type == "query":
        # An honest answer; members 1, 2 ... are hostile.
        node = ConfigRecord({"partition-id": partition_id, "attack": "label-noise"})
        return Message(RecordDict({"node": node}), reply_to=message)
    num_members = int(context.node_config["num-partitions"]) - 1
    server_round = int(message.content.config_records["config"]["server-round"])
    kind = kind_for(server_round, partition_id - 1, num_members)
    if kind == RAISED:
        raise RuntimeError("hostile")
    if kind == SPOOFED:
        return _spoofed(step_reply(message, 1e6))
    if kind == UNREADABLE:
        return _unreadable(message)
    return spoiled_reply(message, HOSTILE[kind])


def _spoofed(reply: Message) -> Message:
    """Tell the truth on the envelope, and another node's id in what is signed by nobody."""
    true_id = reply.metadata.src_node_id
    to_proto = run_clientapp.message_to_proto

    def envelope(message: Message) -> object:
        proto = to_proto(message)
        proto.metadata.src_node_id = true_id
        return proto

    run_clientapp.message_to_proto = envelope
    reply.metadata.__dict__["_src_node_id"] = int(os.environ[VICTIM])
    return reply


def _unreadable(message: Message) -> Message:
    class Garbage(MetricRecord):
        def deflate(self) -> bytes:
            return add_header_to_object_body(b"\xff garbage", MetricRecord())

    reply = step_reply(message, 1.0)
    arrays = reply.content.array_records["arrays"]
    content = RecordDict({"arrays": arrays, "metrics": Garbage({"num-examples": 10})})
    return Message(content, reply_to=message)


def main() -> None:
    """Run as ``flwr-clientapp`` does, but with this module's answers."""
    run_clientapp.get_load_client_app_fn = lambda **_: lambda *_: answer
    flwr_clientapp()
