"""What an operator is told, and what to do."""

from __future__ import annotations

import pytest

from fedif_consortium.watch.remarks import remarks
from tests.consortium.watch.made import NOW, asked, client, make_folder
from tests.consortium.watch.test_state import watched

LIVE = {"time": NOW, "since": NOW, "round": 3}
HONEST = [client(t, i) for t in (1, 2) for i in (1, 2, 3, 4)]
REFUSED = [client(2, 1), client(2, 2, "refused"), client(2, 3, "refused")]
WAITED = {"asked": asked(1, 2, 3), "answered": [1]}


def told(folder, now: float = NOW) -> list[str]:
    return [remark.text for remark in remarks(watched(folder, now))]


@pytest.mark.parametrize(
    ("lines", "live", "now", "said"),
    [
        (HONEST, {}, NOW, ""),
        (HONEST, {"phase": "failed", "reason": "disk full"}, NOW, "with an error: disk full"),
        (HONEST, {"phase": "stopped"}, NOW, "Somebody stopped the run"),
        (HONEST, {}, NOW + 600, "no sign of life for 10 minutes"),
        (HONEST, {"online": [1, 2, 4]}, NOW, "client 3 was not connected"),
        (REFUSED, {}, NOW, "In round 2 only 1 of 3 replies counted."),
        (HONEST, WAITED, NOW + 11, ""),  # Usual are 4 s.
        (HONEST, WAITED, NOW + 20, "lasted 20 s, 5 times as long as usual. It waits for Köln and"),
    ],
)
def test_what_is_said_of_a_run(tmp_path, lines, live, now, said):
    names = {2: "Köln", 3: "client 3"}
    accuracies = [0.1, 0.5, 0.6]
    folder = make_folder(tmp_path, lines, accuracies=accuracies, live=LIVE | live, names=names)
    found = told(folder, now)
    assert len(found) == bool(said)
    assert said in "".join(found)


def test_what_a_run_that_ended_lacks(tmp_path):
    folder = make_folder(tmp_path, HONEST, accuracies=[0.1, 0.5, 0.6])
    folder.summary.write({"completeness": {"verdict": "incomplete", "reasons": ["ada was away."]}})
    assert told(folder) == ["The run is incomplete."]


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ("refused", "replies that were refused, 3 rounds in a row."),
        ("failed", "errors of its app, 3 rounds in a row."),
        ("away", "did not answer, however often it was asked, 3 rounds in a row."),
    ],
)
def test_a_member_that_gave_nothing_usable_three_times(tmp_path, status, said):
    lines = [client(t, i) for t in (1, 2, 3) for i in (1, 2, 3)]
    twice = [*lines, *(client(t, 9, status) for t in (1, 2))]
    folder = make_folder(tmp_path, twice, accuracies=[0.1, 0.5, 0.6, 0.7], live=LIVE)
    assert told(folder) == []
    folder.clients.append([client(3, 9, status)])
    (text,) = told(folder)
    assert text.startswith("client 9")
    assert said in text
    folder.clients.append([client(4, 9)])
    assert told(folder) == []
