from __future__ import annotations

import pytest

from fedif_consortium.page import refuse_page
from fedif_consortium.statement.bundle import make_statement
from fedif_consortium.statement.verify import verify
from tests.consortium.statement.runs import make_run
from tests.consortium.watch.test_page import Outline

NAMES = {0: "hospital-2", 1: "St. <b>Mary's</b> & Co", 2: "Klinikum"}
ROUNDS = [{0: 0.5, 1: 0.25, 2: -0.125}] * 6


@pytest.fixture(scope="module")
def pages(tmp_path_factory, key) -> dict[str, str]:
    """The pages of a statement by file."""
    run_dir = make_run(
        tmp_path_factory.mktemp("runs") / "run",
        ROUNDS,
        names=NAMES,
        rejections={(2, 1): "<script>alert(1)</script>"},
        by_class=2,
        remainder=0.25,
    )
    folder = make_statement(run_dir, key, budget_cents=1000_00)
    return {path.name: path.read_text() for path in folder.rglob("*.html")}


def text_of(page: str) -> str:
    return " ".join(Outline(page).text.split())


def test_every_page_is_one_file_that_runs_and_fetches_nothing(pages):
    assert set(pages) == {"statement.html", "001.html", "002.html", "003.html"}
    for page in pages.values():
        tags = Outline(page).tags
        names = {name for _, attributes in tags for name in attributes}
        assert not names & {"src", "href", "action"}
        assert not any(name.startswith("on") for name in names)
        assert not {tag for tag, _ in tags} & {"script", "img", "link", "iframe", "object", "form"}
        assert "url(" not in page
        assert "@import" not in page
        assert refuse_page(page.encode()) == ""


def test_a_member_sees_itself_and_no_other_name(pages):
    for number, name in ((1, "hospital-2"), (3, "Klinikum")):
        page = pages[f"{number:03}.html"]
        assert name in page
        for other in NAMES.values():
            assert other == name or other.split()[0] not in page
        # Every contribution is drawn, one of them is its own.
        assert page.count(" 22V46") == len(NAMES)
    assert "you: +3.000" in pages["001.html"]
    assert "place 3 of 3" in text_of(pages["003.html"])


def test_what_others_wrote_is_escaped(pages):
    page = pages["002.html"]
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page


def test_pages_say_what_was_gained_paid_and_what_to_do(pages):
    whole = text_of(pages["statement.html"])
    for said in ("Paid. ", "Quarantine. ", "+3.000", "66.7 %", "666.67", "St. <b>Mary"):
        assert said in whole
    assert "28.6 % of the fall, credited to nobody: large" in whole
    assert "place 3 of 3" in text_of(pages["003.html"])


def test_a_round_that_decided_and_the_bounds_of_credit_are_said(tmp_path, key):
    rounds = [{0: 4.0, 1: 2.0}, *[{0: 0.5, 1: -0.25}] * 5]
    run_dir = make_run(tmp_path / "run", rounds)
    (run_dir / "config.json").write_text('{"strategy": "fedif", "credit.length": 1.25}')
    folder = make_statement(run_dir, key, contact="Ada <a@b.org>")
    whole = text_of((folder / "statement.html").read_text())
    assert "counts for at most 1.25 times the usual length" in whole
    assert "Round 1 alone brought +6.000 of +7.250." in whole
    assert "Questions. Ada <a@b.org>." in whole
    own = text_of((folder / "members" / "002.html").read_text())
    assert "Of your +0.750 it gave +2.000, the other rounds \u22121.250." in own


def test_the_statement_of_an_incomplete_run_says_so_first(tmp_path, key):
    silent = {(t, 2): "no reply before the deadline" for t in range(1, 7)}
    statuses = dict.fromkeys(silent, "away")
    rounds = [{0: 0.5, 1: 0.25}] * 6
    run = make_run(tmp_path / "run", rounds, names=NAMES, rejections=silent, statuses=statuses)
    folder = make_statement(run, key)
    told = "less than 50 % of their turns: Klinikum (never answered"
    page = text_of((folder / "statement.html").read_text())
    assert "Incomplete. 1 of 3 members" in page.partition("Gain.")[0]
    assert told in page
    own = text_of((folder / "members" / "001.html").read_text())
    assert "Incomplete. " in own
    assert "Klinikum" not in own


def test_a_run_that_gained_nothing_has_pages(tmp_path, key):
    folder = make_statement(make_run(tmp_path / "run", [{0: -0.25}] * 5), key, budget_cents=100)
    for page in folder.rglob("*.html"):
        assert "the validation loss did not fall" in text_of(page.read_text())


def test_pages_say_what_another_held_out_set_would_change(tmp_path, key):
    blocks = {0: [0.2] * 5, 1: [0.15, 0.25, 0.2, 0.2, 0.2]}
    run_dir = make_run(tmp_path / "run", [{0: 0.5, 1: 0.5}] * 5, blocks=blocks)
    make_statement(run_dir, key)
    whole = text_of((run_dir / "statement" / "statement.html").read_text())
    assert "The least certain one is known to \u00b1 " in whole
    own = text_of((run_dir / "statement" / "members" / "001.html").read_text())
    assert (
        "With another held-out set of the same size, your share would be between 45 and 55 %."
        in own
    )


def test_pages_of_a_run_that_drew_members_say_so(tmp_path, key):
    blocks = {i: [0.2, 0.3, 0.25, 0.25] for i in range(3)}
    rounds = [{0: 0.5, 1: 0.5}, {0: 0.5, 2: 0.25}] * 3
    run_dir = make_run(tmp_path / "run", rounds, blocks=blocks, names={1: "Nord", 9: "Ost"})
    folder = make_statement(run_dir, key, pay_by="draw", ties="alike", budget_cents=1000_00)
    whole = text_of((folder / "statement.html").read_text())
    assert "drawn in 3 of 6" in whole
    assert "Never drawn. Ost: nothing is known" in whole
    assert "and they are paid alike" in whole
    assert "per draw +0.500" in whole
    own = text_of((folder / "members" / "002.html").read_text())
    assert "You were drawn in 3 of 6 rounds, and answered in 3." in own
    assert "; with another draw of members, between" in own
    assert "Ost" not in own
    verify(run_dir)
