"""The guard between Flower's loop, node state and store, and a SuperLink that may be hostile."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.common.serde import message_from_proto
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode import start_client_internal as loop
from flwr.supernode.nodestate import NodeStateFactory
from flwr.supernode.runtime.run_clientapp import push_message
from flwr.supernode.servicer.runtime import runtime_handlers
from httpx import HTTPStatusError, Request, Response

from fedif_consortium.member.app_bundle import bundle_digest, read_bundle
from fedif_consortium.member.message_guard import REFUSED, Connection, MessageGuard
from fedif_consortium.member.outgoing import OutgoingPolicy
from fedif_consortium.member.own_replies import OwnReplies
from fedif_consortium.member.policy import read_member_policy
from fedif_consortium.member.round_counts import RoundCounts
from fedif_flower.errors import ConfigError, StorageError
from fedif_flower.messages.client_config import ClientConfig
from fedif_flower.messages.instructions import instructions, read_config
from fedif_flower.run.config import RunConfig
from fedif_flower.tasks.registry import build_task
from tests.consortium.member.bundles import PYPROJECT, bundle

NODE, RUN, SERVER = 7, 3, 1
APP = bundle()
MODEL = RecordDict({"arrays": ArrayRecord({"w": Array(np.arange(4.0, dtype=np.float32))})})
UPDATE = RecordDict(
    {
        "arrays": ArrayRecord({"w": Array(np.ones(4, dtype=np.float32))}),
        "metrics": MetricRecord({"num-examples": 5}),
    }
)


class KeptLog:
    """A log in memory, whose disk may be full."""

    def __init__(self):
        self.lines, self.is_full = [], False

    def append(self, **line):
        if self.is_full:
            raise StorageError("cannot write /var/lib/secret/log: No space left on device")
        self.lines.append(line)


class Member:
    """A SuperNode without sockets: Flower's loop, state and handlers, and a played SuperLink."""

    def __init__(self, folder, policy=""):
        path = folder / "policy.toml"
        path.write_text(policy)
        self.policy = read_member_policy(path)
        self.serve(APP)
        self.policy.apps.approve(read_bundle(APP, "app"))
        self.objects, self.sent, self.fetched = {}, [], 0
        self.damage = lambda content: content
        self.log = KeptLog()
        factory = NodeStateFactory(objectstore_factory=ObjectStoreFactory())
        self.state = factory.state()
        self.state.set_node_id(NODE)
        self.store = factory.objectstore_factory.store()
        self.connection = MessageGuard(
            self.policy,
            Connection(
                NODE,
                receive=lambda: self.asked(),
                send=self._send,
                get_run=lambda run_id: replace(self.run, run_id=run_id),
                get_fab=self._get_fab,
                pull_object=lambda _, name: self.objects[name],
                push_object=lambda _, session, name, content: self.pushed.update({name: content}),
                confirm_message_received=lambda *_: None,
            ),
            self.store,
            RoundCounts(self.policy.state, self.policy.runs),
            OutgoingPolicy(self.policy.leaves, self.log),
            self.log,
            OwnReplies(NODE, {}, None),
        ).guarded()

    # -- the SuperLink

    def serve(self, content, **changes):
        """Let the SuperLink send this bundle."""
        self.fab = Fab(bundle_digest(content), content, {})
        facts = {"fab_id": "fedif/app", "fab_version": "1.0", "fab_hash": self.fab.hash_str}
        self.run = replace(Run.create_empty(RUN), **{**facts, **changes})

    def _get_fab(self, digest, run_id):
        self.fetched += 1
        return self.fab

    def _send(self, message, tree, seconds):
        assert message.metadata.message_id == tree.object_id
        self.pushed = {}
        self.sent.append((message, tree, self.pushed))
        return {part.object_id for part in iterate_object_tree(tree)}, "session"

    def ask(self, kind="train", run_id=RUN, inside=None, content=MODEL, **announced):
        """Let the SuperLink send a message and the SuperNode take it; return what the app sees."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in (("run_id", run_id), ("task_id", 1), ("node_id", SERVER)):
                patch.setattr(TaskIdentity, f"_{name}", value)
            message = Message(content, NODE, inside or kind)
        tree = get_object_tree(message)
        parts = get_all_nested_objects(message)
        self.objects.update({name: self.damage(part.deflate()) for name, part in parts.items()})
        shown = {**message.metadata.__dict__, "_message_type": kind, "_message_id": tree.object_id}
        message.metadata.__dict__.update({**shown, **announced})
        message.__dict__["_content"] = RecordDict()
        self.asked = lambda: (message, tree)
        taken = loop._pull_and_store_message(
            state=self.state,
            object_store=self.store,
            node_config={},
            receive=self.connection.receive,
            get_run=self.connection.get_run,
            get_fab=self.connection.get_fab,
            pull_object=self.connection.pull_object,
            confirm_message_received=self.connection.confirm_message_received,
            trusted_entities=None,
        )
        if taken is None:
            return None
        task = SimpleNamespace(run_id=run_id, task_id=1)
        response = runtime_handlers.pull_messages(None, self.state, task)
        return message_from_proto(response.messages_list[0])

    # -- the app

    def answer(self, reply):
        """Let the app send a reply as Flower's app process does, and the SuperNode hand it on."""
        task = SimpleNamespace(run_id=reply.metadata.run_id, task_id=1)
        client = SimpleNamespace(
            PushMessages=lambda request: runtime_handlers.push_messages(request, self.state, task),
            PushObject=lambda request: runtime_handlers.push_object(request, self.state, task),
        )
        push_message(client, reply, SimpleNamespace(node_id=NODE, run_id=reply.metadata.run_id))
        guard = self.connection
        loop._push_messages(self.state, self.store, guard.send, guard.push_object)

    # -- what came of it

    @property
    def tasks(self):
        return len(self.state.get_tasks())

    @property
    def error(self):
        """The error that the SuperLink was sent last, with nothing beside it."""
        message, tree, pushed = self.sent[-1]
        assert set(pushed) == {tree.object_id}
        assert message.error.code == REFUSED
        return message.error.reason

    @property
    def reply(self):
        """What the SuperLink was sent last, put together from its objects."""
        _, tree, pushed = self.sent[-1]
        return inflate_object_from_contents(tree.object_id, dict(pushed))


