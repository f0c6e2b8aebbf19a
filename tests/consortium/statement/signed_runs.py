"""Small runs whose members sign, and what a dishonest server does to their records."""

from __future__ import annotations

import csv
import math
import shutil
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from flwr.app import Context, Message

from client_app import app as client_app
from fedif_consortium.evidence.attempts import Attempt, Attempts, read_attempts
from fedif_consortium.evidence.bound_rows import origin_of, rows_by_round, state_of
from fedif_consortium.evidence.keys import SigningKey, read_key_file
from fedif_consortium.evidence.part import read_chain, run_id
from fedif_consortium.evidence.receipts import LEAF, RoundChain, ToldRound, round_leaves
from fedif_consortium.federation.records import public_line
from fedif_consortium.member.own_replies import OwnReplies, app_config
from fedif_consortium.member.runs import is_round
from fedif_consortium.parts import run_parts
from fedif_flower.run.config import RunConfig
from fedif_flower.run.federation import run_federation
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.record_files import Table
from fedif_flower.runtime.local_grid import ClientCall, LocalGrid
from tests.run.resuming import run_config

NAMES = ("ada", "bob", "cyd")
ROUNDS = 3


class NamedGrid(LocalGrid):
    """A LocalGrid whose nodes have names, as an operator gives them."""

    def get_nodes(self):
        names = dict(zip(self.get_node_ids(), NAMES, strict=True))
        return [SimpleNamespace(node_id=i, name=n, public_key=b"") for i, n in names.items()]


def write_keys(folder: Path) -> Path:
    """Write ``NAME`` and ``NAME.pub`` for each member; the last one's is Ed25519."""
    folder.mkdir(parents=True)
    for name in NAMES:
        is_last = name == NAMES[-1]
        key = Ed25519PrivateKey.generate() if is_last else ec.generate_private_key(ec.SECP384R1())
        private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        (folder / name).write_bytes(private)
        (folder / f"{name}.pub").write_text(public_line(key, name))
    return folder


def guarded(client: ClientCall, keys: Mapping[int, SigningKey]) -> ClientCall:
    """Return a client whose guard signs at the nodes that have keys, by partition."""
    guards: dict[int, OwnReplies] = {}

    def answer(message: Message, context: Context) -> Message:
        key = keys.get(int(context.node_config["partition-id"]))
        if key is None:
            return client(message, context)
        config = dict(context.node_config)
        own = guards.setdefault(context.node_id, OwnReplies(context.node_id, config, key))
        begins_round = is_round(message.metadata.message_type)
        own.take(message.content, is_round=begins_round)
        reply = client(message, replace(context, node_config=app_config(config, "")))
        note_sent = own.sign(message.content, reply.content, is_round=begins_round)
        if note_sent is not None:
            note_sent()
        return reply

    return answer


def nodes(keys: Path, signing=NAMES, **more) -> NamedGrid:
    own = {i: read_key_file(keys / name, name) for i, name in enumerate(NAMES) if name in signing}
    client = guarded(more.pop("client", client_app), own)
    return NamedGrid(client, len(NAMES), node_configs=more.pop("configs", {}), **more)


def config(output_dir: Path, **overrides) -> RunConfig:
    own = {"num_clients": len(NAMES), "fraction_train": 1.0, "num_server_rounds": ROUNDS}
    own |= {"attack": "none", "attribution": "trapezoid", "checkpoint_every": 0}
    return run_config(output_dir, **{**own, **overrides})


def run(grid: LocalGrid, output_dir: Path, on_row=None, parts=None, **overrides) -> Path:
    """Run a federation and return its folder."""
    settings = config(output_dir, **overrides)
    return run_federation(grid, settings, on_row, parts=parts or run_parts())


def copied(run_dir: Path, target: Path) -> Path:
    """Return a copy of a run without its statement."""
    shutil.copytree(run_dir, target, ignore=shutil.ignore_patterns("statement"))
    return target


def rewrite(table: Table, change) -> None:
    """Let a server rewrite a table: ``change`` takes and returns its lines."""
    before = table.read()
    after = change(before)
    columns = (after or before)[0].keys()
    rows = [columns, *(row.values() for row in after)]
    with table.path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def altered(where: Mapping[str, str], **values: str):
    """Return what gives lines other values, where they have those of ``where``."""
    return lambda rows: [{**row, **values} if where.items() <= row.items() else row for row in rows]


