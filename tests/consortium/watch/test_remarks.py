"""What an operator is told, and what to do."""

from __future__ import annotations

import pytest

from fedif_consortium.watch.remarks import remarks
from tests.consortium.watch.made import NOW, asked, client, make_folder
from tests.consortium.watch.test_state import watched

LIVE = {"time": NOW, "since": NOW, "round": 4}
NAMES = {2: "Köln", 3: "client 3"}
HONEST = [client(t, i) for t in (1, 2, 3) for i in (1, 2, 3, 4)]
REFUSED = [client(3, 1), client(3, 2, "refused"), client(3, 3, "refused")]
ANSWERED = {"asked": asked(1, 2, 3), "answered": [1, 2, 3]}
WAITED = {"asked": asked(1, 2, 3), "answered": [1]}


def missed(status: str, *rounds: int) -> list:
    return [*HONEST, *(client(t, 9, status) for t in rounds)]


def told(folder, now: float = NOW) -> list[str]:
    return [text for _, text, _ in remarks(watched(folder, now))]


@pytest.mark.parametrize(
    ("lines", "live", "now", "said"),
    [
        (HONEST, {}, NOW, ""),
        (HONEST, {"phase": "failed", "reason": "disk full"}, NOW, "with an error: disk full"),
        (HONEST, {"phase": "stopped"}, NOW, "Somebody stopped the run"),
        (HONEST, {}, NOW + 600, "no sign of life for 10 minutes"),
        (HONEST, {"online": [1, 2, 4]}, NOW, "Not connected when this round began: client 3."),
        (REFUSED, {}, NOW, "In round 3 only 1 of 3 replies counted."),
        (HONEST, WAITED, NOW + 11, ""),  # Usual are 4 s.
        (HONEST, WAITED, NOW + 20, "lasted 20 s, 5 times as long as usual. It waits for Köln, cl"),
        (HONEST, ANSWERED, NOW + 20, "5 times as long as usual. All whom it asked have answered."),
        (missed("refused", 2, 3), {}, NOW, ""),
        (missed("refused", 1, 2, 3), {}, NOW, "client 9 sent refused replies, 3 rounds in a row."),
        (missed("failed", 1, 2, 3), {}, NOW, "client 9 sent errors of its app, 3 rounds in a row."),
        (missed("late", 1, 2, 3), {}, NOW, "client 9 did not answer, 3 rounds in a row."),
        (missed("away", 1, 2, 3), {}, NOW, "client 9 sent no reply, or an error, 3 rounds"),
        ([*missed("away", 1, 2, 3), client(4, 9)], {}, NOW, ""),
    ],
)
def test_what_is_said_of_a_run(tmp_path, lines, live, now, said):
    folder = make_folder(tmp_path, lines, live=LIVE | live, names=NAMES)
    found = told(folder, now)
    assert len(found) == bool(said)
    assert said in "".join(found)


def test_what_a_run_lacks_and_where_its_rounds_failed(tmp_path):
    rounds = {"round_failed": [0, 0, 1, 0], "reason": ["", "", "nobody came", ""]}
    folder = make_folder(tmp_path, HONEST, test_loss=[1.0, 1.0, 1.0, float("inf")], **rounds)
    folder.summary.write({"completeness": {"verdict": "incomplete", "reasons": ["ada was away."]}})
    assert told(folder) == [
        "The run is incomplete.",
        "The loss is not finite: the model has diverged.",
        "Rounds that left the model as it was: 1; the last was round 2: nobody came",
    ]


def test_rounds_that_gave_nobody_weight_are_said(tmp_path):
    rounds = {"status": ["advanced", "kept", "advanced", "kept"], "reason": ["", "", "", "all bad"]}
    folder = make_folder(tmp_path, HONEST, **rounds)
    words = "Rounds in which nobody was given weight: 2; the last was round 3: all bad"
    assert told(folder) == [words]


@pytest.mark.parametrize(("last", "is_said"), [(0.35, False), (0.36, True)])
def test_labels_that_the_model_contradicts_beyond_what_a_statement_allows(tmp_path, last, is_said):
    """A tenth is allowed for by the loss, and a quarter by the statement."""
    folder = make_folder(tmp_path, HONEST, validation_contradicted=[0.9, 0.5, last, None])
    folder.provenance.write({"held_out": {"corrected_noise": 0.1}})
    words = (
        f"The model is sure that {last:.0%} of the held-out labels are others; the loss is "
        "corrected for 10% of wrong ones."
    )
    assert told(folder) == ([words] if is_said else [])


def test_of_secret_data_the_share_that_pays_counts(tmp_path):
    folder = make_folder(tmp_path, HONEST, validation_contradicted=[0.0] * 4)
    lines = [line | {"paying_contradicted": 0.5} for line in folder.rounds.read()]
    folder.rounds.begin(["paying_contradicted"])
    folder.rounds.append(lines)
    secret = {"paying_commitment": "0", "paying_held_out": {"corrected_noise": 0.2}}
    folder.provenance.write({"held_out": {"corrected_noise": 0.4}, **secret})
    assert told(folder) == [
        "The model is sure that 50% of the held-out labels are others; the loss is corrected for "
        "20% of wrong ones."
    ]
