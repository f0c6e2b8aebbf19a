"""The page as a file: what it says, and what it cannot do."""

from __future__ import annotations

import re
import time
from base64 import b64encode
from html.parser import HTMLParser

import pytest

from fedif_consortium.watch import page
from fedif_consortium.watch.page import duration_words, keep_page, render
from fedif_consortium.watch.state import Watched
from tests.consortium.watch.made import NOW, asked, client, make_folder
from tests.consortium.watch.test_state import watched

HOSTILE = '<script>alert(1)</script>"><img src=x onerror=alert(2)>{{ 7 * 7 }}'
VOID = {"meta", "img", "br", "hr", "col", "input", "circle", "line", "polyline", "path", "rect"}


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
    live = {"since": NOW, "round": 3, "asked": asked(1, 2), "answered": [1]}
    live |= {"num_asked": 2, "num_answered": 1}
    accuracies, names = [0.1, 0.5, 0.62], {1: "Graz", 2: "Köln"}
    folder = make_folder(tmp_path, lines, accuracies=accuracies, names=names, live=live)
    folder.attribution.begin()
    folder.attribution.append([{"client_id": 1, "contribution": 0.5}])
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
        # Two in a row may be chance: no remark, but a look.
        "Nothing is wrong with the run as a whole. Members that need a look: 1,",
        "client 3 refused 2 in a row did not count; net.0 is not finite 0 of 2",
        "Graz answered 2 of 2 50.0 % +0.5 0.500",
    ):
        assert words in text
    assert " nats" not in text  # The loss may be another than cross-entropy.
    assert ("a", {"href": "./report.md"}) in outline.tags


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.0, "0 s"), (0.3, "under 1 s"), (119.0, "119 s"), (120.0, "2 min"), (172_800.0, "2 days")],
)
def test_times_are_told_in_their_largest_unit(seconds, words):
    """A round of the first app takes a third of a second, not none."""
    assert duration_words(seconds) == words


def test_a_page_tells_which_labels_the_model_contradicts(tmp_path):
    shares = [0.5, 0.125, None, 0.0625]
    folder = make_folder(tmp_path, [client(3, 1)], validation_contradicted=shares)
    folder.provenance.write({"held_out": {"corrected_noise": 0.2}})
    text = " ".join(Outline(render(watched(folder))).text.split())
    assert "Held-out labels contradicted 6.2 % by the last model" in text
    assert "the loss is corrected for 20.0 %" in text
    # By round, the last one first: in one of them nobody asked the model.
    assert re.findall(r"accuracy \d+\.\d% \d of \d (\S+)", text.partition("Last rounds")[2]) == [
        "6.2",
        "\N{EN DASH}",
        "12.5",
        "50.0",
    ]


def test_a_page_of_a_run_without_held_out_labels_says_nothing_of_them(run):
    assert "contradicted" not in render(run)


def test_what_members_and_operators_wrote_is_text_on_a_page_that_fetches_nothing(tmp_path):
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
    shown = re.sub(r"data:image/png;base64,[\w+/=]*", "PICTURE", render(Watched(folder)))
    outline = Outline(shown)
    assert HOSTILE in outline.text
    assert not {"script", "b-run"} & {tag for tag, _ in outline.tags}
    assert not any(name.startswith("on") for _, attributes in outline.tags for name in attributes)
    assert [a["src"] for tag, a in outline.tags if tag == "img"] == ["PICTURE"]
    assert "49" not in re.findall(r"onerror=alert\(2\)&gt;(.{1,8})", shown)[0]
    assert "Content-Security-Policy\" content=\"default-src 'none'; img-src data:; style-" in shown
    assert not re.search(r"https?:|[^<]//", shown)


def test_a_page_is_written_again_until_the_run_is_over(tmp_path, monkeypatch):
    folder = make_folder(tmp_path / "run", live={"time": time.time()}, num_rounds=4)
    folder.report.write_text("")
    file = tmp_path / "pages" / "run.html"
    file.parent.mkdir()
    seen = []

    def sleep(seconds: float) -> None:
        seen.append(file.read_text())
        line = {"round": 4, "accepted": 1, "rejected": 0, "failed": 0, "round_failed": False}
        folder.rounds.append([line])
        folder.summary.write({"last_round_failed": False})
        folder.pictures["weight-scores"].write_bytes(b"the report's own")

    monkeypatch.setattr(page.time, "sleep", sleep)
    keep_page(folder, file)
    (before,), after = seen, file.read_text()
    assert 'http-equiv="refresh" content="5"' in before
    assert "refresh" not in after
    assert ["round 3 of 4" in before, "round 4 of 4" in after] == [True, True]
    assert 'href="../run/report.md"' in after
    assert b64encode(b"the report's own").decode() in after