@pytest.fixture
def start(tmp_path):
    return lambda policy="": Member(tmp_path, policy)


def test_an_approved_app_s_message_and_reply_pass_as_they_are(start):
    member = start()
    asked = member.ask()
    assert member.tasks == 1
    assert member.state.get_fab(member.fab.hash_str).content == APP
    assert member.store.get(asked.metadata.message_id)
    member.answer(Message(UPDATE, reply_to=asked))
    reply = member.reply
    assert reply.content == UPDATE
    assert reply.metadata.reply_to_message_id == asked.metadata.message_id
    assert reply.metadata.dst_node_id == SERVER
    assert [(one["direction"], one["decision"]) for one in member.log.lines] == [
        ("in", "passed"),
        ("out", "passed"),
    ]
    assert member.log.lines[0]["digest"] == asked.metadata.message_id
    assert member.log.lines[1]["digest"] == member.sent[-1][1].object_id
    assert {one["app"] for one in member.log.lines} == {f"fedif/app {member.fab.hash_str}"}
    assert member.fetched == 1
    assert member.ask() is not None
    assert member.fetched == 1


def test_an_app_changed_by_one_byte_is_refused_kept_and_runs_while_approved(start):
    member = start()
    changed = bundle("x = 2\n")
    digest = bundle_digest(changed)
    member.serve(changed)
    for _ in range(2):
        assert member.ask() is None
        assert f"not approved app {digest}; there: fedif app approve {digest[:12]}" in member.error
    assert (member.tasks, member.fetched) == (0, 1)  # It is kept: it need not be sent again.
    assert len(f"client error 6: {member.error}") <= 200  # As long as the server shows.
    assert [(one["decision"], one["bytes"]) for one in member.log.lines] == [("refused", 0)] * 2
    path = member.policy.apps.approve(member.policy.apps.find(digest[:12]))
    member.answer(Message(UPDATE, reply_to=member.ask()))
    path.unlink()
    assert member.ask() is None
    assert "has not approved" in member.error


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"fab_id": "fedif/other"}, "calls the app by another name"),
        ({"fab_version": "1.0/../../x"}, "calls the app by another name"),
        ({"override_config": {"rounds": 11}}, "run config rounds = 11; this member accepts at m"),
        ({"override_config": {"absent": 3}}, "the message cannot be read"),
        ({"fab_hash": bundle_digest(APP)}, "the server sent another app than it announced"),
    ],
)
def test_a_run_outside_the_policy_starts_no_app(start, changes, reason):
    member = start("[runs.config]\nrounds = {most = 10}")
    member.serve(bundle("x = 2\n") if "fab_hash" in changes else APP, **changes)
    assert member.ask() is None
    assert reason in member.error
    assert member.tasks == 0
    member.serve(APP, override_config={"rounds": 9, "model.size": 2})
    assert member.ask() is not None


