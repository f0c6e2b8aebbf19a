"""The guard between a SuperNode and its SuperLink: it enforces the member's policy on messages.

A SuperNode of Flower 1.41 talks to its SuperLink through seven functions, and the guard stands in
front of them. If the policy forbids a message, the guard answers it with an error, and no app is
started for it.
Otherwise the app's reply leaves as the policy allows. The guard makes it anew from the reply's
records, so that nothing else that the app wrote, such as metadata, leaves. Any Flower app can run
behind it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import httpx
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.common.config import get_fused_config_from_fab
from flwr.common.constant import ErrorCode
from flwr.supercore.inflatable import inflatable_object as objects
from flwr.supercore.inflatable import inflatable_utils as transport

from fedif_consortium.evidence.attempts import Attempts
from fedif_consortium.evidence.keys import SigningKey
from fedif_consortium.evidence.member_receipts import SIGNATURES_KEY
from fedif_consortium.masking.boxes import MaskingTerms
from fedif_consortium.member.apps import bundle_digest, read_bundle
from fedif_consortium.member.node_log import NodeLog
from fedif_consortium.member.outgoing import OutgoingPolicy
from fedif_consortium.member.own_replies import OwnReplies
from fedif_consortium.member.policy import MemberPolicy
from fedif_consortium.member.runs import RoundCounts, is_round
from fedif_consortium.member.seen_attempts import SeenAttempts
from fedif_flower.errors import FedIFError, RefusedByMemberError, StorageError
from fedif_flower.messages.instructions import (
    CONFIG_KEY,
    PROXIMAL_KEY,
    RECEIPTS_KEY,
    ROUND_KEY,
    RUN_ID_KEY,
    told_config,
)
from fedif_flower.messages.records import records_of
from fedif_flower.messages.text import printable
from fedif_flower.settings import Scalar

logger = logging.getLogger(__name__)

REFUSED = ErrorCode.MOD_FAILED_PRECONDITION
WHOLE_SECONDS = 600.0  # How long the guard waits until all objects of an announced reply are there.
# Every error of an app has this code: with a code of its own choice, an app could send data.
_FAILED = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
_SEE_LOG = "the app failed; the reason is in the member's log"
_OTHER_OBJECTS = "the objects are not those of the message"
_POLL_SECONDS = 0.1


class Connection(NamedTuple):
    """The node's id and the functions of Flower's connection, in Flower's order."""

    node_id: int
    receive: Callable[[], tuple[Message, Any] | None]
    send: Callable[[Message, Any, float], tuple[set[str], str]]
    get_run: Callable[[int], Any]
    get_fab: Callable[[str, int], Any]
    pull_object: Callable[[int, str], bytes]
    push_object: Callable[[int, str, str, bytes], None]
    confirm_message_received: Callable[[int, str], None]


