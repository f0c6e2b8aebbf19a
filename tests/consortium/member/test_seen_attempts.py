"""What a guard remembers of attempts: the next one follows, and is of the run that was admitted."""

from __future__ import annotations

import json

import pytest

from fedif_consortium.evidence.attempts import ATTEMPTS_KEY, Attempts, config_hash
from fedif_consortium.member import seen_attempts as module
from fedif_consortium.member.seen_attempts import FILE, SeenAttempts
from fedif_flower.errors import ConfigError, RefusedByMemberError
from fedif_flower.messages.instructions import RUN_ID_KEY

A, B, C = "0f" * 16, "1f" * 16, "2f" * 16
CONFIG = {"run-name": "october", "num-server-rounds": 5, "resume": ""}


def told(*runs: str, name: str = "october", config: str = "", run: str = "") -> dict[str, str]:
    """What a server tells of its run."""
    own = config or config_hash(CONFIG)
    attempts = [{"run": one, "config": own} for one in runs]
    text = Attempts(name=name, attempts=attempts).model_dump_json()
    return {RUN_ID_KEY: run or runs[-1], ATTEMPTS_KEY: text}


def see(seen: SeenAttempts, *runs: str) -> None:
    seen.note(seen.check(told(*runs), CONFIG))


@pytest.mark.parametrize(
    ("before", "now", "reason"),
    [
        ((), (A,), ""),
        ((), (A, B, C), ""),  # It came later, and is told of those before.
        ((A,), (A,), ""),
        ((A,), (A, A), ""),  # The run goes on.
        ((A,), (A, B), ""),
        ((A,), (A, B, C), ""),
        ((A,), (B,), "seen another attempt 1"),
        ((A,), (B, C), "seen another attempt 1"),
        ((A, B), (A,), "seen attempt 2"),
        ((A, B), (A, C), "seen another attempt 2"),
        ((A, B), (C, B), "another attempt 2, or was told of others before it"),
        ((A, B), (A, C, B), "seen another attempt 2"),
    ],
)
def test_an_attempt_follows_those_that_a_member_saw(tmp_path, before, now, reason):
    seen = SeenAttempts(tmp_path)
    if before:
        see(seen, *before)
    again = SeenAttempts(tmp_path)  # As after a restart.
    if not reason:
        see(again, *now)
        return
    with pytest.raises(RefusedByMemberError, match=f"does not follow: this member has .*{reason}"):
        again.check(told(*now), CONFIG)
    see(again, *before)  # What was refused is not remembered.


def test_a_round_is_done_again_in_another_attempt_alone(tmp_path):
    """Else a server that tells of no records does its rounds again until it likes them."""
    first = SeenAttempts(tmp_path).check(told(A), CONFIG)
    SeenAttempts(tmp_path).note(first, 1)
    SeenAttempts(tmp_path).note(first, 3)  # In round 2, others were drawn.
    for number in (3, 2, 0):
        words = f"round {number} of attempt 1 at run 'october' does not follow: .* in round 3"
        with pytest.raises(RefusedByMemberError, match=words):
            SeenAttempts(tmp_path).note(first, number)
    SeenAttempts(tmp_path).note(first)  # A message that is of no round.
    again = SeenAttempts(tmp_path)
    second = again.check(told(A, A), CONFIG)
    again.note(second, 2)
    with pytest.raises(RefusedByMemberError, match=r"round 2 of attempt 2 .* in round 2"):
        again.note(second, 2)
    again.note(second, 3)


def test_a_file_of_an_earlier_version_knows_of_no_round(tmp_path):
    first = SeenAttempts(tmp_path).check(told(A), CONFIG)
    seen = {"number": 1, "end": first.end(1).hex(), "config": config_hash(CONFIG)}
    (tmp_path / FILE).write_text(json.dumps({"runs": {"october": seen}}))
    SeenAttempts(tmp_path).note(first, 1)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (told(A, config="00" * 32), "attempt 1 at run 'october' names another run config than"),
        (told(A, name="november"), "attempt 1 at run 'november': the run config calls the run oth"),
        (told(A, run=B), "attempt 1 at run 'october' has another id than the message"),
        ({RUN_ID_KEY: A}, "the message does not say which attempt"),
        ({RUN_ID_KEY: A, ATTEMPTS_KEY: "{}"}, "the message does not say which attempt"),
    ],
)
def test_an_attempt_is_of_the_run_that_the_policy_admitted(tmp_path, said, reason):
    with pytest.raises(RefusedByMemberError, match=reason):
        SeenAttempts(tmp_path).check(said, CONFIG)


NAMELESS = {**CONFIG, "run-name": "auto"}