def without(**where: str):
    """Return what leaves out the lines that have these values."""
    return lambda rows: [row for row in rows if not where.items() <= row.items()]


def without_columns(*names: str):
    """Return what leaves columns out of every line."""
    return lambda rows: [
        {name: value for name, value in row.items() if name not in names} for row in rows
    ]


def swapped(column: str, one: str, other: str):
    """Return what swaps two values of a column."""
    to = {one: other, other: one}
    return lambda rows: [{**row, column: to.get(row[column], row[column])} for row in rows]


def leaves_of_records(run: RunFolder) -> dict[int, list[str]]:
    """Return each round's leaves as the records give them, whatever they were."""
    updates = {(r["round"], r["client_id"]): r["update"] for r in run.receipts.read()}
    lines, due = defaultdict(list), defaultdict(dict)
    for row in run.clients.read():
        update = updates.get((row["round"], row["client_id"]), "")
        line = (row["client_id"], update, row["weight"], row["status"])
        lines[int(row["round"])].append(line)
    for row in run.attribution.read():
        due[int(row["round"])][row["client_id"]] = row["contribution"], row["credited"]
    rounds = [int(row["round"]) for row in run.attributed_rounds.read()]
    return {number: round_leaves(number, lines[number], due[number]) for number in rounds}


def bind_anew(
    run: RunFolder, key, *, attempt: int = 1, again: bool = False, from_round: int = 1
) -> None:
    """Let a server bind its records as they are now: leaves, heads and all hashes.

    Parameters
    ----------
    run : RunFolder
        The run.
    key : Ed25519PrivateKey
        Signs the heads.
    attempt : int
        The attempt that they name.
    again : bool
        Whether the rounds come behind those that members were told, as after a resume.
    from_round : int
        The first round that is bound anew; those before it stay as members were told.
    """
    leaves = leaves_of_records(run)
    chain = RoundChain()
    if again or from_round > 1:
        for told in read_chain(run, run_id(run)).rounds:
            if again or told.number < from_round:
                chain.add(told)
    last = max(leaves)
    rows = rows_by_round(run, last)
    # Names and own parts were others after each round; the last ones count.
    states = {int(row["round"]): bytes.fromhex(row["state"]) for row in run.round_heads.read()}
    states[last] = state_of(run)
    attempts = read_attempts(run.provenance.read())
    for number, own in leaves.items():
        if number < from_round:
            continue
        about = {"run": run_id(run), **attempts.agreed(attempt).terms()}
        about |= {"number": number, "rows": rows[number]}
        about |= {"origin": origin_of(run), "state": states[number]}
        chain.add(ToldRound.by(key, **chain.next(own, **about)))
    every = [leaf for one in chain.rounds for leaf in one.own.values()]
    run.receipts.path.write_text("".join(f"{line}\n" for line in [",".join(LEAF), *every]))
    run.round_heads.replace({"round": one.number, **one.cells()} for one in chain.rounds)


def declare_attempt(run: RunFolder) -> int:
    """Let a server say that the run was resumed once more; return the attempt's number."""
    provenance = run.provenance.read()
    before = read_attempts(provenance)
    last = Attempt(run=run_id(run), config=before.last.config)
    attempts = Attempts(name=before.name, attempts=(*before.attempts, last))
    run.provenance.write({**provenance, "attempts": attempts.model_dump(mode="json")})
    return attempts.number


def pay_otherwise(run: RunFolder, factors: Mapping[str, float]) -> None:
    """Multiply what members contributed, by client id, so that all tables fit each other."""

    def scaled(rows):
        for row in rows:
            factor = factors[row["client_id"]]
            names = [n for n in row if n == "credited" or n.startswith("contribution")]
            yield row | {n: repr(float(row[n]) * factor) for n in names}

    rewrite(run.attribution, lambda rows: list(scaled(rows)))
    sums = defaultdict(list)
    for row in run.attribution.read():
        sums[row["round"]].append(float(row["contribution"]))

    def totals(rows):
        for row in rows:
            attributed = math.fsum(sums[row["round"]])
            left = float(row["decrease"]) - attributed
            yield row | {"attributed": repr(attributed), "remainder": repr(left)}

    rewrite(run.attributed_rounds, lambda rows: list(totals(rows)))