class MessageGuard:
    """Passes on the messages and replies that a member's policy allows, and refuses the others.

    Parameters
    ----------
    policy : MemberPolicy
        The member's policy.
    key : private key, optional
        Signs updates as they leave; ``None``: nothing is signed.

    Raises
    ------
    FedIFError
        If the node's log is in use, cannot be written or was changed; the counts of rounds or the
        seen attempts are damaged; or noise is set but cannot be added.
    """

    connection: Connection
    store: Any
    replies: OwnReplies

    def __init__(self, policy: MemberPolicy, key: SigningKey | None = None) -> None:
        self.policy = policy
        self._key = key
        # First, since it locks the folder: no other guard may change the counts once they are read.
        self.log = NodeLog(policy.state / "node-log")
        self.counts = RoundCounts(policy.state, policy.runs)
        self.attempts = SeenAttempts(policy.state)
        self.leaves = OutgoingPolicy(policy.leaves, self.log)
        # Admitted runs and their run configs by Flower's run id, and their bundles (Flower's FABs)
        # by digest, since many runs may share an app.
        self._runs: dict[int, Any] = {}
        self._configs: dict[int, Mapping[str, Scalar]] = {}
        self._fabs: dict[str, Any] = {}
        # The message that waits for a reply, by its id, and its content. A SuperNode works on one
        # message at a time, so there is at most one.
        self._waiting: dict[str, tuple[Message, RecordDict]] = {}
        self._pulled: dict[str, bytes] = {}  # The objects of that message, until Flower has them.

    def guarded(
        self, connection: Connection, store: Any, node_config: Mapping[str, Scalar]
    ) -> Connection:
        """Return a connection whose functions pass through this guard.

        Parameters
        ----------
        connection : Connection
            Flower's connection.
        store : ObjectStore
            Flower's store, in which the app's replies arrive.
        node_config : mapping of str to bool, int, float or str
            The SuperNode's config.
        """
        self.connection = connection
        self.store = store
        self.replies = OwnReplies(connection.node_id, node_config, self._key)
        return connection._replace(
            receive=self.receive,
            send=self.send,
            get_run=lambda run_id: self._runs[run_id],
            get_fab=lambda _, run_id: self._fabs[self._runs[run_id].fab_hash],
            # Objects stay after a pull: Flower pulls an object twice if two records hold it.
            pull_object=lambda _, object_id: self._pulled[object_id],
            confirm_message_received=self.confirm,
        )

    def confirm(self, run_id: int, message_id: str) -> None:
        """Tell the SuperLink that the SuperNode has the whole message, and free its objects."""
        self._pulled = {}
        self.connection.confirm_message_received(run_id, message_id)

    # -- in ---------------------------------------------------------------------------------------

    def receive(self) -> tuple[Message, Any] | None:
        """Return the next message for the app, with all objects pulled; ``None`` if there is none.

        A message that the policy forbids is answered here, and ``None`` is returned.
        """
        try:
            announced = self.connection.receive()
        except httpx.HTTPStatusError as error:
            if error.response.status_code < 500:
                raise
            # For example, its database is locked for a moment. Flower's SuperNode would end.
            logger.warning("the SuperLink fails, and is asked again: %s", error)
            return None
        except (LookupError, ValueError) as error:  # For example, Flower does not know its type.
            logger.warning("a message cannot be read: %s", printable(repr(error)))
            return None
        if announced is None:
            return None
        message, tree = announced
        metadata = message.metadata
        try:
            config = self._admit(metadata.run_id)
            self.counts.count(metadata.message_type, datetime.now(UTC).date())
            contents = self._pull(message, tree)
            content = _read_message(message, contents)
            attempts = self._check_settings(content, config)
            begins_round = is_round(metadata.message_type)
            if begins_round:
                self._check_terms(content, config)
                # Only a round counts as seen: an attempt begins when a member is asked to train.
                for attempt, server_round in attempts:
                    self.attempts.note(attempt, _round_number(server_round))
            self._note("in", message, metadata.message_id, contents)
            self.replies.take(content, is_round=begins_round)
        except Exception as error:  # A hostile message must not end the SuperNode.
            self._refuse("in", message, error)
            return None
        self._pulled = contents
        self._waiting = {metadata.message_id: (message, content)}
        return announced

    def _check_settings(
        self, content: RecordDict, config: Mapping[str, Scalar]
    ) -> list[tuple[Attempts, object]]:
        """Check a message's settings; return the attempts in them, each with its round's number.

        The number is as the server sent it, and may be no integer.

        Raises
        ------
        RefusedByMemberError
            If the settings differ from what policy and run config allow, or an attempt does not
            follow those that the member has seen.
        """
        attempts: list[tuple[Attempts, object]] = []
        for record in records_of(content, ConfigRecord).values():
            if CONFIG_KEY in record or RUN_ID_KEY in record:
                attempts.append((self.attempts.check(record, config), record.get(ROUND_KEY)))
            if CONFIG_KEY in record:  # This project's app follows the settings under this key.
                settings = told_config(record)
                if PROXIMAL_KEY in record:  # Beside them, as in Flower's own FedProx.
                    settings[f"fedprox.{PROXIMAL_KEY}"] = record[PROXIMAL_KEY]
                self.policy.runs.check_settings(settings, config)
        return attempts

    def _check_terms(self, content: RecordDict, config: Mapping[str, Scalar]) -> None:
        """Raise RefusedByMemberError unless masks, signatures and receipts are as agreed.

        Each message says anew whether its round has these, and the app follows the message. So the
        message is compared with the policy and the run config.
        """
        settings = records_of(content, ConfigRecord).get("config", ConfigRecord())
        terms = terms_of(settings)
        promised = terms.keys() & {*self.policy.runs.config, *config}
        self.policy.runs.check_terms({key: terms[key] for key in promised}, config)

    def _admit(self, run_id: int) -> Mapping[str, Scalar]:
        """Return a run's run config; raise RefusedByMemberError if policy or app forbids the run.

        The app's approval is checked at each message, so that it can be withdrawn. App and run
        config are checked at the run's first message.
        """
        apps = self.policy.apps
        run = self._runs.get(run_id)
        if run is None:
            # Flower keeps run configs and apps' states by series. So each run becomes a series of
            # its own. Otherwise it could get the run config of another run of its series, which
            # was not checked for this run.
            run = replace(self.connection.get_run(run_id), run_id=run_id, series_id=run_id)
        get_fab = partial(self.connection.get_fab, run.fab_hash, run_id)
        if not apps.approval(run.fab_hash):
            apps.keep_refused(run.fab_hash, lambda: get_fab().content)
            raise RefusedByMemberError(
                f"this member has not approved app {run.fab_hash}; there: fedif app approve "
                f"{run.fab_hash[:12]} --policy FILE"
            )
        if run_id in self._configs:
            return self._configs[run_id]
        fab = self._fabs.get(run.fab_hash) or get_fab()
        if not fab.hash_str == run.fab_hash == bundle_digest(fab.content):
            raise RefusedByMemberError("the server sent another app than it announced")
        bundle = read_bundle(fab.content, "the app")
        if (run.fab_id, run.fab_version) != (bundle.name, bundle.version):
            raise RefusedByMemberError("the server calls the app by another name than its own")
        config = get_fused_config_from_fab(fab.content, run)
        app_config = get_fused_config_from_fab(fab.content, replace(run, override_config={}))
        self.policy.runs.check_run(bundle.name, config, app_config)
        self._fabs[run.fab_hash] = fab
        self._runs[run_id] = run
        self._configs[run_id] = config
        return config

    def _pull(self, message: Message, tree: Any) -> dict[str, bytes]:
        """Return the objects of a message by id; raise RefusedByMemberError if an id is false."""
        # Pull each object once, though it may be in several places of the tree.
        object_ids = dict.fromkeys(node.object_id for node in objects.iterate_object_tree(tree))
        pull = partial(self.connection.pull_object, message.metadata.run_id)
        contents = transport.pull_objects(list(object_ids), pull)
        for object_id, content in contents.items():
            if objects.get_object_id(content) != object_id:
                raise RefusedByMemberError(_OTHER_OBJECTS)
        if tree.object_id != message.metadata.message_id:
            raise RefusedByMemberError(_OTHER_OBJECTS)
        return contents

    # -- out --------------------------------------------------------------------------------------

    def send(self, message: Message, tree: Any, seconds: float) -> tuple[set[str], str]:
        """Send an app's reply as far as the policy allows.

        Returns
        -------
        set of str, str
            Both empty: the ids of objects that Flower still has to send, and of its session. The
            guard has sent all objects itself.
        """
        waiting = self._waiting.pop(message.metadata.reply_to_message_id, None)
        if waiting is None:
            words = "run %d: a reply to an earlier or unknown message: not sent"
            logger.warning(words, message.metadata.run_id)
            return set(), ""
        question, received = waiting
        metadata = question.metadata
        note_sent = None
        try:
            if message.has_error():
                reason = printable(str(message.error.reason), 2000)
                logger.warning("run %d: the app failed: %s", metadata.run_id, reason)
                reply = Message(Error(_FAILED, _SEE_LOG), reply_to=question)
            else:
                offered = _read_content(tree, self._whole_contents(tree))
                content = self.leaves.limit_reply(
                    received, offered, metadata.run_id, metadata.message_type
                )
                begins_round = is_round(metadata.message_type)
                note_sent = self.replies.sign(received, content, is_round=begins_round)
                reply = Message(content, reply_to=question)
            contents = _in_pieces(reply)
            self._note("out", question, reply.metadata.message_id, contents)
        except Exception as error:  # A hostile reply must not end the SuperNode.
            self._refuse("out", question, error)
            return set(), ""
        if note_sent is not None:
            note_sent()
        self._push(reply, contents, seconds)
        return set(), ""

    def _whole_contents(self, tree: Any) -> dict[str, bytes]:
        """Wait until the app has sent all objects of its reply, and return them by id.

        Raises
        ------
        RefusedByMemberError
            If they are not there after :data:`WHOLE_SECONDS`.
        """
        deadline = time.monotonic() + WHOLE_SECONDS
        contents: dict[str, bytes] = {}
        for node in objects.iterate_object_tree(tree):
            content = self.store.get(node.object_id)
            while content == b"":
                if time.monotonic() > deadline:
                    raise RefusedByMemberError("the app did not send all of its reply")
                time.sleep(_POLL_SECONDS)
                content = self.store.get(node.object_id)
            contents[node.object_id] = content
        return contents

    def _push(self, reply: Message, contents: dict[str, bytes], seconds: float) -> None:
        """Send a reply, and those of its objects that the SuperLink lacks."""
        missing, session = self.connection.send(reply, objects.get_object_tree(reply), seconds)
        transport.push_object_contents_from_iterable(
            ((name, content) for name, content in contents.items() if name in missing),
            partial(self.connection.push_object, reply.metadata.run_id, session),
        )

    # -- both -------------------------------------------------------------------------------------

    def _refuse(self, direction: str, question: Message, error: Exception) -> None:
        """Log that a message or its reply is refused, and answer with an error that says why.

        ``direction`` is ``"in"`` for the message and ``"out"`` for the reply.
        """
        run_id = question.metadata.run_id
        words = repr(error)
        if isinstance(error, FedIFError):
            words = str(error)
        reason = printable(words, 1000)
        logger.warning("run %d: refused: %s", run_id, reason)
        try:
            self._note(direction, question, question.metadata.message_id, {}, reason)
        except StorageError as full:
            logger.error("%s", full)
        server_reason = printable(_reason_for_server(direction, error))
        error_sent = Error(REFUSED, f"refused by the member: {server_reason}")
        try:
            reply = Message(error_sent, reply_to=question)
            self._push(reply, _in_pieces(reply), 0.0)
        except Exception as failure:  # Flower also only logs that a reply cannot be sent.
            logger.error("run %d: the refusal was not sent: %r", run_id, failure)

    def _note(
        self,
        direction: str,
        question: Message,
        digest: str,
        contents: Mapping[str, bytes],
        refusal: str = "",
    ) -> None:
        """Write a line of the log.

        Parameters
        ----------
        direction : str
            ``"in"`` for a message, ``"out"`` for a reply.
        question : Message
            The message, or the message that the reply answers.
        digest : str
            The id of what came or leaves, which is its SHA-256.
        contents : mapping of str to bytes
            Its objects.
        refusal : str
            Why it is refused; empty if it passes.

        Raises
        ------
        StorageError
            If the line cannot be written.
        """
        metadata = question.metadata
        run = self._runs.get(metadata.run_id)
        app = ""
        if run is not None:
            app = f"{run.fab_id} {run.fab_hash}"
        decision = "passed"
        if refusal:
            decision = "refused"
        self.log.append(
            direction=direction,
            run=metadata.run_id,
            app=app,
            kind=metadata.message_type,
            bytes=sum(len(content) for content in contents.values()),
            digest=digest,
            decision=decision,
            reason=refusal,
        )


