from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from unittest.mock import patch

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedif_consortium.evidence.dsse import Envelope
from fedif_consortium.evidence.keys import SigningKey, fingerprint
from fedif_consortium.statement.bundle import make_statement, read_account
from fedif_consortium.statement.manifest import (
    ACCOUNT,
    ENVELOPE,
    PAYLOAD_TYPE,
    file_hash,
    read_signed,
    statement_of,
)
from fedif_consortium.statement.verify import verify
from fedif_flower.errors import ConfigError, FedIFError, StatementError
from fedif_flower.run.folder import RunFolder
from tests.consortium.statement.runs import make_run
from tests.consortium.statement.signed_runs import altered, rewrite, without


def sign_again(run_dir: Path, key: SigningKey, **changes: object) -> None:
    """Sign what is there now, as an operator who cheats would; or a manifest with changes."""
    folder = run_dir / "statement"
    manifest = read_signed(folder).statement.predicate
    files = {name: file_hash(run_dir / name) for name in manifest.files}
    changed = manifest.model_copy(update={"files": files, **changes})
    again = statement_of("model.pt", file_hash(run_dir / "model.pt"), changed)
    (folder / ENVELOPE).write_bytes(again.envelope().signed_by(key).to_bytes())


def test_what_nobody_changed_is_verified_and_another_key_is_found(copy, key):
    found = verify(copy)
    assert (found.key, found.not_here) == (fingerprint(key.public_key()), ())
    assert verify(copy, found.key.replace(" ", "")) == found
    (copy / "model.pt").unlink()
    assert verify(copy).not_here == ("model.pt",)
    (copy / "model.pt").write_bytes(b"a model")
    make_statement(copy, Ed25519PrivateKey.generate(), again=True)
    verify(copy)
    with pytest.raises(StatementError, match="signed by another key"):
        verify(copy, found.key)


@pytest.mark.parametrize("key_of", ["left_out_decrease", "left_out_harm"])
def test_a_statement_of_an_earlier_version_is_told_as_such(copy, key, key_of):
    path = copy / "statement" / "statement.json"
    told = json.loads(path.read_text())
    owner = told if key_of in told else told["members"][0]
    del owner[key_of]
    path.write_text(json.dumps(told, indent=2) + "\n")
    sign_again(copy, key)
    with pytest.raises(StatementError, match=f"no '{key_of}': another version of fedif-flower"):
        verify(copy)


def test_a_statement_is_verified_away_from_its_run(copy, tmp_path):
    """A treasurer has the folder `statement/` alone: its files are whole, the rest is not here."""
    inside = verify(copy / "statement")
    assert inside == verify(copy)
    alone = Path(shutil.copytree(copy / "statement", tmp_path / "from the operator"))
    found = verify(alone)
    assert found.key == inside.key
    assert {"attribution.csv", "model.pt", "rounds.csv"} <= set(found.not_here)
    assert not [name for name in found.not_here if name.startswith("statement/")]
    with pytest.raises(ConfigError, match="is a statement without its run; receipts are checked"):
        verify(alone, receipts=[tmp_path])
    page = alone / "members" / "001.html"
    for change, said in (
        (lambda: page.write_text("another"), "statement/members/001.html was changed"),
        (page.unlink, "statement/members/001.html is missing"),
    ):
        change()
        with pytest.raises(StatementError, match=said):
            verify(alone)
    shutil.copy(copy / "statement" / "members" / "001.html", page)
    (alone / "more.html").write_text("")
    with pytest.raises(StatementError, match=r"statement/more\.html is no part of the statement"):
        verify(alone)


def sign_flat(folder: Path, key: SigningKey, **more: str) -> None:
    """Sign a manifest in a folder, as if all that lies there were a statement without its run."""
    manifest = read_signed(folder).statement.predicate
    there = [path for path in folder.rglob("*") if path.is_file() and path.name != ENVELOPE]
    files = {f"statement/{path.relative_to(folder)}": file_hash(path) for path in there}
    changed = manifest.model_copy(update={"files": {**files, **more}})
    again = statement_of("model.pt", "00" * 32, changed)
    (folder / ENVELOPE).write_bytes(again.envelope().signed_by(key).to_bytes())


