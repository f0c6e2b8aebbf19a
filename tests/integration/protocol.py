"""A registered member that speaks Flower's protocol itself: real TLS and key, but no SuperNode.

Honest ones answer with the app's own ClientApp, in this process: a SuperNode would start a process
for every message. Hostile ones send whatever they like, message by message, object by object.
"""

from __future__ import annotations

import contextlib
import ssl
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Context, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    PushMessagesResponse,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ObjectTree,
    PullObjectRequest,
    PushObjectRequest,
)
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from tests.integration.deployed import Deployment

HEARTBEAT = 60.0
GIVE_UP, PAUSE = 60.0, 0.2
Reply = tuple[Message, ObjectTree, dict[str, bytes]]


class Patient(httpx.HTTPTransport):
    """Sends a request again where it was refused for its number, and where a connection ended."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        until = time.monotonic() + GIVE_UP
        while time.monotonic() < until:
            with contextlib.suppress(httpx.TransportError):
                response = super().handle_request(request)
                if response.status_code not in (429, 503):
                    return response
                response.close()
            time.sleep(PAUSE)
        raise httpx.ConnectError(f"no answer within {GIVE_UP:g} s")


class Member:
    """One registered key, activated; ``node_id`` is what the SuperLink knows it by.

    One whose ``source`` is given comes from that address, and is patient.
    """

    def __init__(self, address: str, ca: Path, key: Path, source: str | None = None) -> None:
        private = load_ssh_private_key(key.read_bytes(), None)
        public = private.public_key()
        self.client = FleetHttpClient.from_server_address(
            address,
            False,
            str(ca),
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="SuperNode"),
                NodeAuthHttpInterceptor(private, public),
            ],
        )
        if source is not None:
            context = ssl.create_default_context(cafile=str(ca))
            transport = Patient(verify=context, local_address=source)
            self.client._client = httpx.Client(transport=transport, timeout=30.0)
        self.client.__enter__()
        answer = self.client.ActivateNode(
            ActivateNodeRequest(
                public_key=public_key_to_bytes(public), heartbeat_interval=HEARTBEAT
            )
        )
        self.node = Node(node_id=answer.node_id)
        self.node_id: int = answer.node_id
        self.received = b""  # The last message, as it came.
        # How often it answered in another's name or tried an id, and was believed.
        self.guesses = self.hits = 0
        self.planted = ObjectTree()  # What it has stored of a reply to come.
        self._alive = time.monotonic()
        self._state = RecordDict()

    def close(self) -> None:
        self.client.__exit__(None, None, None)

    def stay_alive(self) -> None:
        if time.monotonic() - self._alive > HEARTBEAT / 3:
            self._alive = time.monotonic()
            self.client.SendNodeHeartbeat(
                SendNodeHeartbeatRequest(node=self.node, heartbeat_interval=HEARTBEAT)
            )

    def next_message(self, confirm: bool = True) -> Message | None:
        """Return the next message to this node, with everything in it, if there is one."""
        self.stay_alive()
        response = self.client.PullMessages(PullMessagesRequest(node=self.node))
        if not response.messages_list:
            return None
        envelope = message_from_proto(response.messages_list[0])
        message_id, run_id = envelope.metadata.message_id, envelope.metadata.run_id
        contents = {}
        for tree in iterate_object_tree(response.message_object_trees[0]):
            request = PullObjectRequest(node=self.node, run_id=run_id, object_id=tree.object_id)
            while not (pulled := self.client.PullObject(request)).object_available:
                if not pulled.object_found:
                    return None
                time.sleep(0.02)
            contents[tree.object_id] = pulled.object_content
        self.received = b"".join([response.SerializeToString(), *contents.values()])
        message = inflate_object_from_contents(message_id, contents)
        assert isinstance(message, Message)
        message.metadata.__dict__["_message_id"] = message_id
        if confirm:
            self.client.ConfirmMessageReceived(
                ConfirmMessageReceivedRequest(
                    node=self.node, run_id=run_id, message_object_id=message_id
                )
            )
        return message

    def context(self, message: Message, config: dict[str, bool | int | float | str]) -> Context:
        return Context(message.metadata.run_id, self.node_id, config, self._state, {})

    def announce(self, reply: Message, tree: ObjectTree) -> PushMessagesResponse:
        if reply.has_content():
            reply = remove_content_from_message(reply)
        return self.client.PushMessages(
            PushMessagesRequest(
                node=self.node,
                messages_list=[message_to_proto(reply)],
                message_object_trees=[tree],
                clientapp_runtime_list=[0.1],
            )
        )

    def upload(
        self, reply: Message, session_id: str, contents: Mapping[str, bytes], ids: Iterable[str]
    ) -> bool:
        """Upload some objects of a reply; return whether each was stored."""
        own = {"node": self.node, "run_id": reply.metadata.run_id, "session_id": session_id}
        stored = []
        for object_id in ids:
            content = contents[object_id]
            request = PushObjectRequest(object_id=object_id, object_content=content, **own)
            stored.append(self.client.PushObject(request).stored)
        return all(stored)

    def send(self, reply: Message) -> bool:
        """Send a reply as a SuperNode does; return whether all of it was stored."""
        reply, tree, contents = packed(reply)
        response = self.announce(reply, tree)
        return self.upload(reply, response.session_id, contents, response.objects_to_push)


def packed(reply: Message) -> Reply:
    """Return a reply with its id, its tree and its objects."""
    reply.metadata.__dict__["_message_id"] = reply.object_id
    objects = {i: value.deflate() for i, value in get_all_nested_objects(reply).items()}
    return reply, get_object_tree(reply), objects


def join(deployment: Deployment, name: str, source: str | None = None) -> Member:
    """Make a key, let the operator register it, and activate its node."""
    deployment.join(**{name: ""})
    return Member(deployment.address, deployment.server / "ca.crt", deployment.key(name), source)