def _reason_for_server(direction: str, error: Exception) -> str:
    """Return why a message was refused, without words of an app and without paths."""
    if isinstance(error, RefusedByMemberError):
        return error.reason
    if isinstance(error, StorageError):
        return "this member cannot write what its policy asks it to keep; is its disk full?"
    if isinstance(error, httpx.HTTPError):
        return "the SuperLink failed while the message was fetched"
    if direction == "in":
        return "the message cannot be read"
    return "the reply of the app cannot be read"


def _round_number(number: object) -> int:
    """Return a round's number; raise RefusedByMemberError if ``number`` is no integer.

    Without a number that can be compared, the server could ask for a round again and again until
    it likes the result.
    """
    if not isinstance(number, int) or isinstance(number, bool):
        raise RefusedByMemberError(
            f"{ROUND_KEY} = {printable(repr(number), 40)}; allowed: an integer in a message that "
            "asks for an update in an attempt at a run"
        )
    return number


def terms_of(settings: ConfigRecord) -> dict[str, Scalar]:
    """Return what a message's settings say of masks and evidence, by run-config key.

    Raises
    ------
    ValueError
        If the terms of masking are malformed.
    """
    masking = MaskingTerms.read(settings)
    mode = "off"
    if masking is not None:
        mode = masking.mode
    return {
        "masking.mode": mode,
        "evidence.receipts": bool(settings.get(RECEIPTS_KEY)),
        "evidence.require-signatures": bool(settings.get(SIGNATURES_KEY)),
    }