def told_nameless(first: str, *later: str, run: str = A) -> dict[str, str]:
    """What a server tells of a run that is called by the first of its run configs."""
    attempts = [{"run": run, "config": config} for config in (first, *later)]
    text = Attempts(name=f"auto-{first[:16]}", attempts=attempts).model_dump_json()
    return {RUN_ID_KEY: run, ATTEMPTS_KEY: text}


def test_a_run_without_a_name_keeps_that_of_its_first_attempt(tmp_path):
    later = {**NAMELESS, "checkpoint-every": 1}
    first_hash, later_hash = config_hash(NAMELESS), config_hash(later)
    seen = SeenAttempts(tmp_path)
    seen.note(seen.check(told_nameless(first_hash), NAMELESS))
    seen.note(seen.check(told_nameless(first_hash, later_hash), later))
    with pytest.raises(RefusedByMemberError, match="the run config calls the run otherwise"):
        seen.check(told(A, name="october", config=later_hash), later)


def test_a_run_without_a_name_is_not_called_as_its_server_likes(tmp_path):
    """Else each attempt at one run config would be the first one, at a run of another name."""
    own, invented = config_hash(NAMELESS), "5e" * 32
    seen = SeenAttempts(tmp_path)
    seen.note(seen.check(told_nameless(own), NAMELESS))
    with pytest.raises(RefusedByMemberError, match="the run config calls the run otherwise"):
        seen.check(told(B, name="auto-5e5e5e5e5e5e5e5e", config=own), NAMELESS)
    again = SeenAttempts(tmp_path)
    with pytest.raises(RefusedByMemberError, match="has seen its run config in a run that was"):
        again.check(told_nameless(invented, own, run=B), NAMELESS)
    with pytest.raises(RefusedByMemberError, match="seen another attempt 1"):
        again.check(told_nameless(own, run=B), NAMELESS)


def test_a_run_config_is_known_whatever_came_after_it(tmp_path):
    """Else another attempt, of a setting that is no matter, would hide the first one."""
    own, later = config_hash(NAMELESS), {**NAMELESS, "checkpoint-every": 1}
    seen = SeenAttempts(tmp_path)
    seen.note(seen.check(told_nameless(own), NAMELESS))
    seen.note(seen.check(told_nameless(own, config_hash(later)), later))
    for again in (seen, SeenAttempts(tmp_path)):  # After a restart, too.
        with pytest.raises(RefusedByMemberError, match="has seen its run config in a run that was"):
            again.check(told_nameless("5e" * 32, own, run=B), NAMELESS)


def test_a_run_under_an_invented_name_is_not_begun_again_under_its_own(tmp_path):
    """Else a server would do a run twice, and its statement would tell of one attempt."""
    own = config_hash(NAMELESS)
    seen = SeenAttempts(tmp_path)
    seen.note(seen.check(told_nameless("5e" * 32, own), NAMELESS))
    with pytest.raises(RefusedByMemberError, match="has seen its run config in a run that was"):
        seen.check(told_nameless(own, run=B), NAMELESS)


def test_a_config_that_a_run_went_on_with_may_begin_one_of_its_own(tmp_path):
    own, later = config_hash(NAMELESS), {**NAMELESS, "checkpoint-every": 1}
    seen = SeenAttempts(tmp_path)
    seen.note(seen.check(told_nameless(own), NAMELESS))
    seen.note(seen.check(told_nameless(own, config_hash(later)), later))
    again = SeenAttempts(tmp_path)
    again.note(again.check(told_nameless(config_hash(later), run=B), later))


def test_a_name_that_looks_automatic_is_a_name(tmp_path):
    config = {**CONFIG, "run-name": "auto-x"}
    seen = SeenAttempts(tmp_path)
    seen.check(told(A, name="auto-x", config=config_hash(config)), config)
    with pytest.raises(RefusedByMemberError, match="the run config calls the run otherwise"):
        seen.check(told(A, name="auto-y", config=config_hash(config)), config)


def test_other_runs_have_their_own_attempts_and_there_is_room_for_so_many(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MOST_NAMES", 2)
    seen = SeenAttempts(tmp_path)
    see(seen, A, B)
    november = {**CONFIG, "run-name": "november"}
    seen.note(seen.check(told(C, name="november", config=config_hash(november)), november))
    more = {**CONFIG, "run-name": "december"}
    attempts = seen.check(told(A, name="december", config=config_hash(more)), more)
    with pytest.raises(RefusedByMemberError, match="has seen 2 runs, and remembers no more"):
        seen.note(attempts)
    see(seen, A, B, C)


@pytest.mark.parametrize("text", ["", "{}x", '{"runs": {"october": {"number": 0, "end": ""}}}'])
def test_a_damaged_file_is_refused_before_anything_is_answered(tmp_path, text):
    (tmp_path / FILE).write_text(text)
    with pytest.raises(ConfigError, match=r"attempts\.json; without it any attempt is the first"):
        SeenAttempts(tmp_path)
