from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedif_consortium.evidence.dsse import Envelope
from fedif_consortium.evidence.keys import SigningKey, fingerprint
from fedif_consortium.statement.bundle import make_statement
from fedif_consortium.statement.manifest import (
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
from tests.consortium.statement.signed_runs import rewrite

ROUNDS = [{0: 0.5, 1: 0.25, 2: -0.125}, {0: 0.25, 2: 0.125}, {1: 0.5, 2: 0.0}] * 2


@pytest.fixture(scope="module")
def signed(tmp_path_factory, key) -> Path:
    """A run with a statement."""
    run_dir = make_run(tmp_path_factory.mktemp("runs") / "run", ROUNDS, names={1: "hospital-2"})
    make_statement(run_dir, key, budget_cents=1000_00)
    return run_dir


@pytest.fixture
def copy(signed, tmp_path) -> Path:
    return shutil.copytree(signed, tmp_path / "run")


def sign_again(run_dir: Path, key: SigningKey, **changes: object) -> None:
    """Sign what is there now, as an operator who cheats would; or a manifest with changes."""
    folder = run_dir / "statement"
    manifest = read_signed(folder).statement.predicate
    files = {name: file_hash(run_dir / name) for name in manifest.files}
    again = statement_of(
        *("model.pt", file_hash(run_dir / "model.pt")),
        manifest.model_copy(update={"files": files, **changes}),
    )
    (folder / ENVELOPE).write_bytes(again.envelope().signed_by(key).to_bytes())


def test_what_nobody_changed_is_verified(signed, key):
    found = verify(signed)
    assert found.key == fingerprint(key.public_key())
    assert found.not_here == ()
    assert verify(signed, found.key.replace(" ", "")) == found


def test_a_statement_of_the_later_rounds_alone_is_verified(copy, key):
    make_statement(copy, key, budget_cents=1000_00, from_round=2, contact="Ada", again=True)
    verify(copy)
    path = copy / "statement" / "statement.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"first_round": 3}))
    sign_again(copy, key)
    with pytest.raises(StatementError, match="but the records give"):
        verify(copy)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_changed_bit_of_any_file_is_found(signed, data):
    files = sorted(path for path in signed.rglob("*") if path.is_file())
    path = data.draw(st.sampled_from(files), label="file")
    content = path.read_bytes()
    at = data.draw(st.integers(0, len(content) - 1), label="byte")
    bit = 1 << data.draw(st.integers(0, 7), label="bit")
    try:
        path.write_bytes(content[:at] + bytes([content[at] ^ bit]) + content[at + 1 :])
        with pytest.raises(StatementError) as caught:
            verify(signed)
    finally:
        path.write_bytes(content)
    said = str(caught.value)
    assert path.name in said
    assert len(said.splitlines()) == 1


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_file_cut_short_or_made_longer_is_found(signed, data):
    files = sorted(path for path in signed.rglob("*") if path.is_file())
    path = data.draw(st.sampled_from(files), label="file")
    content = path.read_bytes()
    length = data.draw(st.integers(0, len(content) - 1))
    changed = data.draw(st.sampled_from([content[:length], content + b"\n", content + content]))
    try:
        path.write_bytes(changed)
        with pytest.raises(StatementError, match=path.name):
            verify(signed)
    finally:
        path.write_bytes(content)


@pytest.mark.parametrize("name", ["clients.csv", "attribution.csv", "attribution_rounds.csv"])
def test_the_chain_says_which_round_was_changed(copy, name):
    lines = (copy / name).read_text().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if line.startswith("4,"))
    lines[at] = lines[at].replace("0.", "1.", 1)
    (copy / name).write_text("".join(lines))
    with pytest.raises(StatementError, match=f"{name} was changed: the rows of round 4"):
        verify(copy)


def test_what_is_missing_or_too_much_is_named(copy):
    page = copy / "statement" / "members" / "001.html"
    content = page.read_bytes()
    page.unlink()
    with pytest.raises(StatementError, match=r"statement/members/001.html is missing"):
        verify(copy)
    page.write_bytes(content)
    (copy / "statement" / "members" / "004.html").write_text("me too")
    with pytest.raises(StatementError, match=r"members/004.html is no part of the statement"):
        verify(copy)
    (copy / "statement" / "members" / "004.html").unlink()
    (copy / "quarantine.csv").write_text("round,until_round\n")
    with pytest.raises(StatementError, match=r"^quarantine.csv is no part of the statement"):
        verify(copy)


def test_records_without_the_model_are_verified_and_that_is_said(copy):
    (copy / "model.pt").unlink()
    assert verify(copy).not_here == ("model.pt",)


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


