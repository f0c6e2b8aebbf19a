"""``report.md``, from a run's tables alone."""

from __future__ import annotations

from fedif_flower.messages.client_node import ClientNode
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.report import summarize, write_report
from fedif_flower.run.results import Run
from fedif_flower.strategies.attributed import ClientAttribution, RoundAttribution
from fedif_flower.strategies.reports import ClientReport, RoundReport


def reported(folder: RunFolder, **sums) -> str:
    """Return the report of a run of three members in two rounds."""
    folder.begin()
    statuses = {1: ("accepted", "accepted", "refused"), 2: ("accepted", "away", "revoked")}
    reports = [RoundReport(0)]
    for number, told in statuses.items():
        nodes = (ClientNode(p, 1000 + p) for p in range(3))
        clients = (ClientReport(n, s, weight_score=0.25) for n, s in zip(nodes, told, strict=True))
        reports.append(RoundReport(number, tuple(clients), num_online=3))
    folder.rounds.begin()
    folder.rounds.append(report.line() for report in reports)
    folder.clients.begin()
    lines = [client.line(report.round) for report in reports for client in report.clients]
    folder.clients.append(lines)
    folder.begin_attribution(0)
    parts = tuple(ClientAttribution(i - 1000, i, 0.5, x) for i, x in ((1000, -0.5), (1001, 1.5)))
    folder.add_attribution(RoundAttribution(1, 2.0, 1.0, parts))
    summary = summarize([r.line() for r in reports], [{**x, "malicious": False} for x in lines])
    write_report(Run(folder.path), {**summary, **sums}, "A | run")
    return folder.report.read_text()


def test_members_are_listed_by_what_they_contributed(tmp_path):
    text = reported(RunFolder(tmp_path))
    assert text.startswith("# A | run\n")
    table = [line for line in text.splitlines() if line.startswith("| client")]
    assert table[:3] == [
        "| client 1 | 1.5000 | 0.2500 | 0.000 | 1 | 0 | 1 |",
        "| client 0 | -0.5000 | 0.2500 | 0.000 | 2 | 0 | 0 |",
        "| client 2 | - | 0.2500 | 0.000 | 0 | 1 | 0 |",
    ]
    assert "client 1 (50 %)" in " ".join(text.split())
    for absent in ("malicious", "AUC", "accuracy", "add up to"):
        assert absent not in text


def test_the_remainder_is_told_in_words(tmp_path):
    sums = {"decrease": 3.6003, "attributed": 3.8016, "remainder": -0.2013}
    text = " ".join(reported(RunFolder(tmp_path), attribution=sums).split())
    assert "| 3.6003: 3.8016 by members, less 0.2013 by nobody |" in text
    assert "add up to 0.2013 more than the validation loss fell by. This remainder is" in text