@pytest.mark.parametrize("kind", ["train", "query"])
def test_the_app_is_told_nothing_that_the_policy_does_not_accept(start, kind):
    """It goes by what a message says, and not by the run config that was looked at."""
    training = {"local-epochs": 5, "attack": "none"}
    lines = "\n".join(f"{key} = {value!r}" for key, value in training.items())
    member = start(f"[runs]\nunknown-keys = true\n[runs.config]\n{lines}")
    app = bundle(**{"pyproject.toml": PYPROJECT + lines})
    member.policy.apps.approve(read_bundle(app, "app"))
    member.serve(app)
    config = RunConfig.from_run_config(training).part(ClientConfig)

    def told(config):
        settings = instructions(config, build_task(config), run="a")
        return RecordDict({**MODEL, "config": settings})

    assert member.ask(kind, content=told(config)) is not None
    assert member.ask(kind, content=told(config.replace(local_epochs=50))) is None
    assert "the message says local-epochs = 50; this member accepts" in member.error
    assert member.ask(kind, content=told(config.replace(attack="label-noise"))) is None
    assert member.tasks == 1


def test_the_app_takes_no_message_that_leaves_a_setting_out():
    """Else its default would come past the policy."""
    told = json.loads(ClientConfig().to_json())
    del told["local-epochs"]
    with pytest.raises(ConfigError, match="the server's settings are not this app's: 'local-ep"):
        read_config(ConfigRecord({"client-config": json.dumps(told)}))


@pytest.mark.parametrize(
    ("trick", "damage"),
    [
        ({"inside": "train", "kind": "query"}, b""),
        ({"_message_id": "0" * 64}, b""),
        ({"_dst_node_id": NODE + 1}, b""),
        ({"_group_id": "other"}, b""),
        ({}, b"objects that are not what they are called"),
    ],
)
def test_a_message_that_is_not_what_it_says_starts_no_app(start, trick, damage):
    member = start()
    member.damage = lambda content: content + damage
    assert member.ask(**trick) is None
    assert "the message is not the one" in member.error or "the objects are not" in member.error
    assert member.tasks == 0


def test_metadata_that_the_app_made_up_do_not_leave_nor_does_a_second_reply(start):
    member = start()
    asked = member.ask()
    reply = Message(UPDATE, reply_to=asked)
    reply.metadata.__dict__.update(_group_id="secret", _created_at=1e18, _ttl=1e9)
    member.answer(reply)
    assert member.reply.metadata.group_id == asked.metadata.group_id == ""
    assert member.reply.metadata.created_at < 1e10
    assert not any(b"secret" in content for content in member.sent[-1][2].values())
    member.answer(Message(MODEL, reply_to=asked))
    asked.metadata.__dict__["_message_id"] = "0" * 64
    member.answer(Message(MODEL, reply_to=asked))
    assert len(member.sent) == 1


def test_an_app_s_error_leaves_without_its_words(start, caplog):
    member = start()
    asked = member.ask()
    member.answer(Message(Error(2**40, "secret data"), reply_to=asked))
    error = member.sent[-1][0].error
    assert (error.code, error.reason) == (2, "the app failed; the reason is in the member's log")
    assert "secret data" in caplog.text


def test_what_may_not_leave_does_not_and_the_reason_does(start, monkeypatch):
    member = start()
    hidden = RecordDict({**UPDATE, "metrics": MetricRecord({"secret": 5.0})})
    member.answer(Message(hidden, reply_to=member.ask()))
    assert member.error == "refused by the member: a metric is not on the list"
    assert [one["decision"] for one in member.log.lines] == ["passed", "refused"]
    assert "metrics.secret" in member.log.lines[1]["reason"]
    # Nor does the guard's own error say what is inside.
    monkeypatch.setattr(OutgoingPolicy, "check", Mock(side_effect=RuntimeError("secret data")))
    member.answer(Message(UPDATE, reply_to=member.ask()))
    assert member.error == "refused by the member: the reply of the app cannot be read"


def test_with_a_full_disk_nothing_comes_in_or_leaves(start, caplog):
    member = start()
    asked = member.ask()
    member.log.is_full = True
    member.answer(Message(UPDATE, reply_to=asked))
    assert "is its disk full?" in member.error
    assert "/var/lib" not in member.error
    assert "No space left" in caplog.text
    assert member.ask() is None
    assert "is its disk full?" in member.error
    assert member.tasks == 1


def test_a_superlink_that_fails_for_a_moment_is_asked_again(start):
    member = start()
    for status, ends in ((503, False), (401, True)):
        request, response = Request("POST", "https://a"), Response(status)
        failure = HTTPStatusError("", request=request, response=response)
        member.asked = Mock(side_effect=failure)
        with pytest.raises(HTTPStatusError) if ends else nullcontext():
            assert member.connection.receive() is None


def test_a_reply_that_is_not_all_there_does_not_wait_forever(start, monkeypatch):
    member = start()
    asked = member.ask()
    monkeypatch.setattr("fedif_consortium.member.message_guard.WHOLE_SECONDS", 0.0)
    monkeypatch.setattr(runtime_handlers, "push_object", lambda *_: SimpleNamespace(stored=True))
    member.answer(Message(UPDATE, reply_to=asked))
    assert "did not send all of its reply" in member.error
