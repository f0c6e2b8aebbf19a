from __future__ import annotations

import re
from datetime import date

import pytest

from fedif_consortium.member.run_rules import RunRules, accepts
from fedif_flower.errors import RefusedByMemberError
from fedif_flower.messages.client_config import ClientConfig
from fedif_flower.run.config import RunConfig

CONFIG = {"rounds": 10, "rate": 0.1, "name": "a", "masked": False}
HALF = {"rate": {"least": 0, "most": 0.5}}


@pytest.mark.parametrize(
    ("written", "allowed", "refused"),
    [
        (5, [5, 5.0], [4, "5", True]),
        (["a", "b"], ["a", "b"], ["c", 1]),
        (True, [True], [False, 1]),
        ([0, 1], [0, 1], [True, False]),
        ({"least": 1, "most": 3}, [1, 2.5, 3], [0.9, 4, "2", True, float("nan")]),
        ({"most": 3}, [-1e9, 3], [3.1]),
        ({"least": 1}, [1e9], [0, float("nan")]),
    ],
)
def test_a_line_says_which_values_are_accepted(written, allowed, refused):
    accepted = RunRules(config={"key": written}).config["key"]
    assert [value for value in allowed if not accepts(accepted, value)] == []
    assert [value for value in refused if accepts(accepted, value)] == []


@pytest.mark.parametrize(
    ("rules", "changes", "reason"),
    [
        ({"names": ["x/y"]}, {}, "app fedif/app is none that this member takes part in: names ="),
        ({}, {"rate": 0.6}, "run config rate = 0.6; this member accepts at least 0 and at most"),
        ({}, {"rounds": 11}, "run config rounds = 11; this member accepts the app's own value"),
        ({"unknown_keys": True}, {"name": "x", "rate": 9}, "run config rate = 9; this member"),
    ],
)
def test_a_run_outside_the_policy_is_refused_by_the_line_s_name(rules, changes, reason):
    with pytest.raises(RefusedByMemberError, match=re.escape(reason)):
        RunRules(**rules, config=HALF).check_run("fedif/app", CONFIG | changes, CONFIG)


@pytest.mark.parametrize(
    ("rules", "changes"),
    [
        ({}, {}),
        ({"names": ["x/y", "fedif/app"]}, {"rate": 0.5}),
        ({"unknown_keys": True}, {"rounds": 11}),
    ],
)
def test_a_run_within_the_policy_is_not(rules, changes):
    # A key that the app does not have is nobody's.
    accepted = HALF | {"absent": 1}
    RunRules(**rules, config=accepted).check_run("fedif/app", CONFIG | changes, CONFIG)


def told(**config) -> dict:
    """Return what an honest server tells clients of a run."""
    keys = {key.replace("_", "-"): value for key, value in config.items()}
    return RunConfig.from_run_config(keys).part(ClientConfig).to_mapping()


ATTACKED = {"attack": "ipm", "malicious-fraction": 0.25, "ipm.epsilon": 1}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (RunConfig.defaults(), told(num_clients=7)),  # And learning-rate, which is "auto", too.
        (RunConfig.defaults() | ATTACKED, told(**ATTACKED)),
        ({}, told()),
        ({}, told(task="this-app:wards")),
        (ATTACKED | {"seed": 3}, told(**ATTACKED, seed=3)),
        ({"attack": "alie"}, told(attack="alie")),  # alie.z is "auto".
    ],
)
def test_what_an_honest_server_tells_is_not_refused(config, message):
    RunRules().check_told(message, config)
    listed = {"local-epochs": {"most": 5}, "attack": ["none", "ipm", "alie"]}
    for unknown_keys in (True, False):
        RunRules(unknown_keys=unknown_keys, config=listed).check_told(message, config)


@pytest.mark.parametrize("config", [{}, RunConfig.defaults(), {"local-epochs": "auto"}])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("momentum", 0.95),
        ("seed", False),
        ("label-noise.of", 1),
        ("task", "wards:task"),
        ("attack", "label-noise"),
    ],
)
def test_a_message_that_says_what_the_run_does_not_is_refused(config, key, value):
    message = told() | {key: value}
    reason = re.escape(f"says {key} = {value!r}; this member accepts ")
    with pytest.raises(RefusedByMemberError, match=reason):
        RunRules().check_told(message, config)
    RunRules(unknown_keys=True).check_told(message, config)
    with pytest.raises(RefusedByMemberError, match=reason):
        RunRules(unknown_keys=True, config={key: "x"}).check_told(message, config)


def test_a_member_answers_from_its_first_day_to_its_last():
    rules = RunRules(first_day=date(2026, 1, 5), last_day=date(2026, 1, 6))
    for day in (5, 6):
        rules.check_day(date(2026, 1, day))
    for day, reason in ((4, "takes part from 2026-01-05 on"), (7, "took part until 2026-01-06")):
        with pytest.raises(RefusedByMemberError, match=reason):
            rules.check_day(date(2026, 1, day))