@pytest.mark.parametrize("name", ["signatures.csv", "rounds.csv", "provenance.json"])
def test_records_among_a_statement_are_not_passed_over(copy, key, name):
    """An operator moves all into one folder: else nothing but hashes of its own would be looked at.

    Whoever gives `--members` reads from the exit status that members' signatures were looked at.
    """
    for path in (copy / "statement").iterdir():
        path.rename(copy / path.name)
    (copy / "statement").rmdir()
    for path in copy.iterdir():
        if path.name in RunFolder(copy).results() and path.name != name:
            path.unlink()
    if not (copy / name).exists():
        (copy / name).write_text("round,client_id\n")
    sign_flat(copy, key)
    with pytest.raises(StatementError, match="lies beside a run's records, and belongs below them"):
        verify(copy)


def test_a_statement_alone_names_no_file_outside_of_it(copy, key, tmp_path):
    alone = Path(shutil.copytree(copy / "statement", tmp_path / "alone"))
    (tmp_path / "secret.txt").write_text("a guess")
    sign_flat(alone, key, **{"statement/../secret.txt": file_hash(tmp_path / "secret.txt")})
    with pytest.raises(StatementError, match=r"secret\.txt' in the manifest lies outside"):
        verify(alone)


def test_a_statement_of_the_later_rounds_alone_is_verified(copy, key):
    make_statement(copy, key, budget_cents=1000_00, from_round=2, contact="Ada", again=True)
    verify(copy)


@pytest.mark.parametrize("is_folder", [False, True])
def test_a_link_in_a_statement_is_refused(copy, tmp_path, is_folder):
    """What it leads to may change after it was checked, and pages behind it would be read."""
    elsewhere = tmp_path / "elsewhere"
    if is_folder:
        elsewhere.mkdir()
        (elsewhere / "page.html").write_text("another page")
    else:
        elsewhere.write_bytes((copy / "statement" / "statement.html").read_bytes())
        (copy / "statement" / "statement.html").unlink()
    link = "more" if is_folder else "statement.html"
    (copy / "statement" / link).symlink_to(elsewhere)
    with pytest.raises(StatementError, match=f"statement/{link} is a link"):
        verify(copy)


@pytest.mark.parametrize("run", ["october\n", "\x1b[2Joctober", "october\u202efdp"])
def test_a_manifest_that_a_terminal_would_obey_is_no_statement(copy, key, run):
    sign_again(copy, key, run=run)
    with pytest.raises(StatementError, match=r"manifest\.intoto\.json was changed"):
        verify(copy)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_changed_bit_of_any_file_is_found(stated, data):
    files = sorted(path for path in stated.rglob("*") if path.is_file())
    path = data.draw(st.sampled_from(files), label="file")
    content = path.read_bytes()
    at = data.draw(st.integers(0, len(content) - 1), label="byte")
    bit = 1 << data.draw(st.integers(0, 7), label="bit")
    try:
        path.write_bytes(content[:at] + bytes([content[at] ^ bit]) + content[at + 1 :])
        with pytest.raises(StatementError) as caught:
            verify(stated)
    finally:
        path.write_bytes(content)
    said = str(caught.value)
    assert path.name in said
    assert len(said.splitlines()) == 1


def edited(name: str, old: str, new: str):
    def change(run_dir: Path) -> None:
        text = (run_dir / name).read_text()
        assert old in text
        (run_dir / name).write_text(text.replace(old, new, 1))

    return change


def late_as(text: str):
    """Return what says another number of late replies in round 1."""
    return lambda run_dir: rewrite(RunFolder(run_dir).rounds, altered({"round": "1"}, late=text))


def written(name: str, content: str):
    return lambda run_dir: (run_dir / name).write_text(content)


