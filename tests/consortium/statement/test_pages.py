from __future__ import annotations

import re

import pytest

from fedif_consortium.page import reason_against_page
from fedif_consortium.statement.bundle import make_statement
from fedif_consortium.statement.pages import open_games
from fedif_consortium.statement.verify import verify
from fedif_flower.run.folder import RunFolder
from tests.consortium.statement.runs import make_run
from tests.consortium.statement.signed_runs import altered, rewrite
from tests.consortium.watch.test_page import Outline

NAMES = {0: "hospital-2", 1: "St. <b>Mary's</b> & Co", 2: "Klinikum"}


def stated(folder, key, rounds, of_statement, config=None, **of_run) -> dict[str, str]:
    """The pages of a statement by file."""
    run_dir = make_run(folder / "run", rounds, **of_run)
    if config:
        RunFolder(run_dir).config.write(config)
    folder = make_statement(run_dir, key, **of_statement)
    verify(run_dir)
    return {path.name: path.read_text() for path in folder.rglob("*.html")}


@pytest.fixture(scope="module")
def pages(tmp_path_factory, key) -> dict[str, str]:
    return stated(
        *(tmp_path_factory.mktemp("runs"), key, [{0: 0.5, 1: 0.25, 2: -0.125}] * 6),
        {"budget_cents": 1000_00},
        names=NAMES,
        rejections={(2, 1): "<script>alert(1)</script>"},
        by_class=2,
        remainder=0.25,
    )


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
        assert reason_against_page(page.encode()) == ""


def test_labels_beside_an_axis_keep_their_signs_on_a_phone(pages):
    """There letters are twice as large; a "+" that is half cut off looks like a minus."""
    everything = "".join(pages.values())
    places = set(re.findall(r'<text class="value" x="(\d+)"', everything))
    [moved] = set(re.findall(r"text.value { text-anchor: start; transform: (.*?);", everything))
    assert places == {"92"}
    assert moved == "translateX(-92px)"
    # No label ends at an axis without being one of them.
    assert 'text-anchor="end">+' not in re.sub(r'<text class="value".*?</text>', "", everything)


def test_a_share_is_of_what_was_gained(tmp_path, key):
    """A quarter of what each gave is credited: an eighth of 10 nats, and half of all credits."""
    rounds = [{0: 1.0, 1: 1.0}] * 5
    pages = stated(tmp_path, key, rounds, {}, credited={0: 0.25, 1: 0.25})
    assert "Share 12.5 % of what was gained; place 1 of 2" in text_of(pages["001.html"])


def test_a_loss_is_in_nats_only_where_it_is_a_cross_entropy(pages):
    for page in map(text_of, pages.values()):
        condition = "in nats where that loss is a cross-entropy"
        assert page.count("nats") == page.count(condition)


def test_a_member_sees_itself_and_no_other_name(pages):
    for number, name in ((1, "hospital-2"), (3, "Klinikum")):
        page = pages[f"{number:03}.html"]
        assert name in page
        for other in NAMES.values():
            assert other == name or other.split()[0] not in page
        # Every contribution is drawn, one of them is its own.
        assert page.count(" 22V46") == len(NAMES)
    assert "you: +3.000" in pages["001.html"]


def test_what_others_wrote_is_escaped(pages):
    assert "<script" not in pages["002.html"]
    assert "&lt;script&gt;alert(1)" in pages["002.html"]


def test_pages_say_what_was_gained_paid_and_what_to_do(pages):
    whole = text_of(pages["statement.html"])
    for said in ("Paid. ", "Quarantine. ", "+3.000", "66.7 %", "666.67", "St. <b>Mary"):
        assert said in whole
    assert "28.6 % of the fall, credited to nobody: large" in whole
    assert "place 3 of 3" in text_of(pages["003.html"])


