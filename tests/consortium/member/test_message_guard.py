"""The guard between Flower's loop, node state and store, and a SuperLink that may be hostile."""

from __future__ import annotations

import itertools
import json
import re
from contextlib import nullcontext
from dataclasses import replace
from datetime import date
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.common.serde import message_from_proto
from flwr.proto import message_pb2
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

from fedif_consortium.evidence.attempts import (
    ATTEMPTS_KEY,
    Attempts,
    agreed_name,
    config_hash,
)
from fedif_consortium.evidence.chained_log import read_log
from fedif_consortium.masking.boxes import TERMS_KEY, MaskingTerms
from fedif_consortium.member import node_log
from fedif_consortium.member.apps import bundle_digest, read_bundle
from fedif_consortium.member.message_guard import REFUSED, Connection, MessageGuard
from fedif_consortium.member.node_log import FILE
from fedif_consortium.member.outgoing import OutgoingPolicy
from fedif_consortium.member.policy import read_member_policy
from fedif_consortium.member.runs import RoundCounts
from fedif_consortium.member.seen_attempts import SeenAttempts
from fedif_flower.errors import ConfigError, RefusedByMemberError, StorageError
from fedif_flower.messages.client_config import ClientConfig
from fedif_flower.messages.held_out_classes import HeldOutClasses
from fedif_flower.messages.instructions import (
    CONFIG_KEY,
    PROXIMAL_KEY,
    RECEIPTS_KEY,
    ROUND_KEY,
    RUN_ID_KEY,
    read_config,
)
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
        factory = NodeStateFactory(objectstore_factory=ObjectStoreFactory())
        self.state = factory.state()
        self.state.set_node_id(NODE)
        self.store = factory.objectstore_factory.store()
        self.guard = MessageGuard(self.policy)
        connection = Connection(
            NODE,
            receive=lambda: self.asked(),
            send=self._send,
            get_run=lambda _: self.run,
            get_fab=self._get_fab,
            pull_object=lambda _, name: self.objects[name],
            push_object=lambda _, session, name, content: self.pushed.update({name: content}),
            confirm_message_received=lambda *_: None,
        )
        self.connection = self.guard.guarded(connection, self.store, {})

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
        names = ("receive", "get_run", "get_fab", "pull_object", "confirm_message_received")
        taken = loop._pull_and_store_message(
            **{"state": self.state, "object_store": self.store, "node_config": {}},
            **{name: getattr(self.connection, name) for name in names},
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
    def log(self):
        return read_log(self.guard.log.folder / FILE)

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


@pytest.fixture
def member(tmp_path) -> Member:
    return Member(tmp_path)


def test_an_approved_app_s_message_and_reply_pass_as_they_are(member):
    asked = member.ask()
    assert member.tasks == 1
    assert member.state.get_fab(member.fab.hash_str).content == APP
    assert member.store.get(asked.metadata.message_id)
    member.answer(Message(UPDATE, reply_to=asked))
    _, tree, pushed = member.sent[-1]
    reply = inflate_object_from_contents(tree.object_id, dict(pushed))  # As the SuperLink does.
    assert reply.content == UPDATE
    facts = reply.metadata
    assert (facts.reply_to_message_id, facts.dst_node_id) == (asked.metadata.message_id, SERVER)
    app = f"fedif/app {member.fab.hash_str}"
    told = [(e["direction"], e["decision"], e["app"], e["digest"]) for e in member.log]
    assert told == [
        ("in", "passed", app, asked.metadata.message_id),
        ("out", "passed", app, tree.object_id),
    ]
    assert member.ask() is not None
    assert member.fetched == 1


def test_a_message_with_an_array_in_two_of_its_records_passes(member):
    """Control variates begin at 0, as biases do: Flower asks for such an array twice."""
    weight = Array(np.ones(4, dtype=np.float32))
    zeros = Array(np.zeros(4, dtype=np.float32))
    model = ArrayRecord({"weight": weight, "bias": zeros})
    control = ArrayRecord({"weight": zeros, "bias": zeros})
    assert member.ask(content=RecordDict({"arrays": model, "control": control})) is not None
    assert all(member.store.get(part.object_id) for part in (weight, zeros, model, control))


def test_an_app_changed_by_one_byte_is_refused_kept_and_runs_while_approved(member):
    changed = bundle("x = 2\n")
    digest = bundle_digest(changed)
    member.serve(changed)
    for _ in range(2):
        assert member.ask() is None
        words = f"not approved app {digest}; there: fedif app approve {digest[:12]} --policy FILE"
        assert words in member.error
    assert (member.tasks, member.fetched) == (0, 1)  # It is kept: it need not be sent again.
    assert len(f"client error 6: {member.error}") <= 200  # As long as the server shows.
    assert [(one["decision"], one["bytes"]) for one in member.log] == [("refused", 0)] * 2
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
def test_a_run_outside_the_policy_starts_no_app(tmp_path, changes, reason):
    member = Member(tmp_path, "[runs.config]\nrounds = {most = 10}")
    member.serve(bundle("x = 2\n") if "fab_hash" in changes else APP, **changes)
    assert member.ask() is None
    assert reason in member.error
    assert member.tasks == 0
    member.serve(APP, override_config={"rounds": 9, "model.size": 2})
    assert member.ask() is not None


def test_a_run_starts_with_its_own_config_whatever_run_or_series_the_server_says_it_is(tmp_path):
    """Flower keeps a series' context, run config included, from one run to the next."""
    member = Member(tmp_path, "[runs.config]\nrounds = [9, 10]")
    for run_id, rounds in ((RUN, 10), (RUN + 1, 9), (RUN, 10)):
        member.serve(APP, override_config={"rounds": rounds}, series_id=8)
        assert member.ask(run_id=run_id) is not None
        run = member.state.get_run(run_id)
        context = member.state.get_run_series_context(run.series_id)
        assert (context.run_id, context.run_config["rounds"]) == (run_id, rounds)


def instructions(*runs: str, **said) -> ConfigRecord:
    """What this project's server tells of its run: its id, and every attempt so far."""
    config = {"rounds": 10, "model.size": 2}  # The app's own.
    attempts = [{"run": run, "config": config_hash(config)} for run in runs]
    told = Attempts(name=agreed_name(config), attempts=attempts).model_dump_json()
    return ConfigRecord({RUN_ID_KEY: runs[-1], ATTEMPTS_KEY: told, **said})


TERMS = MaskingTerms(run=1, keys=[]).model_dump_json()


@pytest.mark.parametrize(
    ("key", "said", "refused"),
    [
        ("masking.mode", {TERMS_KEY: TERMS}, "the message says masking.mode = 'off'; this member"),
        (
            "evidence.receipts",
            {RECEIPTS_KEY: True},
            "the message says evidence.receipts = False; this member accepts True",
        ),
    ],
)
def test_what_a_policy_promises_is_asked_of_the_message_that_is_answered(
    tmp_path, key, said, refused
):
    """The run config says that updates are masked, and the server asks for a plain one."""
    accepted = {"masking.mode": "keeper", "evidence.receipts": True}[key]
    policy = f"[runs.config]\n'{key}' = {json.dumps(accepted)}\n"
    member = Member(tmp_path, policy)
    own = f"{PYPROJECT}'{key}' = {json.dumps(accepted)}\n"
    member.serve(bundle(**{"pyproject.toml": own}))
    member.policy.apps.approve(read_bundle(member.fab.content, "app"))
    config = {"rounds": 10, "model.size": 2, key: accepted}
    attempts = [{"run": FIRST, "config": config_hash(config)}]
    told = Attempts(name=agreed_name(config), attempts=attempts).model_dump_json()
    about = {RUN_ID_KEY: FIRST, ATTEMPTS_KEY: told, ROUND_KEY: 1}
    assert member.ask(content=RecordDict({**MODEL, "config": ConfigRecord(about)})) is None
    assert refused in member.error
    # Nor is a message answered that says nothing at all.
    assert member.ask() is None
    assert refused in member.error
    assert member.ask(content=RecordDict({**MODEL, "config": ConfigRecord(about | said)}))


FIRST, SECOND, THIRD = "0f" * 16, "1f" * 16, "2f" * 16


def test_a_run_that_is_begun_again_is_refused_unless_it_says_so(tmp_path):
    """The operator looks at what members are credited with, and lets the run begin anew."""
    member = Member(tmp_path)
    rounds = itertools.count(1)

    def asked(*runs, kind="train"):
        told = RecordDict({**MODEL, "config": instructions(*runs, **{ROUND_KEY: next(rounds)})})
        return member.ask(kind, content=told) is not None

    assert asked(FIRST, kind="query")  # Before round 1 nobody trains: it is no attempt yet.
    assert asked(SECOND)
    assert asked(SECOND)
    assert not asked(FIRST)
    assert "does not follow: this member has seen another attempt 1" in member.error
    assert asked(SECOND, FIRST)
    assert not asked(SECOND)
    assert "does not follow: this member has seen attempt 2" in member.error
    # A member that was away meanwhile is told of what it missed.
    assert asked(SECOND, FIRST, THIRD, THIRD)
    assert not asked(SECOND, THIRD, THIRD, THIRD, FIRST)
    # A restart does not begin anew.
    member.guard.attempts = SeenAttempts(member.policy.state)
    assert not asked(SECOND, FIRST)
    silent = ConfigRecord({CONFIG_KEY: ClientConfig().to_json()})
    assert member.ask(content=RecordDict({**MODEL, "config": silent})) is None
    assert "does not say which attempt at which run it is of" in member.error


def test_a_round_that_is_asked_again_in_its_attempt_is_refused(tmp_path):
    member = Member(tmp_path)

    def asked(*runs, number, kind="train"):
        told = instructions(*runs, **{ROUND_KEY: number})
        return member.ask(kind, content=RecordDict({**MODEL, "config": told})) is not None

    assert asked(FIRST, number=1)
    assert asked(FIRST, number=1, kind="evaluate")
    assert asked(FIRST, number=2)
    assert not asked(FIRST, number=1)
    assert "round 1 of attempt 1" in member.error
    assert "does not follow: this member was to train in round 2" in member.error
    assert asked(FIRST, FIRST, number=1)  # The run goes on, as another attempt.


@pytest.mark.parametrize("number", [1.0, 2.0, 0.5, "1", "2", True, False, [2], None])
def test_a_round_that_has_no_number_is_refused(tmp_path, number):
    """It could be asked again as often as the server likes, and the app would train each time."""
    member = Member(tmp_path)

    def asked(kind="train", **said):
        told = RecordDict({**MODEL, "config": instructions(FIRST, **said)})
        return member.ask(kind, content=told) is not None

    assert asked(**{ROUND_KEY: 1})
    said = {} if number is None else {ROUND_KEY: number}
    for kind in ("train", "train.more"):
        assert not asked(kind, **said)
        assert re.search(r"server-round = .+; allowed: an integer", member.error)
    assert asked("query", **said)
    assert asked("evaluate", **said)
    assert asked(**{ROUND_KEY: 2})


@pytest.mark.parametrize("kind", ["train", "query"])
def test_the_app_is_told_nothing_that_the_policy_does_not_accept(tmp_path, kind):
    """It goes by what a message says, and not by the run config that was looked at."""
    rules = "[runs]\nunknown-keys = true\n[runs.config]\nlocal-epochs = 5\nattack = 'none'"
    member = Member(tmp_path, f"{rules}\n'fedprox.proximal-mu' = {{most = 1}}")
    for changes, mu in (({}, 0.5), ({}, 2.0), ({"local_epochs": 50}, 0), ({"attack": "ipm"}, 0)):
        told = ClientConfig(**{"local_epochs": 5, **changes})
        said = {CONFIG_KEY: told.to_json(), PROXIMAL_KEY: mu, ROUND_KEY: 1}
        settings = instructions(FIRST, **said)
        taken = member.ask(kind, content=RecordDict({**MODEL, "config": settings}))
        assert (taken is not None) == (mu == 0.5)
    assert "the message says attack = 'ipm'; this member accepts none" in member.error
    assert member.tasks == 1


@pytest.mark.parametrize("kind", ["train", "query"])
def test_a_policy_lets_a_warning_of_held_out_classes_through(tmp_path, kind):
    """It is no setting, and changes nothing of what the app does."""
    member = Member(tmp_path)
    warning = HeldOutClasses.of(missing=[2], rare=[0]).to_config()
    said = {CONFIG_KEY: ClientConfig().to_json(), ROUND_KEY: 1, **warning}
    settings = instructions(FIRST, **said)
    assert member.ask(kind, content=RecordDict({**MODEL, "config": settings})) is not None


def test_the_app_takes_no_message_that_leaves_a_setting_out():
    """Else its default would come past the policy."""
    told = json.loads(ClientConfig().to_json())
    del told["local-epochs"]
    with pytest.raises(ConfigError, match="the server's settings are not this app's: 'local-ep"):
        read_config(ConfigRecord({CONFIG_KEY: json.dumps(told)}))


@pytest.mark.parametrize(
    ("trick", "damage", "reason"),
    [
        ({"inside": "train", "kind": "query"}, b"", "the message is not the one"),
        ({"_dst_node_id": NODE + 1}, b"", "the message is not the one"),
        ({"_group_id": "other"}, b"", "the message is not the one"),
        ({"_message_id": "0" * 64}, b"", "the objects are not those"),
        # The SuperNode would take it for the app's reply, and send the server's own content back.
        ({"_reply_to_message_id": "0" * 64}, b"", "the message is announced as a reply"),
        ({}, b"objects that are not what they are called", "the objects are not those"),
    ],
)
def test_a_message_that_is_not_what_it_says_starts_no_app(member, trick, damage, reason):
    member.damage = lambda content: content + damage
    assert member.ask(**trick) is None
    assert reason in member.error
    assert member.tasks == 0


def test_metadata_that_the_app_made_up_do_not_leave_nor_does_a_second_reply(member):
    asked = member.ask()
    reply = Message(UPDATE, reply_to=asked)
    reply.metadata.__dict__.update(_group_id="secret", _created_at=1e18, _ttl=1e9)
    member.answer(reply)
    left, _, pushed = member.sent[-1]
    assert left.metadata.group_id == asked.metadata.group_id == ""
    assert left.metadata.created_at < 1e10
    assert not any(b"secret" in content for content in pushed.values())
    member.answer(Message(MODEL, reply_to=asked))
    asked.metadata.__dict__["_message_id"] = "0" * 64
    member.answer(Message(MODEL, reply_to=asked))
    assert len(member.sent) == 1


def test_an_app_s_error_leaves_without_its_words(member, caplog):
    asked = member.ask()
    member.answer(Message(Error(2**40, "secret data"), reply_to=asked))
    error = member.sent[-1][0].error
    assert (error.code, error.reason) == (2, "the app failed; the reason is in the member's log")
    assert "secret data" in caplog.text


def test_what_may_not_leave_does_not_and_the_reason_does(member, monkeypatch):
    hidden = RecordDict({**UPDATE, "metrics": MetricRecord({"secret": 5.0})})
    member.answer(Message(hidden, reply_to=member.ask()))
    assert member.error == "refused by the member: a metric is not on the list"
    assert [one["decision"] for one in member.log] == ["passed", "refused"]
    assert "metrics.secret" in member.log[1]["reason"]
    # Nor does the guard's own error say what is inside.
    monkeypatch.setattr(
        OutgoingPolicy, "limit_reply", Mock(side_effect=RuntimeError("secret data"))
    )
    member.answer(Message(UPDATE, reply_to=member.ask()))
    assert member.error == "refused by the member: the reply of the app cannot be read"


def test_with_a_full_disk_nothing_comes_in_or_leaves(member, monkeypatch, caplog):
    asked = member.ask()
    full = StorageError("cannot write /var/lib/secret/log: No space left on device")
    monkeypatch.setattr(member.guard.log, "append", Mock(side_effect=full))
    member.answer(Message(UPDATE, reply_to=asked))
    assert "is its disk full?" in member.error
    assert "/var/lib" not in member.error
    assert "No space left" in caplog.text
    assert member.ask() is None
    assert "is its disk full?" in member.error
    assert member.tasks == 1


def status(code: int) -> HTTPStatusError:
    return HTTPStatusError("", request=Request("POST", "https://a"), response=Response(code))


@pytest.mark.parametrize(
    ("receive", "ends"),
    [
        (Mock(side_effect=status(503)), False),
        (Mock(side_effect=status(401)), True),
        (lambda: message_from_proto(message_pb2.Message()), False),  # Of no type that there is.
    ],
)
def test_a_superlink_that_fails_for_a_moment_and_an_unreadable_message_end_no_node(
    member, receive, ends
):
    member.asked = receive
    with pytest.raises(HTTPStatusError) if ends else nullcontext():
        assert member.connection.receive() is None


@pytest.mark.parametrize("part", ["get_run", "get_fab", "pull_object"])
def test_a_superlink_that_fails_while_a_message_is_fetched_is_told_so(member, part):
    guard = member.guard
    guard.connection = guard.connection._replace(**{part: Mock(side_effect=status(500))})
    assert member.ask() is None
    assert "the SuperLink failed while the message was fetched" in member.error
    assert member.tasks == 0


def test_what_another_guard_counted_until_it_ended_counts(tmp_path, monkeypatch):
    """The counts are read once the folder is this guard's alone."""
    path = tmp_path / "policy.toml"
    path.write_text("[runs]\nmost-rounds-a-day = 5\n")
    policy = read_member_policy(path)
    hold = node_log.hold_folder

    def hold_after_the_others_last_round(folder, by):
        RoundCounts(policy.state, policy.runs).count("train", date(2026, 1, 5))
        return hold(folder, by)

    monkeypatch.setattr(node_log, "hold_folder", hold_after_the_others_last_round)
    counts = MessageGuard(policy).counts
    for _ in range(4):
        counts.count("train", date(2026, 1, 5))
    with pytest.raises(RefusedByMemberError, match="at most 5 rounds"):
        counts.count("train", date(2026, 1, 5))


def test_a_reply_that_is_not_all_there_does_not_wait_forever(member, monkeypatch):
    asked = member.ask()
    monkeypatch.setattr("fedif_consortium.member.message_guard.WHOLE_SECONDS", 0.0)
    monkeypatch.setattr(runtime_handlers, "push_object", lambda *_: SimpleNamespace(stored=True))
    member.answer(Message(UPDATE, reply_to=asked))
    assert "did not send all of its reply" in member.error
