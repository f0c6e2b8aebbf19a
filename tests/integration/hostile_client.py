"""What a hostile member may run in place of ``flwr-clientapp``: its own answers, from its own node.

The member is real: a registered SuperNode whose host starts this instead of Flower's program. In
every round it answers with the next of its kinds of nonsense.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Sequence
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
HONEST = "the model as it came"
VICTIM, OWN_KINDS = "FEDIF_TEST_VICTIM", "FEDIF_TEST_KINDS"


def install(folder: Path, path: str, victim: int, kinds: Sequence[str]) -> dict[str, str]:
    """Put this program before Flower's in a search path; return the environment for it.

    As long as there is a file ``honest`` in the folder, it is Flower's after all.

    Parameters
    ----------
    folder : Path
        A new one.
    path : str
        The rest of the search path.
    victim : int
        The node in whose name it answers.
    kinds : sequence of str
        What it answers in round 1, 2 ..., and then again from the beginning.
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
    return {
        "PATH": os.pathsep.join([str(folder), path]),
        VICTIM: str(victim),
        OWN_KINDS: json.dumps(kinds),
    }


def answer(message: Message, context: Context) -> Message:
    """Be what a ClientApp is."""
    partition_id = int(context.node_config["partition-id"])
    if message.metadata.message_type == "query":
        node = ConfigRecord({"partition-id": partition_id, "attack": "label-noise"})
        return Message(RecordDict({"node": node}), reply_to=message)
    kinds = json.loads(os.environ[OWN_KINDS])
    server_round = int(message.content.config_records["config"]["server-round"])
    kind = kinds[(server_round - 1) % len(kinds)]
    if kind == HONEST:
        return step_reply(message, 0.0)
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
