from __future__ import annotations

import math
import re
import tomllib
from datetime import date

import pytest
from flwr.common.config import flatten_dict

from fedif_consortium.member.runs import RoundCounts, RunRules, accepts
from fedif_flower.errors import ConfigError, RefusedByMemberError, StorageError
from fedif_flower.messages.client_config import ClientConfig
from fedif_flower.run.config import RunConfig
from tests.test_docs_names import DOCS

CONFIG = {"rounds": 10, "rate": 0.1, "name": "a", "masked": False}
HALF = {"rate": {"least": 0, "most": 0.5}}
MONDAY, TUESDAY, WEDNESDAY = (date(2026, 1, day) for day in (5, 6, 7))


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


def block_of(page: str, language: str, words: str) -> str:
    """Return the first block of a page that has some words."""
    blocks = re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    return next(block for block in blocks if words in block)


def test_the_policy_for_masked_rounds_takes_part_in_the_run_that_the_pages_show():
    policy = tomllib.loads(block_of("member-policy.md", "toml", "masked-update"))
    run = flatten_dict(tomllib.loads(block_of("consortium.md", "ini", "masking.mode")))
    own = RunConfig.defaults() | {"attribution": run["attribution"]}
    RunRules(config=policy["runs"]["config"]).check_run("fedif/app", own | run, own)


@pytest.mark.parametrize(
    ("config", "last_day", "reason"),
    [
        ({"masking": {"mode": "keeper"}}, TUESDAY, "for each key, quoted where it has a dot"),
        ({"rate": {"least": 5, "most": 1}}, TUESDAY, "{least = ..., most = ...} that holds a"),
        ({}, MONDAY, "last_day = '2026-01-05'; allowed: first-day = 2026-01-06 or later"),
    ],
)
def test_what_no_rule_can_be_is_refused_in_words_that_say_how_it_is_written(
    config, last_day, reason
):
    with pytest.raises(ConfigError, match=re.escape(reason)):
        RunRules(config=config, first_day=TUESDAY, last_day=last_day)


@pytest.mark.parametrize(
    ("rules", "changes", "reason"),
    [
        ({"names": ["x/y"]}, {}, "app fedif/app is none that this member takes part in: names ="),
        ({}, {"rate": 0.6}, "run config rate = 0.6; this member accepts at least 0 and at most"),
        ({}, {"rounds": 11}, "run config rounds = 11; this member accepts the app's own value"),
        ({"unknown_keys": True}, {"name": "x", "rate": 9}, "run config rate = 9; this member"),
        ({}, {}, ""),
        ({"names": ["x/y", "fedif/app"]}, {"rate": 0.5}, ""),
        ({"unknown_keys": True}, {"rounds": 11}, ""),
    ],
)
def test_a_run_outside_the_policy_is_refused_by_the_line_s_name(rules, changes, reason):
    # A key that the app does not have is nobody's.
    rules = RunRules(**rules, config=HALF | {"absent": 1})
    if not reason:
        rules.check_run("fedif/app", CONFIG | changes, CONFIG)
        return
    with pytest.raises(RefusedByMemberError, match=re.escape(reason)):
        rules.check_run("fedif/app", CONFIG | changes, CONFIG)


@pytest.mark.parametrize(
    ("own", "other"), [(1, True), (0, False), (True, 1), (False, 0), (1, "1"), (1.0, math.nan)]
)
def test_an_app_s_own_value_is_of_its_own_kind(own, other):
    """Python takes true for 1."""
    reason = f"run config key = {other!r}; this member accepts the app's own value only"
    with pytest.raises(RefusedByMemberError, match=re.escape(reason)):
        RunRules().check_run("fedif/app", {"key": other}, {"key": own})
    RunRules().check_run("fedif/app", {"key": own}, {"key": own})
    with pytest.raises(RefusedByMemberError, match="the message says key"):
        RunRules().check_terms({"key": other}, {"key": own})


def test_an_app_s_own_value_may_be_no_number():
    # Two values: a bundle's config is read twice.
    RunRules().check_run("fedif/app", {"key": float("nan")}, {"key": float("nan")})


def test_a_line_that_limits_nothing_in_a_run_is_said(caplog):
    """A policy may list keys of several apps; a member that misspells one would rely on it."""
    rules = RunRules(config={"rat": {"most": 0.5}, "rounds": 10, "local-epochs": 5})
    rules.check_run("fedif/app", CONFIG, CONFIG)
    assert caplog.messages == [
        "[runs.config] has rat, which is no key of this run: the line limits nothing in it; did "
        "you mean rate?"
    ]


