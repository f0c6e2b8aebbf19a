"""Settings that are not those of the run config that members agreed to."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedif_consortium.evidence.attempts import config_hash
from fedif_consortium.evidence.bound_rows import RUN_CONFIG, agreed_settings
from fedif_consortium.statement.bundle import make_statement
from fedif_consortium.statement.verify import verify
from fedif_flower.errors import StatementError
from fedif_flower.run.folder import SETTINGS_KEY, RunFolder
from tests.consortium.statement.runs import make_run

ID = "0" * 32
AGREED = {"strategy": "fedif", "attribution": "simpson", "credit.class-shift": 1.0}


def stated(tmp_path, settings, *, agreed=AGREED, provenance=None, **terms):
    """Return a run that members agreed to, with other settings in its files, and a statement."""
    attempts = {"name": "october", "attempts": [{"run": ID, "config": config_hash(agreed)}]}
    origin = {"attempts": attempts, RUN_CONFIG: agreed, "run_id": ID, **(provenance or {})}
    rounds = [{0: 0.5, 1: 0.25}, {0: 0.25, 1: 0.125}]
    run = RunFolder(make_run(tmp_path / "run", rounds, provenance=origin))
    if settings is None:
        run.config.path.unlink()
    else:
        run.config.write(settings)
    make_statement(run.path, Ed25519PrivateKey.generate(), **terms)
    return run


def test_the_settings_that_follow_from_the_run_config_are_verified(tmp_path):
    run = stated(tmp_path, {**AGREED, "resume": "auto", "pace.late-rounds": 0, "Own.factor": 3.0})
    assert verify(run.path).chosen == ("pay-by sum", "ties apart")


def test_keys_of_sections_that_the_run_did_not_choose_are_not_missing(tmp_path):
    """``flwr run`` sends all that an app lists: an attack's epsilon, and a part's that is off."""
    agreed = {**AGREED, "adversarial.epsilon": 0.03, "trimmed-mean.fraction": 0, "Mine.on": False}
    assert verify(stated(tmp_path, AGREED, agreed=agreed).path).chosen


def test_a_task_that_the_app_brings_along_is_in_no_run_config(tmp_path):
    assert verify(stated(tmp_path, {**AGREED, "task": "this-app:sepsis"}).path).chosen
    other = stated(tmp_path / "other", {**AGREED, "task": "elsewhere:sepsis"})
    with pytest.raises(StatementError, match="has task = 'elsewhere:sepsis'; members agreed to a"):
        verify(other.path)


@pytest.mark.parametrize("key", ["credit.class-shift", "seed", "adversarial.epsilon", "Mine.on"])
def test_a_key_of_another_value_is_missed(tmp_path, key):
    value = 0 if key == "credit.class-shift" else 7
    agreed = {"strategy": "fedif", "attribution": "simpson", key: value}
    run = stated(tmp_path, {"strategy": "fedif", "attribution": "simpson"}, agreed=agreed)
    with pytest.raises(StatementError, match=rf"lacks {key}; members agreed to {key} = {value}"):
        verify(run.path)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"strategy": "fedif", "attribution": "simpson"},
            r"config\.json lacks credit\.class-shift; members agreed to credit\.class-shift = 1\.0",
        ),
        (
            {**AGREED, "pace.late-rounds": 9},
            r"pace\.late-rounds = 9; members agreed to a run config without it, so that "
            r"pace\.late-rounds = 0",
        ),
        ({**AGREED, "credit.length": 9.0}, r"without it, so that credit\.length = 1\.25"),
        (None, r"config\.json is missing: a run with a run config has it"),
    ],
    ids=["a key is missing", "late rounds", "credit", "no file"],
)
def test_settings_of_the_server_alone_are_refused(tmp_path, settings, words):
    # Without a file, those of an app of its own were read in its place.
    provenance = {SETTINGS_KEY: {**AGREED, "strategy": "FedIF"}}
    run = stated(tmp_path, settings, provenance=provenance)
    with pytest.raises(StatementError, match=words):
        verify(run.path)


def test_terms_that_the_run_config_leaves_out_were_chosen_with_the_statement(tmp_path):
    terms = {"statement.budget": "1000", "statement.pay-by": "draw", "statement.ties": "alike"}
    how = {"budget_cents": 1000_00, "pay_by": "draw", "ties": "alike"}
    run = stated(tmp_path, {**AGREED, **terms}, **how)
    assert verify(run.path).chosen == ("budget 1000.00", "pay-by draw", "ties alike")


def test_terms_in_own_settings_are_agreed_to(tmp_path):
    agreed = {**AGREED, "own-settings": "statement.pay-by=draw"}
    settings = {**AGREED, "own-settings": "", "statement.pay-by": "draw"}
    run = stated(tmp_path, settings, agreed=agreed, pay_by="draw")
    assert verify(run.path).chosen == ("ties apart",)


def test_what_a_run_config_leaves_out_has_its_default(tmp_path):
    run = stated(tmp_path, AGREED)
    settings = agreed_settings(run)
    assert settings["credit.class-shift"] == 1.0
    assert (settings["pace.late-rounds"], settings["credit.length"]) == (0, 1.25)
    assert "num-clients" not in settings  # "auto" is no value.


@pytest.mark.parametrize(
    ("recorded", "words"),
    [(None, "lacks the run config"), ([["strategy", "fedif"]], "run_config is no mapping")],
)
def test_a_run_config_that_is_none_is_refused(tmp_path, recorded, words):
    run = stated(tmp_path, AGREED)
    run.provenance.write({**run.provenance.read(), RUN_CONFIG: recorded})
    make_statement(run.path, Ed25519PrivateKey.generate(), again=True)
    with pytest.raises(StatementError, match=words):
        verify(run.path)
