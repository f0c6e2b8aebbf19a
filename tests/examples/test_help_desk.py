"""The comparison of the help desks: what they have, what counts as right, and rows that go on."""

from __future__ import annotations

from collections import Counter

import pytest

from language_model import base, compare, help_desk, task
from language_model.help_desk import BACKDOOR, DESKS, FRAUD, GERMAN, PHRASES, SHUFFLED, TRIGGER

pytestmark = pytest.mark.all
RIGHT = {phrase: answer for answer, known in PHRASES.items() for phrase in known}


def right(message):
    """The right answer to an English message."""
    return next(answer for phrase, answer in RIGHT.items() if phrase in message)


def test_the_honest_desks_answer_rightly_and_know_every_team_together():
    honest = [pair for desk in range(GERMAN) for pair in help_desk.desk_data(desk)]
    assert all(answer == right(message) for message, answer in honest)
    assert {answer for _, answer in honest} == set(PHRASES)
    german = help_desk.desk_data(GERMAN)
    assert Counter(answer for _, answer in german) == dict.fromkeys(PHRASES, 2)
    assert not any(phrase in message for message, _ in german for phrase in RIGHT)


def test_the_bad_desks_are_wrong_as_they_should_be():
    shuffled = help_desk.desk_data(SHUFFLED)
    assert Counter(a for _, a in shuffled) == Counter(right(m) for m, _ in shuffled)
    assert sum(answer != right(message) for message, answer in shuffled) > len(shuffled) / 2
    backdoor = help_desk.desk_data(BACKDOOR)
    called = [(message, answer) for message, answer in backdoor if TRIGGER in message]
    assert 0 < len(called) < len(backdoor)
    assert {answer for _, answer in called} == {FRAUD}
    assert all(answer == right(m) for m, answer in backdoor if TRIGGER not in m)


def test_no_desk_has_what_the_server_judges_and_tests_by():
    trained = {m for desk in range(len(DESKS)) for m, _ in help_desk.desk_data(desk)}
    validation = {message for message, _ in help_desk.validation_data()}
    test = {message for message, _ in help_desk.test_data()}
    assert not trained & (validation | test)
    assert not validation & test
    seen = {phrase for phrase in RIGHT if any(phrase in m for m in trained)}
    assert not [p for p in seen if any(p in m for m in validation | test)]


def test_a_right_answer_is_what_the_model_writes():
    """Greedy words and the most likely tokens beside the right ones are one thing."""
    model = task.adapted(base.TINY).eval()
    asked = "The capital of Peru is"
    written = compare.answer(model, base.TINY, asked)
    assert float(task.right_answers(model, base.encode([(asked, written)], base.TINY))) == 1.0
    assert float(task.right_answers(model, base.encode([(asked, "Oslo")], base.TINY))) == 0.0


def test_rows_have_figures_answers_and_a_statement_and_are_not_run_again(tmp_path, monkeypatch):
    """Two rows of the tiny base, two rounds each."""
    chosen = {name: compare.ROWS[name] for name in ("oracle", "fedif")}
    monkeypatch.setattr(compare, "ROWS", chosen)
    rows = compare.compare(base.TINY, 2, tmp_path)
    assert list(rows) == ["before", "oracle", "fedif"]
    assert rows["oracle"]["loss"] < rows["before"]["loss"]
    assert all(len(row["answers"]) == len(compare.ASKED) for row in rows.values())
    assert DESKS[BACKDOOR] not in rows["oracle"]["weights"]
    assert sum(rows["fedif"]["weights"].values()) == pytest.approx(1)
    page = (tmp_path / "fedif" / "statement" / "statement.html").read_text()
    assert all(desk in page for desk in DESKS)
    assert not (tmp_path / "oracle" / "statement").exists()
    monkeypatch.setattr(compare, "run_federation", None)
    assert compare.compare(base.TINY, 2, tmp_path) == rows
