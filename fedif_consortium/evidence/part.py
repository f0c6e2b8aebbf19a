"""The server's side of evidence: signatures of updates, attempts at a run, and receipts.

With receipts, the run's records become a chain of rounds, and each message tells a member of the
rounds that are new to it (:mod:`~fedif_consortium.evidence.receipts`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import ConfigRecord
from flwr.serverapp import Grid

from fedif_consortium.evidence.attempts import (
    ATTEMPTS_KEY,
    AUTO_NAME,
    HOW_IT_BEGINS,
    NOT_COUNTED,
    Attempts,
    Ledger,
    agreed_name,
    config_hash,
    next_attempt,
    read_attempts,
)
from fedif_consortium.evidence.bound_rows import (
    RUN_CONFIG,
    EndTable,
    GrowingRows,
    origin_of,
    state_now,
)
from fedif_consortium.evidence.keys import public_der, read_public_key
from fedif_consortium.evidence.member_receipts import SIGNATURES_KEY
from fedif_consortium.evidence.receipts import LEAF, RoundChain, ToldRound, round_leaves
from fedif_consortium.evidence.reply_witness import ReplyWitness
from fedif_consortium.evidence.signed import first_error
from fedif_flower.attribution.callback import PathAttribution
from fedif_flower.attribution.records import RoundAttribution
from fedif_flower.errors import ConfigError, EvidenceError, require
from fedif_flower.foreign import read_whole
from fedif_flower.messages.client_node import ClientNode
from fedif_flower.messages.instructions import RECEIPTS_KEY
from fedif_flower.messages.text import printable
from fedif_flower.run.config import RunConfig
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.own_sections import UpdatesSettings
from fedif_flower.run.part import Built, RunContext, RunPart
from fedif_flower.run.provenance import RUN_ID
from fedif_flower.run.rows import cell, csv_text
from fedif_flower.server.nodes import is_simulated
from fedif_flower.server.record import Round
from fedif_flower.server.run import Callback, RunningStrategy
from fedif_flower.settings import Scalar, Settings, in_section, setting
from fedif_flower.storage import append_line, write_atomically

logger = logging.getLogger(__name__)


class EvidenceSettings(Settings, alias_generator=in_section("evidence")):
    """Whether members have to sign their updates, and whether they get receipts."""

    require_signatures: bool = setting(
        False,
        "a reply that its member did not sign is refused: each node needs a guard, which "
        "signs ([receipts](consortium.md))",
    )
    receipts: bool = setting(
        False,
        "with `attribution`, where clients are real nodes: each gets receipts for its own lines of "
        "the records, by which it sees whether they are rewritten later",
        changes_result=False,
    )


class Evidence(RunPart):
    """Checks and records members' signatures; with ``evidence.receipts``, members get receipts.

    Parameters
    ----------
    head_key : callable, optional
        Returns the key that signs heads. If it is ``None``, no run can have receipts.
    """

    settings = EvidenceSettings

    def __init__(self, head_key: Callable[[], Ed25519PrivateKey] | None = None) -> None:
        self._head_key = head_key

    def fits(self, config: RunConfig) -> None:
        """Raise ConfigError for receipts without attribution: they are made of contributions."""
        if config.section(EvidenceSettings).receipts:
            is_attributed = config.attribution != "off"
            require(is_attributed, "evidence.receipts", True, "false with attribution = 'off'")

    def build(self, run: RunContext) -> Built:
        """Return the callbacks that check signatures, count the attempt and give receipts.

        Raises
        ------
        ConfigError
            If signatures or receipts are set where clients are simulated, or a run that goes on
            does not fit its earlier attempts.
        """
        settings = run.config.section(EvidenceSettings)
        if settings.require_signatures and is_simulated(run.grid):
            raise ConfigError(
                "evidence.require-signatures = True; allowed: false where clients are simulated, "
                "since none of them has a guard that signs"
            )
        before = run.folder_before
        ledger = Ledger(run.folder.path.parent)
        attempts: Attempts | None = None  # A simulation's attempts are not counted.
        if not is_simulated(run.grid):
            attempts = _next_attempt(run, before, ledger)
        chain = RoundChain()
        if settings.receipts and before is not None:
            chain = read_chain(before, run.run_id, attempts)
            # No round follows whose head could bind other settings.
            if chain.rounds and run.is_done:
                _require_told_settings(run.config, before)
        witness = _witness(run, settings, attempts, chain)
        instructions: dict[str, Scalar] = {
            RECEIPTS_KEY: settings.receipts,
            SIGNATURES_KEY: settings.require_signatures,
        }
        provenance: dict[str, Any] = {}
        callbacks: list[Callback] = [witness]
        if attempts is not None:
            callbacks.append(BegunAttempt(ledger, attempts))
            instructions[ATTEMPTS_KEY] = attempts.model_dump_json()
            provenance[ATTEMPTS_KEY] = attempts.model_dump(mode="json")
            provenance[RUN_CONFIG] = dict(run.run_config)
        if settings.receipts:
            callbacks.append(self._receipt_book(run, witness, chain))
        stays = []
        if chain.rounds:
            stays = [run.folder.receipts.path, run.folder.round_heads.path]
        return Built(
            setup={"look": witness.look},
            instructions=instructions,
            callbacks=callbacks,
            state={"signatures": witness},
            provenance=provenance,
            stays=stays,
            copies=_kept_replies(run, settings),
        )

    def _receipt_book(
        self, run: RunContext, witness: ReplyWitness, chain: RoundChain
    ) -> ReceiptBook:
        """Return the callback that gives receipts; it adds each round once it is attributed."""
        attribution = run.find(PathAttribution)
        if self._head_key is None or attribution is None or is_simulated(run.grid):
            raise ConfigError(
                "evidence.receipts = True; allowed: false where clients are simulated"
            )
        rows = GrowingRows(run.folder, run.done)
        book = ReceiptBook(run.folder, witness, self._head_key(), chain, rows)
        attribution.on_attribution.append(book.add_round)
        return book


def _require_told_settings(config: RunConfig, before: RunFolder) -> None:
    """Raise ConfigError if settings differ from those of the run's folder, which the head binds.

    It is for a run whose last round is done, so that no head of other settings can follow.
    """
    told_settings = before.config.read_if_there()
    changed = {}
    for key, value in config.to_mapping().items():
        if key in HOW_IT_BEGINS:
            continue
        if told_settings.get(key, value) != value:
            changed[key] = value
    if changed:
        allowed = {key: told_settings[key] for key in changed}
        raise ConfigError(
            f"{_shown(changed)}: every round is done, and members were told of other settings; "
            f"allowed: {_shown(allowed)}"
        )


def _shown(settings: Mapping[str, Any]) -> str:
    """Return settings as a text for error messages."""
    return ", ".join(f"{key} = {value!r}" for key, value in settings.items())


def _witness(
    run: RunContext, settings: EvidenceSettings, attempts: Attempts | None, chain: RoundChain
) -> ReplyWitness:
    """Return the witness that checks the signature of each reply of a run."""
    agreed = NOT_COUNTED
    if attempts is not None:
        agreed = attempts.agreed(attempts.number)
    return ReplyWitness(
        run.folder,
        run.run_id,
        agreed=agreed,
        heads=chain.sizes,
        late_rounds=run.config.pace.pace().late_rounds,
        registered=lambda: registered_keys(run.grid),
        required=settings.require_signatures,
        digests=settings.receipts,
        keeps=run.config.section(UpdatesSettings).keep,
    )


def _kept_replies(run: RunContext, settings: EvidenceSettings) -> int:
    """Return how many signed replies will be kept at most, if all replies have to be signed.

    If signing is up to each member, the number is not known, and this returns 0.
    """
    keeps_updates = run.config.section(UpdatesSettings).keep
    if not keeps_updates or not settings.require_signatures:
        return 0
    rounds_left = run.config.num_server_rounds - run.done
    return rounds_left * run.config.most_replies


def _next_attempt(run: RunContext, before: RunFolder | None, ledger: Ledger) -> Attempts:
    """Return all attempts at a run, the present one last.

    Parameters
    ----------
    run : RunContext
        The run before its first round.
    before : RunFolder, optional
        The folder of the attempt from which it goes on.
    ledger : Ledger
        The attempts at all runs of the ``output-dir``.

    Raises
    ------
    ConfigError
        If the run that goes on had another name, which its members signed; or too many attempts
        were made.
    """
    name = agreed_name(run.run_config)
    earlier: Attempts | None = None
    if before is not None and before.provenance.path.exists():
        earlier = read_attempts(before.provenance.read())
    if earlier is not None and earlier.name != name:
        if name.startswith(AUTO_NAME) and earlier.name.startswith(AUTO_NAME):
            # Automatic names follow from the run config. A run that goes on may change settings on
            # which no result depends, and keeps its name.
            name = earlier.name
        else:
            raise ConfigError(
                f"run-name = {name!r}: the run that goes on is called {earlier.name!r}, which its "
                "members signed; allowed: that name"
            )
    attempts_before = [ledger.before(name)]
    if earlier is not None:
        attempts_before.append(earlier.attempts)
    return next_attempt(name, config_hash(run.run_config), run.run_id, attempts_before)


class BegunAttempt(Callback):
    """Records an attempt in the ledger before any client is asked to train in it.

    Parameters
    ----------
    ledger : Ledger
        The record of attempts.
    attempts : Attempts
        All attempts so far, the present one last.
    """

    def __init__(self, ledger: Ledger, attempts: Attempts) -> None:
        self._ledger = ledger
        self._attempts = attempts

    def on_start(self, strategy: RunningStrategy) -> None:  # noqa: ARG002
        """Write the attempt into the ledger."""
        self._ledger.add(self._attempts)
        if self._attempts.number > 1:
            words = "attempt %d at run %s; members are told of those before"
            logger.info(words, self._attempts.number, self._attempts.name)


class ReceiptBook(Callback):
    """Adds each round to the chain once it is attributed, and sends members their receipts.

    The chain only grows, and its files are on the disk before a member is told of a round. If a run
    goes on from a checkpoint, rounds that are done again are added behind the rounds of which
    members have receipts.

    Parameters
    ----------
    folder : RunFolder
        The run's folder.
    witness : ReplyWitness
        Provides the digests of the round's replies.
    key : Ed25519PrivateKey
        The key that signs heads.
    chain : RoundChain
        The rounds of earlier attempts, to which rounds are added.
    rows : GrowingRows
        Hashes the rows that the run's tables have of each round.
    """

    def __init__(
        self,
        folder: RunFolder,
        witness: ReplyWitness,
        key: Ed25519PrivateKey,
        chain: RoundChain,
        rows: GrowingRows,
    ) -> None:
        self._folder = folder
        self._witness = witness
        self._key = key
        self._chain = chain
        self._rows = rows
        self._ends: list[EndTable] = []
        # For each round that is not attributed yet, the lines of its leaves, see round_leaves.
        self._waiting: dict[int, list[tuple[str, str, str, str]]] = {}
        self._seen: dict[int, bytes] = {}  # The last head that each client has signed.

    def on_start(self, strategy: RunningStrategy) -> None:
        """Write the rounds of earlier attempts again, without what a crash left half written."""
        self._ends = [end for end in strategy.callbacks if isinstance(end, EndTable)]
        if self._chain.rounds:
            lines = [",".join(LEAF)]
            for told_round in self._chain.rounds:
                lines.extend(told_round.own.values())
            text = "".join(f"{line}\n" for line in lines)  # The very bytes that were hashed.
            write_atomically(self._folder.receipts.path, text)
            self._folder.round_heads.replace(map(_head, self._chain.rounds))

    def enclose(self, node: ClientNode) -> Mapping[str, ConfigRecord]:
        """Return the receipts for the rounds that are new to the node."""
        return self._chain.receipts_for(node.client_id, self._seen.get(node.client_id, b""))

    def on_round(self, report: Round) -> None:
        """Keep what became of each member of the round, until the round is attributed."""
        lines = []
        replies = dict(self._witness.seen)
        for client in report.clients:
            client_id = client.node.client_id
            update = ""
            # pop, since a node's second line, of a refused second reply, has no update.
            reply = replies.pop(client.node.node_id, None)
            if reply is not None:
                update = reply.digest.hex()
                if reply.signed is not None:
                    self._seen[client_id] = reply.signed.head
            weight = str(cell(client.weight))
            lines.append((str(client_id), update, weight, str(client.status)))
        self._waiting[report.round] = lines

    def add_round(self, attribution: RoundAttribution) -> None:
        """Add a round to the chain and its files, now that its contributions are known.

        The leaves are written first and the head last: leaves without a head were told to no
        member, and :func:`read_chain` ignores them.
        """
        attributed = {}
        for client in attribution.clients:
            cells = (str(cell(client.contribution)), str(cell(client.credited)))
            attributed[str(client.client_id)] = cells
        server_round = attribution.server_round
        lines = self._waiting.pop(server_round, [])
        leaves = round_leaves(server_round, lines, attributed)
        receipts = self._folder.receipts
        heads = self._folder.round_heads
        if not self._chain.rounds:
            receipts.begin()
            heads.begin()
        about = {
            "run": self._witness.run,
            **self._witness.agreed.terms(),
            "number": server_round,
            "rows": self._rows.hash_until(server_round),
            "origin": origin_of(self._folder),
            "state": state_now(self._folder, self._ends),
        }
        told_round = ToldRound.by(self._key, **self._chain.next(leaves, **about))
        append_line(receipts.path, "\n".join(leaves))
        head = _head(told_round)
        head_cells = [head.get(column) for column in heads.columns]
        append_line(heads.path, csv_text([head_cells]).rstrip())
        self._chain.add(told_round)


def _head(told_round: ToldRound) -> dict[str, object]:
    return {"round": told_round.number, **told_round.cells()}


def read_chain(folder: RunFolder, run: str, attempts: Attempts | None = None) -> RoundChain:
    """Return the chain in a run's folder; without rounds if the folder has no receipts.

    Signatures and hashes of the heads are not checked. Leaves behind the last head are left out,
    and so is a last head that is not whole: no member was told of these.

    Parameters
    ----------
    folder : RunFolder
        The run's folder.
    run : str
        The run's id.
    attempts : Attempts, optional
        The attempts at the run. ``None``: ``provenance.json`` has them, which may not be so if the
        run was killed while it began its records anew.

    Raises
    ------
    ConfigError
        If a line is no head, or an earlier version wrote it, whose heads name no attempt.
    """
    path = folder.round_heads.path
    heads = folder.round_heads.read()
    if heads and not read_whole(path).endswith(b"\n"):
        # The host went down while the last head was written, so no member was told of it. It still
        # counts if only the newline is missing.
        try:
            chain = _chain_of(heads, folder, run, attempts)
            chain.rounds[-1].check()
        except (ConfigError, EvidenceError):
            return _chain_of(heads[:-1], folder, run, attempts)
    return _chain_of(heads, folder, run, attempts)


def _chain_of(
    heads: Sequence[Mapping[str, str]], folder: RunFolder, run: str, attempts: Attempts | None
) -> RoundChain:
    """Return the chain that the lines of ``round_heads.csv`` make, see :func:`read_chain`."""
    chain = RoundChain()
    if not heads:
        return chain
    path = folder.round_heads.path
    try:
        if attempts is None:
            attempts = read_attempts(folder.provenance.read())
        if attempts is None or "attempt" not in heads[0]:
            raise ConfigError(
                f"{path} was written by an earlier version of fedif-flower, whose heads name no "
                "attempt at a run: use that version"
            )
        if folder.receipts.header() not in ([], list(LEAF)):
            raise ConfigError(f"{folder.receipts.path} has other columns than {', '.join(LEAF)}")
        lines = [",".join(row.values()) for row in folder.receipts.read()]
        for head in heads:
            leaves = lines[chain.sizes[chain.root] : int(head["size"])]
            if not leaves:
                raise ValueError(f"receipts.csv has no line of round {head['round']}")
            about = {
                "run": run,
                **attempts.agreed(int(head["attempt"])).terms(),
                "number": int(head["round"]),
                "rows": bytes.fromhex(head["rows"]),
                "origin": bytes.fromhex(head["origin"]),
                "state": bytes.fromhex(head["state"]),
            }
            computed = chain.next(leaves, **about)
            # The head's own values replace the computed ones. A check of the chain compares both.
            chain.add(ToldRound.read(run, {**computed, **head}))
    except (OSError, KeyError, ValueError, TypeError, EvidenceError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{path}: {printable(first_error(error))}") from error
    return chain


def last_receipts(
    folder: RunFolder, client_ids: Iterable[int]
) -> dict[int, dict[str, ConfigRecord]]:
    """Return members' receipts at the end of a run, by client id, as records of a message."""
    chain = read_chain(folder, run_id(folder))
    last_seen: dict[int, bytes] = {}
    for row in folder.signatures.read():
        last_seen[int(row["client_id"])] = bytes.fromhex(row["head"])
    receipts = {}
    for client_id in client_ids:
        seen = last_seen.get(client_id, b"")
        receipts[client_id] = chain.receipts_for(client_id, seen)
    return receipts


def registered_keys(grid: Grid) -> dict[int, bytes]:
    """Return the public keys (DER) that nodes log in with, by node id."""
    keys = {}
    for node in grid.get_nodes():
        if node.public_key:
            key = read_public_key(node.public_key, f"node {node.node_id}'s key")
            keys[node.node_id] = public_der(key)
    return keys


def run_id(folder: RunFolder) -> str:
    """Return a run's id, which its members sign, by ``provenance.json``; empty if it has none."""
    return str(folder.provenance.read().get(RUN_ID, ""))
