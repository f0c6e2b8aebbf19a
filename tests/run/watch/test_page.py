"""The page as a file: what it says, and what it cannot do."""

from __future__ import annotations

import re
import time
from html.parser import HTMLParser

import pytest

from fedif_flower.run.watch.page import lasting, moment, render, render_file
from fedif_flower.run.watch.reader import RunReader
from fedif_flower.run.watch.state import Watched
from tests.run.watch.made import NOW, asked, client, make_folder
from tests.run.watch.test_state import watched

HOSTILE = '<script>alert(1)</script>"><img src=x onerror=alert(2)>{{ 7 * 7 }}'
VOID = {"meta", "img", "br", "link", "input", "circle", "line", "polyline"}


class Outline(HTMLParser):
    """The tags of a page, checked to close in order, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += f"{data} "


@pytest.fixture
def run(tmp_path) -> Watched:
    lines = [client(t, i, weight_score=0.5) for t in (1, 2) for i in (1, 2)]
    lines += [client(t, 3, "refused", rejection="net.0 is not finite") for t in (1, 2)]
    live = {"time": NOW, "since": NOW, "round": 3, "asked": asked(1, 2), "answered": [1]}
    folder = make_folder(
        tmp_path / "october",
        lines,
        accuracies=[0.1, 0.5, 0.62],
        contributions={(1, 1): 0.5, (2, 2): -0.125},
        names={1: "Graz", 2: "Köln"},
        live=live | {"num_asked": 2, "num_answered": 1, "num_online": 3},
    )
    folder.report.write_text("")
    return watched(folder)


def test_a_page_tells_how_the_run_is(run):
    outline = Outline(render(run))
    text = " ".join(outline.text.split())
    for words in (
        "fedif on digits",
        "Running : round 2 of 10 is over, test accuracy 62.0%.",
        "round 3: 1 of 2 asked have answered",
        "Ends in about 32 s",
        "3 connected; 1 needs a look",
        "client 3 0 of 2 replies counted refused last seen in round 2; net.0 is not finite",
        "Köln 2 of 2 replies counted training last seen in round 2 50.0 % \N{MINUS SIGN}0.1250",
        "Graz 2 of 2 replies counted answered last seen in round 2 50.0 % +0.5000 0.500",
        "asked, its reply is awaited",
        "num-clients 4",
    ):
        assert words in text
    assert ("a", {"href": "report.md"}) in outline.tags


def test_tables_have_headers_and_pictures_have_titles(run):
    page = render(run)
    tags = [tag for tag, _ in Outline(page).tags]
    assert tags.count("table") == tags.count("caption") == 4
    assert all(
        f'<th scope="{scope}"' in table
        for table in re.findall(r"<table.*?</table>", page, re.DOTALL)
        for scope in ("row", *(["col"] if "<thead>" in table else []))
    )
    assert tags.count("svg") == len(re.findall(r"<svg[^>]*><title>", page)) == 2
    assert [tag for tag in tags if tag in ("h1", "h2")][:2] == ["h1", "h2"]
    assert ("html", {"lang": "en"}) in Outline(page).tags


def test_what_members_and_operators_wrote_is_text(tmp_path):
    folder = make_folder(
        tmp_path / "<b>run",
        [client(1, 1, "refused", rejection=HOSTILE), client(1, 2)],
        accuracies=[0.1, 0.5],
        names={1: HOSTILE},
        live={"asked": asked(3, name=HOSTILE[:70])},
        round_failed=[False, True],
        reason=["", HOSTILE],
    )
    config = folder.config.read()
    folder.config.write(config | {"strategy": HOSTILE, "task": HOSTILE, HOSTILE: HOSTILE})
    page = render(Watched(RunReader(folder).read(), time.time()))
    tags = Outline(page).tags
    assert not {"script", "img", "b-run"} & {tag for tag, _ in tags}
    assert not any(name.startswith("on") for _, attributes in tags for name in attributes)
    assert HOSTILE in Outline(page).text
    assert "49" not in re.findall(r"onerror=alert\(2\)&gt;(.{1,8})", page)[0]


def test_a_file_runs_nothing_and_fetches_nothing(run):
    page = render(run)
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy.startswith("default-src &#39;none&#39;; style-src &#39;sha256-")
    assert "script" not in page
    assert not re.search(r"https?:|//", re.sub(r'xmlns="[^"]*"', "", page))
    assert "style=" not in page  # The policy would not let it be.
    assert "<script>" in render(run, served=True)


def test_a_file_elsewhere_links_to_the_folder(run, tmp_path):
    folder = tmp_path / "october"

    def link(file) -> str:
        return re.findall(r'href="([^"]*)"', render_file(run, folder, file))[0]

    assert link(folder / "watch.html") == "report.md"
    assert link(tmp_path / "watch.html") == "october/report.md"
    assert link(tmp_path / "pages" / "a.html") == "../october/report.md"


def test_a_large_federation_s_page_stays_small(tmp_path):
    lines = [client(1, 1000 + i) for i in range(3000)]
    accuracies = [0.5 + t % 7 / 100 for t in range(3000)]
    folder = make_folder(tmp_path, lines, accuracies=accuracies, num_rounds=3000)
    page = render(watched(folder))
    assert len(page) < 800_000
    assert max(len(p.split()) for p in re.findall(r'points="([^"]*)"', page)) <= 300
    assert page.index("1,960 more members") < page.index("1,000 more are not on this page")
    assert page.count("<details") == 3


def test_a_folder_with_next_to_nothing_has_a_page(tmp_path):
    folder = make_folder(tmp_path / "new")
    assert "no round is over yet" in render(watched(folder))
    folder.config.path.unlink()
    assert "<h1>new</h1>" in render(watched(folder))


def test_times_in_words():
    assert [lasting(s) for s in (0.4, 119, 120, 7_199, 7_200, 172_800)] == [
        *("0 s", "119 s", "2 min", "120 min", "2 hours", "2 days")
    ]
    assert moment(0.0) == "1970-01-01 00:00:00 UTC"
    assert moment(1e300) == moment(float("nan")) == "at no time"
