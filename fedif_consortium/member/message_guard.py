"""What stands between a SuperNode and its SuperLink: the member's policy, for any Flower app.

A SuperNode of Flower 1.41 talks to its SuperLink by eight functions. This guard has its place
before them: a message that the policy forbids is answered with an error before any app is started
for it, and a reply leaves as the policy allows, made anew from its records: nothing else that the
app wrote, such as metadata, leaves with it.
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
WHOLE_SECONDS = 600.0  # For a reply that its app has announced to be there.
_FAILED = ErrorCode.CLIENT_APP_RAISED_EXCEPTION  # The app's own code would be text.
_SEE_LOG = "the app failed; the reason is in the member's log"
_OTHER_OBJECTS = "the objects are not those of the message"
_POLL_SECONDS = 0.1


class Connection(NamedTuple):
    """What Flower's connection consists of, in its order."""

    node_id: int
    receive: Callable[[], tuple[Message, Any] | None]
    send: Callable[[Message, Any, float], tuple[set[str], str]]
    get_run: Callable[[int], Any]
    get_fab: Callable[[str, int], Any]
    pull_object: Callable[[int, str], bytes]
    push_object: Callable[[int, str, str, bytes], None]
    confirm_message_received: Callable[[int, str], None]


class MessageGuard:
    """Passes on, both ways, what a member's policy allows.

    Parameters
    ----------
    policy : MemberPolicy
        The member's.
    key : SigningKey, optional
        Signs what leaves; ``None``: nothing is signed.

    Raises
    ------
    FedIFError
        If the log is in use, cannot be written, or was changed; if counts or what is remembered of
        attempts are damaged, or noise is to be added and cannot be.
    """

    connection: Connection
    store: Any
    replies: OwnReplies

    def __init__(self, policy: MemberPolicy, key: SigningKey | None = None) -> None:
        self.policy = policy
        self._key = key
        self.counts = RoundCounts(policy.state, policy.runs)
        self.attempts = SeenAttempts(policy.state)
        self.log = NodeLog(policy.state / "node-log")
        self.leaves = OutgoingPolicy(policy.leaves, self.log)
        # Of the runs that the member takes part in. Bundles are by digest: runs are many, apps few.
        self._runs: dict[int, Any] = {}
        self._configs: dict[int, Mapping[str, Scalar]] = {}
        self._fabs: dict[str, Any] = {}
        # A SuperNode works on one message at a time: an earlier one waits for nothing any more.
        self._waiting: dict[str, tuple[Message, RecordDict]] = {}
        self._pulled: dict[str, bytes] = {}

    def guarded(
        self, connection: Connection, store: Any, node_config: Mapping[str, Scalar]
    ) -> Connection:
        """Return a connection with this guard in it.

        Parameters
        ----------
        connection : Connection
            Flower's.
        store : ObjectStore
            Where Flower has what the app sends.
        node_config : mapping of str to bool, int, float or str
            The SuperNode's.
        """
        self.connection = connection
        self.store = store
        self.replies = OwnReplies(connection.node_id, node_config, self._key)
        return connection._replace(
            receive=self.receive,
            send=self.send,
            get_run=lambda run_id: self._runs[run_id],
            get_fab=lambda _, run_id: self._fabs[self._runs[run_id].fab_hash],
            # One that lies in two records of a message is pulled twice.
            pull_object=lambda _, object_id: self._pulled[object_id],
            confirm_message_received=self.confirm,
        )

    def confirm(self, run_id: int, message_id: str) -> None:
        """Tell the SuperLink that Flower has a whole message, and let go of its objects."""
        self._pulled = {}
        self.connection.confirm_message_received(run_id, message_id)

    # -- in ---------------------------------------------------------------------------------------

    def receive(self) -> tuple[Message, Any] | None:
        """Return the next message that the app may see, whole; ``None``: there is none now."""
        try:
            announced = self.connection.receive()
        except httpx.HTTPStatusError as error:
            if error.response.status_code < 500:
                raise
            # Such as a database that is locked for a moment: Flower's SuperNode would end.
            logger.warning("the SuperLink fails, and is asked again: %s", error)
            return None
        except (LookupError, ValueError) as error:  # Such as of a type that Flower does not have.
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
                # An attempt begins once somebody is to train in it.
                for attempt, server_round in attempts:
                    self.attempts.note(attempt, _round_number(server_round))
            self._note("in", message, metadata.message_id, contents)
            self.replies.take(content, is_round=begins_round)
        except Exception as error:  # whatever a server sends, the SuperNode goes on
            self._refuse("in", message, error)
            return None
        self._pulled = contents
        self._waiting = {metadata.message_id: (message, content)}
        return announced

    def _check_settings(
        self, content: RecordDict, config: Mapping[str, Scalar]
    ) -> list[tuple[Attempts, object]]:
        """Return the attempts that a message's settings name, each with what they call the round.

        Raises
        ------
        RefusedByMemberError
            If the settings are others than the run config's, or an attempt does not follow.
        """
        attempts: list[tuple[Attempts, object]] = []
        for record in records_of(content, ConfigRecord).values():
            if CONFIG_KEY in record or RUN_ID_KEY in record:
                attempts.append((self.attempts.check(record, config), record.get(ROUND_KEY)))
            if CONFIG_KEY in record:  # This project's app goes by the settings in there.
                settings = told_config(record)
                if PROXIMAL_KEY in record:  # Beside the others, as Flower has it.
                    settings[f"fedprox.{PROXIMAL_KEY}"] = record[PROXIMAL_KEY]
                self.policy.runs.check_told(settings, config)
        return attempts

    def _check_terms(self, content: RecordDict, config: Mapping[str, Scalar]) -> None:
        """Raise RefusedByMemberError unless a round is masked, signed and receipted as agreed.

        The app learns by the message, not from the run config, which of these a round is, and the
        server writes each message anew.
        """
        settings = records_of(content, ConfigRecord).get("config", ConfigRecord())
        terms = terms_of(settings)
        promised = terms.keys() & {*self.policy.runs.config, *config}
        self.policy.runs.check_terms({key: terms[key] for key in promised}, config)

    def _admit(self, run_id: int) -> Mapping[str, Scalar]:
        """Return a run's config; RefusedByMemberError unless the member takes part in it."""
        apps = self.policy.apps
        run = self._runs.get(run_id)
        if run is None:
            # Flower keeps run configs and apps' states by series: another series' would come past
            # the policy.
            run = replace(self.connection.get_run(run_id), run_id=run_id, series_id=run_id)
        get_fab = partial(self.connection.get_fab, run.fab_hash, run_id)
        if not apps.approval(run.fab_hash):
            apps.keep_refused(run.fab_hash, lambda: get_fab().content)
            raise RefusedByMemberError(
                f"this member has not approved app {run.fab_hash}; there: fedif app approve "
                f"{run.fab_hash[:12]}"
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
        """Fetch the objects of a message, which are what their names say."""
        # Each once: an object may lie in several places of the tree.
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
        """Send an app's reply as the policy allows; return that nothing is left to be sent."""
        waiting = self._waiting.pop(message.metadata.reply_to_message_id, None)
        if waiting is None:
            logger.warning("run %d: a reply to no message: not sent", message.metadata.run_id)
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
                content = self.leaves.check(
                    received, offered, metadata.run_id, metadata.message_type
                )
                note_sent = self.replies.sign(received, content)
                reply = Message(content, reply_to=question)
            contents = _in_pieces(reply)
            self._note("out", question, reply.metadata.message_id, contents)
        except Exception as error:  # whatever an app sends, the SuperNode goes on
            self._refuse("out", question, error)
            return set(), ""
        if note_sent is not None:
            note_sent()
        self._push(reply, contents, seconds)
        return set(), ""

    def _whole_contents(self, tree: Any) -> dict[str, bytes]:
        """Return the objects of a reply once the app has sent all of them."""
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
        """Send a reply, and those of its objects that the SuperLink does not have yet."""
        missing, session = self.connection.send(reply, objects.get_object_tree(reply), seconds)
        transport.push_object_contents_from_iterable(
            ((name, content) for name, content in contents.items() if name in missing),
            partial(self.connection.push_object, reply.metadata.run_id, session),
        )

    # -- both -------------------------------------------------------------------------------------

    def _refuse(self, direction: str, question: Message, error: Exception) -> None:
        """Answer a message with an error that says why, and with nothing else."""
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
        except Exception as failure:  # as Flower does where a reply cannot be sent
            logger.error("run %d: the refusal was not sent: %r", run_id, failure)

    def _note(
        self,
        direction: str,
        question: Message,
        digest: str,
        contents: Mapping[str, bytes],
        refusal: str = "",
    ) -> None:
        """Write a line of the log; ``refusal`` is why the message was refused, if it was."""
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
    """Return why a message was refused, with nothing that an app wrote, and no path."""
    if isinstance(error, RefusedByMemberError):
        return error.told
    if isinstance(error, StorageError):
        return "this member cannot write what its policy asks it to keep; is its disk full?"
    if direction == "in":
        return "the message cannot be read"
    return "the reply of the app cannot be read"


def _round_number(told: object) -> int:
    """Return the round that a message is of, or raise RefusedByMemberError: it says none.

    A round that cannot be compared could be asked again until the server likes it.
    """
    if not isinstance(told, int) or isinstance(told, bool):
        raise RefusedByMemberError(
            f"{ROUND_KEY} = {printable(repr(told), 40)}; allowed: an integer in a message that "
            "asks for an update in an attempt at a run"
        )
    return told


def terms_of(settings: ConfigRecord) -> dict[str, Scalar]:
    """Return what a round's message says of masks and evidence, by run-config key.

    Raises
    ------
    ValueError
        If it names terms of masking that are none.
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
    """Return a message's objects as they are sent, with its id in its metadata."""
    with objects.no_object_id_recompute():
        message.metadata.__dict__["_message_id"] = message.object_id
        nested = objects.get_all_nested_objects(message)
        return {name: part.deflate() for name, part in nested.items()}


def _read_message(announced: Message, contents: dict[str, bytes]) -> RecordDict:
    """Return a message's content; the message must be the one that was announced."""
    # The app goes by what is inside, the policy by what was announced.
    message_id = announced.metadata.message_id
    message = transport.inflate_object_from_contents(
        message_id, contents, keep_object_contents=True
    )
    compared = attrgetter("run_id", "dst_node_id", "message_type", "group_id")
    expected = compared(announced.metadata)
    if not isinstance(message, Message) or compared(message.metadata) != expected:
        raise RefusedByMemberError("the message is not the one that was announced")
    return message.content


def _read_content(tree: Any, contents: dict[str, bytes]) -> RecordDict:
    """Return the content of a reply, whose own metadata are not believed."""
    (child,) = tree.children
    content = transport.inflate_object_from_contents(child.object_id, contents)
    if not isinstance(content, RecordDict):
        raise RefusedByMemberError("the app's reply has no records")
    return content
