"""Attempts at a run: numbered, chained, written down where no run that begins anew removes them."""

from __future__ import annotations

import json
from hashlib import sha256

import pytest

from fedif_consortium.evidence.attempts import (
    MOST_ATTEMPTS,
    NO_ATTEMPTS,
    Attempt,
    Attempts,
    Ledger,
    agreed_name,
    config_hash,
    next_attempt,
    read_attempts,
    told_attempts,
)
from fedif_flower.errors import ConfigError, EvidenceError

A, B = "0f" * 16, "1f" * 16
CONFIG, OTHER = "aa" * 32, "bb" * 32


def attempts(*runs: str, name: str = "october", config: str = CONFIG) -> Attempts:
    return Attempts(name=name, attempts=[{"run": run, "config": config} for run in runs])


def test_a_chain_of_attempts_by_hand():
    said = json.dumps(["october", 1, A, CONFIG]).encode()
    first = sha256(b"\3" + sha256().digest() + said).digest()
    said = json.dumps(["october", 2, B, CONFIG]).encode()
    second = sha256(b"\3" + first + said).digest()
    two = attempts(A, B)
    assert (two.end(1), two.end(2)) == (first, second)
    assert (two.agreed(1).earlier, two.agreed(2).earlier) == (NO_ATTEMPTS, first)
    assert two.agreed(2).terms() == {
        "name": "october",
        "attempt": 2,
        "config": bytes.fromhex(CONFIG),
        "earlier": first,
    }
    for number in (0, 3):
        with pytest.raises(EvidenceError, match=f"attempt {number} .* was not declared"):
            two.agreed(number)


def test_the_end_tells_every_attempt_from_any_other():
    ends = {
        attempts(A, B).end(2),
        attempts(B, A).end(2),
        attempts(A, A).end(2),
        attempts(A, A, B).end(3),
        attempts(A, B, name="november").end(2),
        attempts(A, B, config=OTHER).end(2),
    }
    assert len(ends) == 6


def test_a_run_config_is_told_from_another_but_not_by_how_it_begins():
    config = {"num-server-rounds": 5, "run-name": "october", "resume": "", "seed": 0}
    same = {**config, "resume": "auto", "overwrite": True}
    assert config_hash(config) == config_hash(same)
    other = {**config, "seed": 1}
    assert config_hash(config) != config_hash(other)
    assert agreed_name(config) == agreed_name(other) == "october"
    automatic = {**config, "run-name": "auto"}
    assert agreed_name(automatic) == f"auto-{config_hash(automatic)[:16]}"


def test_a_ledger_remembers_each_attempt_of_each_name(tmp_path):
    folder = tmp_path / "runs"
    ledger = Ledger(folder)
    assert ledger.before("october") == ()
    ledger.add(attempts(A))
    ledger.add(attempts(B, name="november"))
    ledger.add(attempts(A, B))
    assert [one.run for one in Ledger(folder).before("october")] == [A, B]
    # A ledger that was lost gets back what the records of a run that goes on declare.
    (folder / "attempts.jsonl").unlink()
    ledger.add(attempts(A, B, B))
    assert [one.run for one in ledger.before("october")] == [A, B, B]


def test_of_two_runs_that_begin_at_once_one_is_the_attempt(tmp_path):
    """Both saw no attempt before them; the second would be declared nowhere."""
    ledger = Ledger(tmp_path)
    ledger.add(attempts(A))
    ledger.add(attempts(A))  # The same run again.
    words = r"attempts\.jsonl has other attempts at run 'october' than the 1 that .* another run-n"
    with pytest.raises(ConfigError, match=words):
        ledger.add(attempts(B))
    ledger.add(attempts(A, B))
    for others in (attempts(A), attempts(B, A), attempts(A, A, B)):
        with pytest.raises(ConfigError, match="has other attempts at run 'october'"):
            ledger.add(others)
    assert [one.run for one in ledger.before("october")] == [A, B]


def test_a_ledger_that_is_damaged_is_named_by_its_line(tmp_path):
    ledger = Ledger(tmp_path)
    ledger.add(attempts(A))
    with ledger.path.open("a") as file:
        file.write('{"name": "october", "ru')  # A power cut: the line is written again.
    assert len(ledger.before("october")) == 1
    ledger.add(attempts(A, B))
    assert len(ledger.before("october")) == 2
    ledger.path.write_text('{"name": "october"}\n')
    with pytest.raises(ConfigError, match=r"attempts\.jsonl, line 1, is no attempt"):
        ledger.before("october")


def test_the_longest_list_of_attempts_goes_on():
    one, two = Attempt(run=A, config=CONFIG), Attempt(run=B, config=CONFIG)
    found = next_attempt("october", OTHER, B, [(one,), (one, two), ()])
    assert [of.run for of in found.attempts] == [A, B, B]
    assert found.last.config == OTHER
    with pytest.raises(ConfigError, match="1000 attempts were made at it; allowed: another run-n"):
        next_attempt("october", CONFIG, A, [(one,) * MOST_ATTEMPTS])


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"name": "", "attempts": [{"run": A, "config": CONFIG}]},
        {"name": "october", "attempts": []},
        {"name": "october", "attempts": [{"run": "../etc", "config": CONFIG}]},
        {"name": "october", "attempts": [{"run": A, "config": CONFIG, "more": 1}]},
        {"name": "october", "attempts": [{"run": A, "config": CONFIG}] * 1001},
        [],
    ],
)
def test_what_names_no_attempts_is_refused_in_a_sentence(said):
    with pytest.raises(EvidenceError, match="the message does not say which attempt it is of"):
        told_attempts(json.dumps(said))
    with pytest.raises(EvidenceError, match=r"provenance\.json names no attempts"):
        read_attempts({"attempts": said})
    for nothing in (None, 5, b""):
        with pytest.raises(EvidenceError, match="the message does not say which attempt at which"):
            told_attempts(nothing)
    assert read_attempts({}) is None