def told(**config) -> dict:
    """Return what an honest server tells clients of a run."""
    keys = {key.replace("_", "-"): value for key, value in config.items()}
    return RunConfig.from_run_config(keys).extract(ClientConfig).to_mapping()


ATTACKED = {"attack": "ipm", "malicious-fraction": 0.25, "ipm.epsilon": 1}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (RunConfig.defaults(), told(num_clients=7)),  # And learning-rate, which is "auto", too.
        (RunConfig.defaults() | ATTACKED, told(**ATTACKED)),
        ({}, told() | {"fedprox.proximal-mu": 0.01}),
        ({}, told(task="this-app:wards")),
        (ATTACKED | {"seed": 3}, told(**ATTACKED, seed=3)),
        ({"attack": "alie"}, told(attack="alie")),  # alie.z is "auto".
    ],
)
def test_what_an_honest_server_tells_is_not_refused(config, message):
    RunRules().check_settings(message, config)
    listed = {"local-epochs": {"most": 5}, "attack": ["none", "ipm", "alie"]}
    for unknown_keys in (True, False):
        RunRules(unknown_keys=unknown_keys, config=listed).check_settings(message, config)


@pytest.mark.parametrize("config", [{}, RunConfig.defaults(), {"local-epochs": "auto"}])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("momentum", 0.95),
        ("fedprox.proximal-mu", 1e9),
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
        RunRules().check_settings(message, config)
    RunRules(unknown_keys=True).check_settings(message, config)
    with pytest.raises(RefusedByMemberError, match=reason):
        RunRules(unknown_keys=True, config={key: "x"}).check_settings(message, config)


def test_a_member_answers_from_its_first_day_to_its_last(tmp_path):
    counts = RoundCounts(tmp_path, RunRules(first_day=TUESDAY, last_day=TUESDAY))
    counts.count("train", TUESDAY)
    for day, reason in ((MONDAY, "part from 2026-01-06 on"), (WEDNESDAY, "part until 2026-01-06")):
        with pytest.raises(RefusedByMemberError, match=reason):
            counts.count("train", day)


@pytest.mark.parametrize(
    ("key", "accepted", "refused"),
    [
        ("masking.mode", "keeper", "masking.mode = 'off'; this member accepts keeper"),
        ("evidence.receipts", True, "evidence.receipts = False; this member accepts True"),
        ("attribution", "simpson", "attribution = 'off'; this member accepts simpson"),
        ("run-name", "october", "run-name = 'auto'; this member accepts october"),
        # Nor does a message say what the server makes of these.
        ("update-clipping", 2.0, "update-clipping = 'auto'; this member accepts 2.0"),
        ("fedif.gamma", {"most": 0.5}, "fedif.gamma = 'auto'; this member accepts at most 0.5"),
        ("validation.noise", 0.1, "validation.noise = 'auto'; this member accepts 0.1"),
        (
            "influence-descent.relative",
            True,
            "influence-descent.relative = 'auto'; this member accepts True",
        ),
    ],
)
def test_what_a_policy_asks_for_is_not_left_out_by_an_app(key, accepted, refused):
    """The app's own config has no such key, and the run its default."""
    rules = RunRules(config={key: accepted})
    with pytest.raises(RefusedByMemberError, match=re.escape(f"run config {refused}")):
        rules.check_run("fedif/app", {"rounds": 1}, {"rounds": 1})
    value = accepted["most"] if isinstance(accepted, dict) else accepted
    rules.check_run("fedif/app", {key: value}, {key: value})


def test_a_default_that_the_server_makes_out_may_be_left_out_where_messages_tell_it():
    """The learning rate is "auto" by default, and each message says what it is."""
    rules = RunRules(config={"learning-rate": {"most": 0.1}})
    rules.check_run("fedif/app", {"rounds": 1}, {"rounds": 1})
    rules.check_settings({"learning-rate": 0.1}, {"rounds": 1})
    with pytest.raises(RefusedByMemberError, match=r"learning-rate = 0\.2; this member accepts"):
        rules.check_settings({"learning-rate": 0.2}, {"rounds": 1})