def piped(name: str):
    def change(run_dir: Path) -> None:
        (run_dir / name).unlink(missing_ok=True)
        os.mkfifo(run_dir / name)

    return change


def more(name: str):
    """Give the first member more than the records do."""

    def change(run_dir: Path) -> None:
        path = run_dir / "statement" / "statement.json"
        account = json.loads(path.read_text())
        right = account["members"][0][name]
        account["members"][0][name] = right + (1 if isinstance(right, int) else 1e-6)
        path.write_text(json.dumps(account, indent=2) + "\n")

    return change


def credited_more(run_dir: Path) -> None:
    rewrite(RunFolder(run_dir).attribution, lambda rows: [{**rows[0], "credited": "9"}, *rows[1:]])


def without_round(number: int, *names: str):
    def change(run_dir: Path) -> None:
        for name in names:
            rewrite(getattr(RunFolder(run_dir), name), without(round=str(number)))

    return change


def cut_off(name: str):
    def change(run_dir: Path) -> None:
        lines = (run_dir / name).read_text().splitlines(keepends=True)
        (run_dir / name).write_text("".join(lines[:-1]))

    return change


def check(run_dir: Path, key: SigningKey) -> None:
    verify(run_dir)


def sign_and_check(run_dir: Path, key: SigningKey) -> None:
    sign_again(run_dir, key)
    verify(run_dir)


def remake(run_dir: Path, key: SigningKey) -> None:
    make_statement(run_dir, key, again=True)


def remake_and_check(run_dir: Path, key: SigningKey) -> None:
    remake(run_dir, key)
    verify(run_dir)


def without_a_reply(run_dir: Path) -> None:
    """Pay a friend who sent nothing that was used: it has nothing to sign."""
    run = RunFolder(run_dir)
    of_friend = {row["round"] for row in run.clients.read() if row["client_id"] == "2"}
    rewrite(run.clients, altered({"client_id": "2"}, status="refused"))

    def counted(row):
        fewer = {"accepted": str(int(row["accepted"]) - 1), "rejected": "1"}
        return {**row, **fewer} if row["round"] in of_friend else row

    rewrite(run.rounds, lambda rows: list(map(counted, rows)))


def owed(run_dir: Path, key: SigningKey) -> None:
    """Let members pay: an operator changes its own program."""
    with patch("fedif_consortium.statement.bundle.require"):
        make_statement(run_dir, key, again=True, budget_cents=-1000_00)
    verify(run_dir)


def named_stranger(run_dir: Path, key: SigningKey) -> None:
    """Say that there was a member that no record knows."""
    with patch("fedif_consortium.statement.bundle.require_members"):
        make_statement(run_dir, key, again=True, names={1: "hospital-2", 9: "eve"})
    verify(run_dir)


def untouched(_: Path) -> None:
    """Change nothing."""


def settled_on(name: str):
    """Say that the run had a setting, of which the records have nothing."""
    return edited("config.json", "{", f'{{"{name}": true,')


