from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fedif_consortium.page import MAX_PAGE_BYTES, refuse_page
from fedif_consortium.statement.bundle import make_statement
from fedif_consortium.statement.verify import verify
from fedif_flower.errors import StatementError
from tests.consortium.statement.runs import make_run

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


class Tags(HTMLParser):
    """Collects a page's tags, and checks that they are closed in order."""

    VOID = ("meta", "br", "hr", "col", "line", "circle", "rect", "polyline", "path")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.links: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        self.links += [value for name, value in attrs if name in ("src", "href", "action")]
        self.links += [name for name, _ in attrs if name.startswith("on")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def text_of(page: str) -> str:
    return re.sub(
        r"\s+", " ", re.sub(r"<[^>]+>", " ", re.sub(r"<style>.*?</style>", "", page, flags=re.S))
    )


def test_every_page_is_one_file_that_runs_and_fetches_nothing(pages):
    assert set(pages) == {"statement.html", "001.html", "002.html", "003.html"}
    for page in pages.values():
        tags = Tags()
        tags.feed(page)
        assert tags.open == []
        assert tags.links == []
        assert not tags.seen & {"script", "img", "link", "iframe", "object", "form"}
        assert "url(" not in page
        assert "@import" not in page
        assert refuse_page(page.encode()) == ""


def test_the_consortium_sees_every_member_and_the_sums(pages):
    text = text_of(pages["statement.html"])
    assert "hospital-2" in text
    assert "St. &lt;b&gt;Mary" in text
    for figure in (
        "+3.000",
        "+1.500",
        "\u22120.750",
        "66.7 %",
        "33.3 %",
        "0.0 %",
        "666.67",
        "333.33",
    ):
        assert figure in text
    assert "1\u202f000.00" in pages["statement.html"]
    assert "100.0 %" in text
    assert "28.6 % of the fall, credited to nobody: large; attribution = adaptive" in text


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


def test_pages_begin_with_a_summary_and_say_whom_to_ask(tmp_path, key):
    rounds = [{0: 4.0, 1: 2.0, 2: 0.0}, *[{0: 0.5, 1: -0.25, 2: 0.0}] * 5]
    run_dir = make_run(tmp_path / "run", rounds, names={0: "Nord", 1: "Sued", 2: "West"})
    make_statement(run_dir, key, budget_cents=1000_00, contact="Ada <ada@example.org>")
    folder = run_dir / "statement"
    whole = text_of((folder / "statement.html").read_text())
    for said in (
        "Gain. 6 rounds lowered the validation loss: 2.000 before, -5.25 after.",
        "Paid. 1 000.00 of 1 000.00 go to 2 of 3 members. Nord gets the most: 896.55.",
        "Round 1 alone brought +6.000 of +7.250.",
        "weigh paying from round 2 on (fedif statement RUN_DIR --from-round 2).",
        "Not certain. The intervals of 1 of the 2 members that changed anything include 0",
        "Review. Ask before you pay: West.",
        "West : See whether it trains at all",
        "Questions. Ada &lt;ada@example.org&gt;.",
        "\u22121.250 without round 1",
    ):
        assert said in whole, said
    own = text_of((folder / "members" / "002.html").read_text())
    for said in (
        "Paid. You get 103.45 of 1 000.00.",
        "Your updates lowered the validation loss by 0.750. 6 rounds lowered",
        "Of your +0.750 it gave +2.000, the other rounds \u22121.250.",
        "Your interval includes 0",
        "Accepted. It contributed",
    ):
        assert said in own, said
    none = text_of((folder / "members" / "003.html").read_text())
    assert "Your updates changed nothing." in none
    assert "The verdict changes no amount" in none
    make_statement(run_dir, key, from_round=2, again=True)
    later = text_of((folder / "statement.html").read_text())
    assert "fedif, rounds 2 to 6, 3 members" in later
    assert "Ask whoever ran this federation" in later
    assert "One round decided" not in later
    verify(run_dir)


def test_the_statement_of_an_incomplete_run_says_so_first(tmp_path, key):
    silent = {(t, 2): "no reply before the deadline" for t in range(1, 7)}
    statuses = dict.fromkeys(silent, "away")
    gone = {"round": 6, "partition_id": 2, "client_id": 2, "presence": "offline"}
    gone |= {"at": "2026-01-01 09:30:05"}
    run_dir = make_run(
        tmp_path / "run",
        [{0: 0.5, 1: 0.25}] * 6,
        names=NAMES,
        rejections=silent,
        statuses=statuses,
        attendance=[gone],
    )
    folder = make_statement(run_dir, key)
    page = text_of((folder / "statement.html").read_text())
    _, _, in_short = page.partition(" members. Made ")
    told = "Klinikum (never answered; last seen: round 5, 2026-01-01 09:30:05 UTC)"
    assert in_short.partition(". ")[2].startswith("Incomplete. 1 of 3 members took part in")
    assert f"less than 50 % of their turns: {told}." in page
    assert "------" in page
    own = text_of(next(folder.rglob("001.html")).read_text())
    assert "Incomplete. Too little of what this run asked its members for came." in own
    assert "Klinikum" not in own
    verify(run_dir)
    lines = (run_dir / "attendance.csv").read_text()
    (run_dir / "attendance.csv").write_text(lines.replace("offline", "there"))
    with pytest.raises(StatementError, match=r"attendance\.csv was changed"):
        verify(run_dir)


def test_what_others_wrote_is_escaped(pages):
    page = pages["002.html"]
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page


@pytest.mark.parametrize(
    ("remainder", "said"),
    [
        (0.0, "less than 0.1 % of the fall, credited to nobody"),
        (0.05, "16.7 % of the fall, credited to nobody: large"),
        (-0.05, "nobody's: the contributions add up to 25.0 % more than the fall: large"),
    ],
)
def test_the_remainder_s_sign_is_told_in_words(tmp_path, key, remainder, said):
    run_dir = make_run(tmp_path / "run", [{0: 0.25}] * 5, remainder=remainder)
    page = (make_statement(run_dir, key) / "statement.html").read_text()
    assert said in text_of(page).replace("&#39;", "'")
    assert "the error of measuring along a step" in text_of(page)


@pytest.mark.parametrize("value", [0.0, -0.25, 1e-9])
def test_runs_that_gained_nothing_or_little_have_pages(tmp_path, key, value):
    folder = make_statement(make_run(tmp_path / "run", [{0: value}] * 5), key, budget_cents=100)
    text = text_of((folder / "statement.html").read_text())
    reason = "the validation loss did not fall: there is no gain to share"
    assert (f"not shared out: {reason}" in text) == (value <= 0)
    assert (f"No shares. In this run {reason}." in " ".join(text.split())) == (value <= 0)
    own = text_of((folder / "members" / "001.html").read_text())
    assert (reason in own) == (value <= 0)


@pytest.mark.all
def test_a_large_consortium_s_page_stays_below_what_a_node_takes(tmp_path, key):
    rounds = [{i: 0.001 * i for i in range(300)} for _ in range(5)]
    folder = make_statement(make_run(tmp_path / "run", rounds), key)
    sizes = [len(page.read_bytes()) for page in Path(folder / "members").iterdir()]
    assert len(sizes) == 300
    assert max(sizes) < MAX_PAGE_BYTES / 4


def test_pages_say_what_another_held_out_set_would_change(tmp_path, key):
    blocks = {0: [0.2] * 5, 1: [0.15, 0.25, 0.2, 0.2, 0.2]}
    run_dir = make_run(tmp_path / "run", [{0: 0.5, 1: 0.5}] * 5, blocks=blocks)
    make_statement(run_dir, key)
    whole = text_of((run_dir / "statement" / "statement.html").read_text())
    assert "The least certain one is known to \u00b1 " in whole
    assert "with four times as many" in whole
    own = text_of((run_dir / "statement" / "members" / "001.html").read_text())
    assert (
        "With another held-out set of the same size, your share would be between 45 and 55 %."
        in own
    )