def _in_pieces(message: Message) -> dict[str, bytes]:
    """Return a message's objects by id, as they are sent; set the id in the message's metadata."""
    with objects.no_object_id_recompute():
        message.metadata.__dict__["_message_id"] = message.object_id
        nested = objects.get_all_nested_objects(message)
        return {name: part.deflate() for name, part in nested.items()}


def _read_message(announced: Message, contents: dict[str, bytes]) -> RecordDict:
    """Return a message's content; raise RefusedByMemberError if another message was announced."""
    message_id = announced.metadata.message_id
    if announced.metadata.reply_to_message_id:
        # Flower's SuperNode would take it for the app's reply, and send it back.
        raise RefusedByMemberError("the message is announced as a reply")
    # The policy judges the announced metadata, but the app acts on those inside the message.
    message = transport.inflate_object_from_contents(
        message_id, contents, keep_object_contents=True
    )
    compared = attrgetter("run_id", "dst_node_id", "message_type", "group_id")
    expected = compared(announced.metadata)
    if not isinstance(message, Message) or compared(message.metadata) != expected:
        raise RefusedByMemberError("the message is not the one that was announced")
    return message.content


def _read_content(tree: Any, contents: dict[str, bytes]) -> RecordDict:
    """Return the content of an app's reply; its metadata are ignored."""
    (child,) = tree.children
    content = transport.inflate_object_from_contents(child.object_id, contents)
    if not isinstance(content, RecordDict):
        raise RefusedByMemberError("the app's reply has no records")
    return content