PAGES = "statement/members/00"
ROUNDS = ("attribution_rounds.csv", "rounds.csv")
UNEVEN = edited("attribution_rounds.csv", "0.625,0.625,0.0", "0.625,0.5,0.125")
MONEY = ("cents", "share", "credited", "contribution")
# What is changed, what the operator does then, and what is found.
TAMPERED = [
    (lambda run_dir: (run_dir / f"{PAGES}1.html").unlink(), check, f"{PAGES}1.html is missing"),
    (written(f"{PAGES}4.html", "me too"), check, f"{PAGES}4.html is no part of the statement"),
    (written("quarantine.csv", "round\n"), check, "^quarantine.csv is no part of the statement"),
    (piped("signatures.csv"), check, "no regular file"),
    (piped(f"statement/{ENVELOPE}"), check, "no regular file"),
    (written("provenance.json", 100_000 * "["), sign_and_check, "provenance.json"),
    (written("config.json", "{}"), sign_and_check, "."),
    (written("statement/statement.json", "{}"), sign_and_check, "."),
    (
        edited("statement/statement.json", "{", '{"more": 1,'),
        sign_and_check,
        "statement.json has 'more'",
    ),
    (
        without_a_reply,
        remake,
        r"client 2 has a part in round 1, and clients\.csv has no reply of it that was accepted",
    ),
    (untouched, owed, r"budget_cents = -100000; allowed: 0 or more"),
    (untouched, named_stranger, "statement.json: names: client_id 9: no such member in this run"),
    (
        settled_on("evidence.receipts"),
        remake_and_check,
        r"round_heads\.csv has no head, and the run has evidence\.receipts = True",
    ),
    (
        settled_on("evidence.require-signatures"),
        remake_and_check,
        r"round 1: .* is not signed, and the run has evidence\.require-signatures = True",
    ),
    *(
        (
            settled_on("credit.secret-validation"),
            then,
            r"no paying_commitment, and the run has credit\.secret-validation = True",
        )
        for then in (remake, sign_and_check)
    ),
    (UNEVEN, check, "attribution_rounds.csv was changed"),
    (written("model.pt", ""), remake, "model.pt holds no model"),
    (edited("rounds.csv", "round,", "number,"), remake, "rounds.csv has no column 'round'"),
    (edited("rounds.csv", ",late,", ",lat,"), remake, "rounds.csv has no column 'late'"),
    (late_as("x"), remake, r"rounds\.csv, line 3: late = 'x'; allowed: an integer"),
    (late_as(""), remake, r"rounds\.csv, line 3: late = None; allowed: an integer"),
    (lambda run_dir: (run_dir / "rounds.csv").unlink(), remake, r"rounds\.csv' is missing"),
    (edited("attribution.csv", "round,", "number,"), remake, "csv, line 2: round is missing"),
    (
        edited("statement/statement.json", '"sum"', '"som"'),
        sign_and_check,
        "^statement.json: pay_by",
    ),
    (edited("statement/statement.json", "{", "\ufeff{"), sign_and_check, "^statement.json: Unexp"),
    (
        edited("statement/statement.json", "\n}\n", "}\n"),
        sign_and_check,
        "^statement.json is not written as fedif writes it",
    ),
    (UNEVEN, sign_and_check, "round 1 does not add up"),
    (UNEVEN, remake, "round 1 does not add up"),
    (credited_more, sign_and_check, "is credited with more than it contributed"),
    (cut_off("clients.csv"), remake, "clients.csv has . lines of round 6, but rounds.csv"),
    *((cut_off(name), remake, "ends with round 6, .*: was one cut off") for name in ROUNDS),
    (
        without_round(6, "attribution", "attributed_rounds"),
        remake,
        "with round 5, .* 6: was one cut off",
    ),
    (without_round(3, "rounds"), remake, "with 6, rounds.csv has 5: was one cut off"),
    *(
        (more(of), sign_and_check, rf"members\[0\]: {of} is .*, but the records give")
        for of in MONEY
    ),
    (
        edited(f"{PAGES}3.html", "quarantine", "accept"),
        sign_and_check,
        "members/003.html does not show",
    ),
]


@pytest.mark.parametrize(("change", "then", "said"), TAMPERED)
def test_what_was_changed_is_named_in_a_line_though_signed_again(copy, key, change, then, said):
    change(copy)
    with pytest.raises(FedIFError, match=said) as caught:
        then(copy, key)
    assert len(str(caught.value)) < 400
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("model.pt.exe", "model.pt.exe is missing"),
        ("../secret.txt", "'../secret.txt' in the manifest lies outside"),
        ("/etc/hostname", "'/etc/hostname' in the manifest lies outside"),
    ],
)
def test_a_manifest_names_files_of_the_run_alone(copy, key, name, words):
    files = read_signed(copy / "statement").statement.predicate.files
    sign_again(copy, key, files={**files, name: "00" * 32})
    with pytest.raises(StatementError, match=words):
        verify(copy)


