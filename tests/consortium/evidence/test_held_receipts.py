"""A folder of receipts speaks for one member: the one whose lines the server signed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedif_consortium.evidence.attempts import Attempt, Attempts
from fedif_consortium.evidence.held_receipts import read_held
from fedif_consortium.evidence.receipts import RoundChain, ToldRound
from fedif_consortium.evidence.redone_rounds import not_told, redone_rounds
from fedif_consortium.evidence.signed import SignedUpdate
from fedif_flower.errors import StatementError

RUN = 32 * "a"
ATTEMPTS = Attempts(name="october", attempts=(Attempt(run=RUN, config=64 * "b"),) * 2)
ADA, BOB = 1, 2


@pytest.fixture
def chain() -> RoundChain:
    """Rounds 1 and 2, and round 2 once more after a resume: ada and bob have a line in each."""
    key = Ed25519PrivateKey.generate()
    chain = RoundChain()
    for number, attempt, update in ((1, 1, "a"), (2, 1, "b"), (2, 2, "c")):
        lines = [f"{number},{who},{64 * update},0.5,0.1,0.1,accepted" for who in (ADA, BOB)]
        about = {"run": RUN, "number": number, "rows": 32 * b"r"}
        about |= {"origin": 32 * b"o", "state": 32 * b"s"}
        about |= ATTEMPTS.agreed(attempt).terms()
        chain.add(ToldRound.by(key, **chain.next(lines, **about)))
    return chain


@pytest.fixture
def bobs(chain, tmp_path) -> Path:
    """What bob kept of round 2 as it was done again."""
    folder = tmp_path / "bob" / RUN
    folder.mkdir(parents=True)
    put(folder, "round-000000000006.json", chain.rounds[-1].for_member(BOB).cells())
    return folder


def put(folder: Path, name: str, content: dict[str, Any]) -> None:
    (folder / name).write_text(json.dumps({"run": RUN, **content}))


def unsigned(node_id: int) -> dict[str, Any]:
    """Return what a member without a guard writes down of an update, in a round far away."""
    agreed = ATTEMPTS.agreed(1).model_dump(mode="json")
    return {**agreed, "round": 999, "node_id": node_id, "sent": "00"}


def signed_with_a_key_of_its_own(node_id: int) -> dict[str, Any]:
    """Return an update that somebody signed in another member's name."""
    said = {"asked_in": 999, "node_id": node_id, "examples": 1.0}
    said |= {"run": RUN, "received": 32 * b"r", "sent": 32 * b"s", **ATTEMPTS.agreed(1).terms()}
    signed = SignedUpdate.by(Ed25519PrivateKey.generate(), **said)
    return {**signed.cells(), "round": 999, "node_id": node_id}


def missing(chain: RoundChain, folder: Path) -> dict[int, set[int]]:
    """Return who has nothing that covers a round that was done again."""
    held = read_held(folder.parent, RUN, "october")
    return dict(not_told(redone_rounds(chain), chain, [held], {}))


def test_a_members_lines_cover_its_own_part_of_a_round_that_was_done_again(chain, bobs):
    assert missing(chain, bobs) == {2: {ADA}}
    put(bobs, "sent-000999-00000000-1.json", unsigned(BOB))
    assert missing(chain, bobs) == {2: {ADA}}


@pytest.mark.parametrize("content", [unsigned(ADA), signed_with_a_key_of_its_own(ADA)])
def test_a_file_in_another_members_name_is_refused(chain, bobs, content):
    put(bobs, "sent-000999-00000000-1.json", content)
    words = "sent-000999.* is of client 1, and a file beside it of client 2"
    with pytest.raises(StatementError, match=words):
        missing(chain, bobs)


@pytest.mark.parametrize("moved_to", [998, 1000])
def test_an_update_is_of_the_round_that_was_signed(bobs, moved_to):
    """Else a member accuses the records of a round in which it sent nothing."""
    content = signed_with_a_key_of_its_own(BOB)
    path = bobs / "sent-000999-00000000-1.json"
    put(bobs, path.name, content)
    assert read_held(bobs.parent, RUN, "october").sent.keys() == {(1, 999)}
    put(bobs, path.name, {**content, "round": moved_to})
    with pytest.raises(StatementError, match=f"was changed: .*round {moved_to} is not the one"):
        read_held(bobs.parent, RUN, "october")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"key": None}, "key is missing"),
        ({"examples": "many"}, "examples = 'many': "),
        ({"run": None}, "'run' is missing"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_in_a_line(bobs, content, words):
    values = {"run": RUN, **signed_with_a_key_of_its_own(BOB), **content}
    values = {name: value for name, value in values.items() if value is not None}
    path = bobs / "sent-000999-00000000-1.json"
    path.write_text(json.dumps(values))
    with pytest.raises(StatementError, match=f"^{path} was changed: {words}") as caught:
        read_held(bobs.parent, RUN, "october")
    assert "\n" not in str(caught.value)


def test_another_members_line_is_refused(chain, bobs):
    """Who has the records knows all lines: each leads to the same head."""
    put(bobs, "round-000000000004.json", chain.rounds[1].for_member(ADA).cells())
    with pytest.raises(StatementError, match=r"000006.json is of client 2, and .* of client 1"):
        missing(chain, bobs)


@pytest.mark.parametrize("content", [unsigned(ADA), signed_with_a_key_of_its_own(ADA)])
def test_heads_without_a_line_cover_nobody(chain, bobs, content):
    """Bob leaves his lines out, and says that the heads are ada's."""
    nobodys = chain.rounds[-1].for_member(9)
    put(bobs, "round-000000000006.json", nobodys.cells())
    put(bobs, "sent-000999-00000000-1.json", content)
    assert missing(chain, bobs) == {2: {ADA, BOB}}


def test_a_decoy_of_another_name_hides_no_attempt(chain, bobs):
    """The server calls the rehearsal otherwise in a message of its own choice."""
    key = Ed25519PrivateKey.generate()
    other = 32 * "d"
    rehearsal = bobs.parent / other
    rehearsal.mkdir()
    hidden = Attempts(name="october", attempts=(Attempt(run=other, config=64 * "b"),))
    about = {"run": other, "number": 1, "rows": 32 * b"r"}
    about |= {"origin": 32 * b"o", "state": 32 * b"s"}
    about |= {**hidden.agreed(1).terms(), "name": "decoy"}
    decoys = RoundChain()
    decoys.add(ToldRound.by(key, **decoys.next([], **about)))
    sent = {**hidden.agreed(1).model_dump(mode="json"), "round": 1, "node_id": BOB, "sent": "00"}
    for name, content in (("round-1.json", decoys.rounds[0].cells()), ("sent-1.json", sent)):
        (rehearsal / name).write_text(json.dumps({"run": other, **content}))
    held = read_held(bobs.parent, RUN, "october")
    assert {(seen.run, seen.number) for seen in held.attempts} == {(RUN, 2), (other, 1)}
