"""The page in a real browser."""

from __future__ import annotations

import threading
import time

from fedif_flower.run.watch.page import render
from fedif_flower.run.watch.reader import RunReader
from fedif_flower.run.watch.server import WatchServer
from fedif_flower.run.watch.state import Watched
from tests.run.watch.browser import needs_browser, overflows, visited
from tests.run.watch.made import asked, client, make_folder

pytestmark = needs_browser
WIDTHS = (380, 768, 1240, 1600)


def long_run(path):
    """Write a run with long names, many members and every kind of remark."""
    statuses = ["accepted", "refused", "away", "late", "failed", "revoked"]
    lines = [
        client(t, i, statuses[i % 6], weight_score=0.5, rejection="a" * 150)
        for t in (1, 2, 3)
        for i in range(60)
    ]
    return make_folder(
        path,
        lines,
        accuracies=[0.1, 0.5, 0.6, 0.7],
        contributions={(1, i): -123.456 for i in range(60)},
        names={i: "W" * 80 if i % 2 else "Universitätsklinikum " * 3 for i in range(60)},
        live={
            "round": 4,
            "since": time.time() - 100,
            "asked": asked(0, 6),
            "num_asked": 2,
            "num_online": 60,
        },
        round_failed=[False, False, True, False],
        reason=["", "", "x" * 200, ""],
    )


def test_nothing_sticks_out_at_any_width(tmp_path):
    folder = long_run(tmp_path / "run")
    file = tmp_path / "watch.html"
    page = render(Watched(RunReader(folder).read(), time.time()))
    file.write_text(page.replace("<details", "<details open"))
    assert overflows(file, WIDTHS) == {width: (width, width, []) for width in WIDTHS}


def test_a_file_shows_its_content_and_the_console_stays_empty(tmp_path):
    folder = make_folder(
        tmp_path / "run", [client(1, 1)], accuracies=[0.1, 0.5], names={1: "<i>Köln</i>"}
    )
    file = tmp_path / "watch.html"
    file.write_text(render(Watched(RunReader(folder).read(), time.time())))
    shown, console = visited(file.as_uri())
    assert console == []
    assert "&lt;i&gt;Köln&lt;/i&gt;" in shown
    assert "round 1 of 10 is over" in shown


def test_a_served_page_shows_the_rounds_that_come_and_keeps_what_was_opened(tmp_path):
    folder = make_folder(
        tmp_path, [client(1, 1)], accuracies=[0.1, 0.5], live={"time": time.time() + 3600}
    )
    server = WatchServer(folder)
    with server.in_background():
        reads = server._reader.read
        seen = threading.Event()

        def read():
            found = reads()
            if not seen.is_set():  # The first visit is over: a round more.
                seen.set()
                folder.rounds.append([{"round": 2, "test_accuracy": 0.875, "test_loss": 0.1}])
            return found

        server._reader.read = read
        # The page looks for news every five seconds.
        shown, console = visited(server.url, "--virtual-time-budget=7000")
    assert console == []
    assert "round 2 of 10 is over, test accuracy 87.5%" in shown
    assert "87.5 %" in shown.split("<main>")[1]
    assert '<p id="lost" role="alert"></p>' in shown