@pytest.mark.parametrize("subject", ["model.pt", "updates/another.pt"])
def test_the_model_has_one_digest_that_of_the_subject(copy, key, subject):
    """Another model is the subject, and the run's own stands among the other files."""
    signed = read_signed(copy / "statement").statement
    payload = signed.model_dump(by_alias=True)
    payload["predicate"]["files"]["model.pt"] = file_hash(copy / "model.pt")
    payload["subject"] = [{"name": subject, "digest": {"sha256": 64 * "0"}}]
    text = json.dumps(payload, separators=(",", ":")).encode()
    envelope = Envelope(payload_type=PAYLOAD_TYPE, payload=text).signed_by(key)
    (copy / "statement" / ENVELOPE).write_bytes(envelope.to_bytes())
    words = "model.pt is its subject" if subject == "model.pt" else "subject.0.name = 'updates"
    with pytest.raises(StatementError, match=f"manifest.intoto.json was changed: .*{words}"):
        verify(copy)


@pytest.mark.parametrize(
    "written",
    [
        ('"payloadType"', '"payloadType": "text/plain", "payloadType"'),
        ('"run":', '"run":"another","run":'),
    ],
)
def test_a_key_that_is_there_twice_is_found_though_signed(copy, key, written):
    path = copy / "statement" / ENVELOPE
    payload = read_signed(copy / "statement").envelope.payload.decode().replace(*written, 1)
    envelope = Envelope(payload_type=PAYLOAD_TYPE, payload=payload.encode()).signed_by(key)
    path.write_text(envelope.to_bytes().decode().replace(*written, 1))
    with pytest.raises(StatementError, match="there twice"):
        verify(copy)


def test_what_a_manifest_lacks_is_named(copy, key):
    signed = read_signed(copy / "statement").statement
    payload = signed.model_dump(by_alias=True)
    del payload["predicate"]["contact"]
    text = json.dumps(payload, separators=(",", ":")).encode()
    envelope = Envelope(payload_type=PAYLOAD_TYPE, payload=text).signed_by(key)
    (copy / "statement" / ENVELOPE).write_bytes(envelope.to_bytes())
    with pytest.raises(StatementError, match=r"was changed: predicate\.contact is missing$"):
        verify(copy)


@pytest.mark.parametrize("is_operator", [False, True])
def test_what_the_operator_did_not_sign_as_a_statement_is_none(copy, key, is_operator):
    kind, signer, said = PAYLOAD_TYPE, Ed25519PrivateKey.generate(), "operator's signature is not"
    if is_operator:
        kind, signer, said = "text/plain", key, "it is not written as fedif writes it"
    payload = read_signed(copy / "statement").envelope.payload
    envelope = Envelope(payload_type=kind, payload=payload).signed_by(signer)
    (copy / "statement" / ENVELOPE).write_bytes(envelope.to_bytes())
    with pytest.raises(StatementError, match=said):
        verify(copy)


TOO_LARGE = [{0: 1e308}, {0: 1e308, 1: -1e308}]  # The losses are finite, one's sum is not.


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize(
    ("contributions", "names", "said"),
    [
        (TOO_LARGE, None, "no statement can be made of its records: Overflow"),
        ([{}], None, "nobody was asked in this run"),
        ([{0: 1.0}], {9: "eve"}, "names: client_id 9: no such member in this run; .* like 0"),
        ([{1: 1.0}], {1: "ada", 12: "eve", 9: "bob"}, "names: client_id 9, 12: no such member"),
    ],
)
def test_some_runs_make_no_statement(tmp_path, key, contributions, names, said):
    run_dir = make_run(tmp_path / "run", contributions)
    with pytest.raises(ConfigError, match=said):
        make_statement(run_dir, key, names=names)