SILENT = {(t, 2): "no reply before the deadline" for t in range(1, 7)}
SAID = {
    "a round that decided, and bounds": (
        ([{0: 4.0, 1: 2.0}, *[{0: 0.5, 1: -0.25}] * 5], {"contact": "Ada <a@b.org>"}),
        {"config": {"strategy": "fedif", "credit.length": 1.25}},
        "counts for at most 1.25 times the usual length",
        "Round 1 alone brought +6.000 of +7.250.",
        "Questions. Ada <a@b.org>.",
        "2: Of your +0.750 it gave +2.000, the other rounds \u22121.250.",
    ),
    "an incomplete run": (
        ([{0: 0.5, 1: 0.25}] * 6, {}),
        {"names": NAMES, "rejections": SILENT, "statuses": dict.fromkeys(SILENT, "away")},
        "Incomplete. 1 of 3 members",
        "less than 50 % of their turns: Klinikum (never answered",
        "1: Incomplete. ",
    ),
    "no gain": (
        ([{0: -0.25}] * 5, {"budget_cents": 100}),
        {},
        "the validation loss did not fall",
        "1: the validation loss did not fall",
    ),
    "another held-out set": (
        ([{0: 0.5, 1: 0.5}] * 5, {}),
        {"blocks": {0: [0.2] * 5, 1: [0.15, 0.25, 0.2, 0.2, 0.2]}},
        "The least certain one is known to \u00b1 ",
        "1: With another held-out set of the same size, your share would be between 45 and 55 %.",
    ),
    "members that were drawn": (
        ([{0: 0.5, 1: 0.5}, {0: 0.5, 2: 0.25}] * 3, {"pay_by": "draw", "ties": "alike"}),
        {"blocks": dict.fromkeys(range(3), (0.2, 0.3, 0.25, 0.25)), "names": {1: "Nord", 9: "Ost"}},
        "drawn in 3 of 6",
        "Never drawn. Ost: nothing is known",
        "and they are paid alike",
        "per draw +0.500",
        "2: You were drawn in 3 of 6 rounds, and answered in 3.",
        "2: ; with another draw of members, between",
    ),
}


@pytest.mark.parametrize("case", SAID)
def test_pages_say_what_a_run_was_like(tmp_path, key, case):
    given, more, *told = SAID[case]
    pages = stated(tmp_path, key, *given, **more)
    for said in told:
        is_own = said[1] == ":"  # On the page of a member.
        page = pages[f"00{said[0]}.html" if is_own else "statement.html"]
        assert said[3 * is_own :] in text_of(page)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"credit.length": 0.0},
        {"credit.secret-validation": False},
        {"strategy": "influence-descent", "influence-descent.relative": False},
    ],
)
def test_each_game_that_settings_leave_open_is_named(change):
    safe = {"credit.length": 1.25, "credit.borrowed": 1.6, "credit.weight": 2.0}
    found = open_games({**safe, "credit.secret-validation": True, **change})
    assert [words.partition(" =")[0] for words in found] == list(change)[-1:]


def diverged(folder, key, rounds, after: str) -> tuple[str, str]:
    """Return the consortium's page, and a member's, of a run whose loss is NaN after a round."""
    run = RunFolder(make_run(folder / "run", rounds))
    before = str(int(after) + 1)
    rewrite(run.attributed_rounds, altered({"round": after}, loss_after="nan"))
    rewrite(run.attributed_rounds, altered({"round": before}, loss_before="nan"))
    statement = make_statement(run.path, key)
    verify(run.path)
    return (statement / "statement.html").read_text(), (statement / "members/001.html").read_text()


def test_each_loss_is_drawn_at_its_own_round(tmp_path, key):
    """A round between two that diverged has no loss, and those behind it stay where they are."""
    half, nothing = {0: 0.25, 1: 0.25}, {0: 0.0, 1: 0.0}
    page, _ = diverged(tmp_path, key, [half, half, nothing, nothing, half], after="3")
    (points,) = re.findall(r'<polyline points="([^"]*)"', page)
    assert [point.split(",")[0] for point in points.split()] == [
        "100.00",
        "222.00",
        "344.00",
        "588.00",
        "710.00",
    ]
    assert re.findall(r'<text x="710.00" y="150" text-anchor="middle">(\d+)', page) == ["5"]


def test_a_model_without_a_loss_at_the_end_lowered_nothing(tmp_path, key):
    rounds = [{0: 0.25, 1: 0.25}, {0: 0.0, 1: 0.0}]
    for page in map(text_of, diverged(tmp_path, key, rounds, after="2")):
        assert "2 rounds did not lower the validation loss: 2.000 before, not finite after." in page
        assert "together lowered" not in page
        assert "of a fall of" not in page
        assert not re.search("of the fall of [+\u2212]?[0-9]", page)