def test_the_pages_example_takes_part_in_this_projects_app():
    """Its own run config says "auto" of the learning rate: each message is checked instead."""
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())
    own = flatten_dict(project["tool"]["flwr"]["app"]["config"]) | {"masking.mode": "keeper"}
    assert own["learning-rate"] == "auto"
    page = (DOCS / "member-policy.md").read_text()
    _, _, example = page.partition("```toml\n[runs.config]\n")
    listed = tomllib.loads(example.partition("```")[0])
    rules = RunRules(config=listed)
    rules.check_run("fedif/app", own, own)
    rules.check_settings({"learning-rate": 0.1}, own)
    with pytest.raises(RefusedByMemberError, match=r"learning-rate = 0\.2; this member accepts"):
        rules.check_settings({"learning-rate": 0.2}, own)


def test_an_auto_that_is_accepted_lifts_no_bound_of_what_the_server_makes_of_it():
    config = {"learning-rate": "auto"}
    rules = RunRules(config={"learning-rate": ["auto", 0.05]})
    rules.check_run("fedif/app", config, config)
    rules.check_settings({"learning-rate": 0.05}, config)
    with pytest.raises(RefusedByMemberError, match=r"learning-rate = 99\.0; this member accepts"):
        rules.check_settings({"learning-rate": 99.0}, config)


@pytest.mark.parametrize(
    ("key", "accepted"),
    [("update-clipping", {"most": 2.0}), ("device", "cpu"), ("learning-rate", "0.1")],
)
def test_an_auto_of_which_no_message_says_a_number_has_to_fit(key, accepted):
    rules = RunRules(config={key: accepted})
    with pytest.raises(RefusedByMemberError, match=f"run config {key} = 'auto'; this member"):
        rules.check_run("fedif/app", {key: "auto"}, {key: "auto"})


def test_answers_to_other_messages_count_as_well(tmp_path):
    """An app can compute in answers to queries, each with a kilobyte of its own."""
    rules = RunRules(most_rounds_a_day=1)
    counts = RoundCounts(tmp_path, rules)
    for _ in range(11):
        counts.count("query.statement", MONDAY)
    with pytest.raises(RefusedByMemberError, match="at most 11 queries a day"):
        counts.count("query", MONDAY)
    counts.count("evaluate", MONDAY)
    with pytest.raises(RefusedByMemberError, match="at most 1 evaluations a day"):
        RoundCounts(tmp_path, rules).count("evaluate", MONDAY)
    counts.count("train", MONDAY)
    counts.count("query", TUESDAY)


def test_a_day_has_so_many_rounds_and_messages_even_after_a_restart(tmp_path):
    rules = RunRules(most_rounds_a_day=2, most_messages_a_day=4)
    counts = RoundCounts(tmp_path, rules)
    counts.count("train", MONDAY)
    counts.count("train.again", MONDAY)
    counts = RoundCounts(tmp_path, rules)
    for _ in range(3):  # What was refused does not count.
        with pytest.raises(RefusedByMemberError, match="at most 2 rounds a day"):
            counts.count("train", MONDAY)
    counts.count("query", MONDAY)
    counts.count("evaluate", MONDAY)
    with pytest.raises(RefusedByMemberError, match="at most 4 messages a day"):
        RoundCounts(tmp_path, rules).count("query", MONDAY)
    RoundCounts(tmp_path, rules).count("train", TUESDAY)


def test_a_clock_that_goes_back_gives_no_day_a_second_time(tmp_path):
    """A host corrects its clock around midnight, or loses power and with it the time."""
    rules = RunRules(most_rounds_a_day=2)
    counts = RoundCounts(tmp_path, rules)
    counts.count("train", MONDAY)
    counts.count("train", MONDAY)
    counts.count("train", TUESDAY)
    counts.count("train", MONDAY)
    reason = "at most 2 rounds a day; its clock went back from 2026-01-06"
    for again in (counts, RoundCounts(tmp_path, rules)):
        with pytest.raises(RefusedByMemberError, match=reason):
            again.count("train", MONDAY)
    with pytest.raises(RefusedByMemberError, match=r"at most 2 rounds a day\Z"):
        counts.count("train", TUESDAY)
    counts.count("train", WEDNESDAY)


@pytest.mark.parametrize("content", ["", "[]", '{"day": "2026-01-05", "rounds": "x"}'])
def test_a_damaged_file_is_an_error_at_the_start(tmp_path, content):
    (tmp_path / "round-counts.json").write_text(content)
    with pytest.raises(ConfigError, match=r"without it counts begin at 0: [^\n]+\Z"):
        RoundCounts(tmp_path, RunRules())


def test_what_cannot_be_counted_is_not_answered(tmp_path):
    (tmp_path / "state").write_text("a file where the folder should be")
    with pytest.raises(StorageError):
        RoundCounts(tmp_path / "state", RunRules()).count("train", MONDAY)