def test_a_member_that_was_never_asked_has_a_name_too(tmp_path, key):
    node_ids = {0: 1000, 1: 1001}
    run_dir = make_run(tmp_path / "run", [{0: 1.0, 1: 0.5}], names={1002: "bob"}, node_ids=node_ids)
    attendance = RunFolder(run_dir).attendance
    here = {"round": 1, "partition_id": 3, "client_id": 1003, "presence": "there", "at": ""}
    attendance.replace([here])
    folder = make_statement(run_dir, key, names={1000: "ada", 1002: "Bob", 1003: "eve"})
    account = read_account((folder / ACCOUNT).read_text())
    assert account.never_drawn == ("Bob", "eve")
    simulated = make_run(tmp_path / "simulated", [{0: 1.0, 1: 0.5}])
    config = RunFolder(simulated).config
    config.write({**config.read(), "num-clients": 3})
    with pytest.raises(ConfigError, match="names: client_id 3: no such member"):
        make_statement(simulated, key, names={2: "bob", 3: "eve"})
    make_statement(simulated, key, names={2: "bob"})


FORGED_LINE = "b: 0 of 0 updates\nSigned by hospital-c: 6 of 6 updates"


@pytest.mark.parametrize("name", [FORGED_LINE, "b\x1b[8m", 81 * "b", "  "])
def test_a_name_that_writes_a_line_of_its_own_is_refused(tmp_path, key, monkeypatch, name):
    """`fedif verify` prints members' names: none may write the line about another member."""
    run_dir = make_run(tmp_path / "run", [{0: 0.5, 1: 0.25}] * 6)
    names = {0: "hospital-a", 1: name}
    with pytest.raises(ConfigError, match=r"members' names: .* allowed: 1 to 80 printable"):
        make_statement(run_dir, key, names=names)
    # An operator changes its own program, and signs such a statement.
    with monkeypatch.context() as changed:
        changed.setattr("fedif_consortium.statement.bundle.require_names", lambda *_: None)
        make_statement(run_dir, key, names=names)
    with pytest.raises(StatementError, match=r"statement\.json: the members' names: .* allowed: 1"):
        verify(run_dir)


def test_a_name_reads_as_what_another_member_without_one_is_called(tmp_path, key, monkeypatch):
    """Client 2 has no name, and pages call it so."""
    run_dir = make_run(tmp_path / "run", [{0: 0.5, 2: 0.25}] * 6, names={0: "Client 2"})
    words = "'[cC]lient 2' and '[cC]lient 2' read alike"
    with pytest.raises(ConfigError, match=words):
        make_statement(run_dir, key)
    with monkeypatch.context() as changed:
        changed.setattr("fedif_consortium.statement.bundle.require_apart", lambda *_: None)
        make_statement(run_dir, key)
    with pytest.raises(StatementError, match=words):
        verify(run_dir)
    make_statement(run_dir, key, names={2: "client 2"}, again=True)
    verify(run_dir)


HASHES = {name: f"another hash of the {name}" for name in ("settings", "validation", "code")}
HASHES |= {"head": "round_heads.csv is not what the manifest says"}


@pytest.mark.parametrize("name", HASHES)
def test_a_manifest_with_another_hash_than_the_records_is_found_though_signed(copy, key, name):
    # Of another version, so that pages, which say some of it, are not compared.
    sign_again(copy, key, **{name: 64 * "0", "made_with": 64 * "0"})
    with pytest.raises(StatementError, match=HASHES[name]):
        verify(copy)


def test_a_member_checks_its_own_page(stated, tmp_path):
    for name in (ENVELOPE, "members/002.html"):
        shutil.copy(stated / "statement" / name, tmp_path)
    page = tmp_path / "002.html"
    assert verify(page).manifest.run == "run"
    page.write_text(page.read_text().replace("+0", "+9", 1))
    with pytest.raises(StatementError, match=r"002.html is no page of this .* or was changed"):
        verify(page)


def test_no_statement_is_named(copy):
    shutil.rmtree(copy / "statement")
    with pytest.raises(ConfigError, match="is no run with a statement"):
        verify(copy)