@pytest.mark.parametrize(
    "written",
    [
        ('"payloadType"', '"payloadType": "text/plain", "payloadType"'),
        ('"predicate":', '"predicate":{},"predicate":'),
        ('"run":', '"run":"another","run":'),
    ],
)
def test_a_key_that_is_there_twice_is_found_though_signed(copy, key, written):
    path = copy / "statement" / ENVELOPE
    payload = read_signed(copy / "statement").envelope.payload.decode().replace(*written, 1)
    text = Envelope(PAYLOAD_TYPE, payload.encode()).signed_by(key).to_bytes().decode()
    path.write_text(text.replace(*written, 1))
    with pytest.raises(StatementError, match="there twice"):
        verify(copy)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("provenance.json", 100_000 * "["),
        ("config.json", "{}"),
        ("statement/chain.csv", "nothing"),
    ],
)
def test_odd_files_are_refused_in_a_sentence_though_signed(copy, key, name, content):
    (copy / name).write_text(content)
    sign_again(copy, key)
    with pytest.raises(FedIFError) as caught:
        verify(copy)
    assert len(str(caught.value)) < 400


def test_contributions_without_a_finite_sum_make_no_statement(copy, key):
    path = copy / "attribution.csv"
    path.write_text(path.read_text().replace(",0.5,", ",1e308,"))
    with pytest.raises(ConfigError, match="no statement can be made of its records: Overflow"):
        make_statement(copy, key, again=True)


@pytest.mark.parametrize("name", ["signatures.csv", f"statement/{ENVELOPE}"])
def test_a_pipe_among_the_files_is_not_waited_for(copy, name):
    (copy / name).unlink(missing_ok=True)
    os.mkfifo(copy / name)
    with pytest.raises(FedIFError, match="no regular file"):
        verify(copy)


@pytest.mark.parametrize("name", ["cents", "share", "credited", "contribution", "withheld"])
def test_an_account_that_does_not_follow_from_the_records_is_found_though_signed(copy, key, name):
    path = copy / "statement" / "statement.json"
    account = json.loads(path.read_text())
    right = account["members"][0][name]
    wrong = account["members"][0][name] = right + (1 if isinstance(right, int) else 1e-6)
    path.write_text(json.dumps(account, indent=2) + "\n")
    sign_again(copy, key)
    said = f"statement.json: members[0]: {name} is {wrong!r}, but the records give {right!r}"
    with pytest.raises(StatementError, match=re.escape(said)):
        verify(copy)


def test_a_manifest_with_another_chain_is_found_though_signed(copy, key):
    sign_again(copy, key, chain=64 * "0")
    with pytest.raises(StatementError, match=r"chain.csv does not follow"):
        verify(copy)


def test_sums_that_do_not_add_up_are_found_though_signed(copy, key):
    path = copy / "attribution_rounds.csv"
    path.write_text(path.read_text().replace("0.625,0.625,0.0", "0.625,0.5,0.125", 1))
    sign_again(copy, key)
    with pytest.raises(StatementError, match=r"chain.csv does not follow"):
        verify(copy)
    make_statement(copy, key, again=True)
    with pytest.raises(StatementError, match="round 1 does not add up"):
        verify(copy)


def test_credit_above_the_contribution_is_found_though_signed(copy, key):
    rewrite(RunFolder(copy).attribution, lambda rows: [{**rows[0], "credited": "9.0"}, *rows[1:]])
    make_statement(copy, key, again=True)
    with pytest.raises(StatementError, match="is credited with more than it gave"):
        verify(copy)


def test_a_page_that_shows_something_else_is_found_though_signed(copy, key):
    page = copy / "statement" / "members" / "003.html"
    page.write_text(page.read_text().replace("quarantine", "accept", 1))
    sign_again(copy, key)
    with pytest.raises(StatementError, match=r"members/003.html does not show"):
        verify(copy)


def test_another_key_is_found_where_the_right_one_is_known(copy, key):
    make_statement(copy, Ed25519PrivateKey.generate(), again=True)
    verify(copy)
    with pytest.raises(StatementError, match="signed by another key"):
        verify(copy, fingerprint(key.public_key()))


def test_a_member_checks_its_own_page(signed, tmp_path):
    for name in (ENVELOPE, "members/002.html"):
        shutil.copy(signed / "statement" / name, tmp_path)
    page = tmp_path / "002.html"
    assert verify(page).manifest.run == "run"
    page.write_text(page.read_text().replace("+0", "+9", 1))
    with pytest.raises(StatementError, match=r"002.html was changed"):
        verify(page)


def test_no_statement_is_named(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        verify(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="holds no statement"):
        verify(make_run(tmp_path / "run", ROUNDS))
