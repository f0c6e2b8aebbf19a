from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy.stats import t
from typer.testing import CliRunner

from fedif_consortium.statement.account import settle
from fedif_consortium.statement.records import read_run
from fedif_flower import load
from fedif_flower.errors import ConfigError
from fedif_flower.run import plots, results
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.results import Run
from fedif_flower.run.rows import cell, read_rows, read_table, text_in
from fedif_studies.commands import cli
from fedif_studies.lab.comparison import compare
from fedif_studies.lab.curves import plot_curves
from fedif_studies.lab.measurements import read_measurement
from tests.consortium.statement.runs import make_run
from tests.run import points

PNG = b"\x89PNG"
RUNS = ("fedif", "median")


def by_hand(tmp_path: Path, **more) -> Run:
    """Two members in five rounds: 0 contributes 0.5, 1 a quarter; 2 once, and is refused once."""
    rounds = [{0: 0.5, 1: 0.25}] * 4 + [{0: 0.5, 1: 0.25, 2: -1.0}]
    own = {"rejections": {(1, 2): "too long"}, "names": {1: "hospital-b"}, **more}
    run_dir = make_run(tmp_path / "run", rounds, **own)
    settings = {"strategy": "fedif", "dataset": "digits", "attack": "none"}
    (run_dir / "config.json").write_text(json.dumps(settings))
    columns = "round,test_loss,accepted,rejected,failed,late,round_failed,online"
    (run_dir / "rounds.csv").write_text(f"{columns}\n0,2.5,0,0,0,0,0,3\n5,1.5,3,0,0,0,0,3\n")
    return load(run_dir)


def test_a_run_config_that_lacks_keys_still_names_the_run(tmp_path):
    run = by_hand(tmp_path)
    run.folder.config.write({"gamma": 0.3})
    assert load(run.folder.path).title == "? on ?"


def test_members_are_those_of_the_records(tmp_path):
    run = by_hand(tmp_path)
    assert [m.partition_id for m in run.members] == [0, 1, 2]
    assert [m.contribution for m in run.members] == pytest.approx([2.5, 1.25, -1.0])
    assert [m.label for m in run.members] == ["client 0", "hospital-b", "client 2"]
    assert [(m.accepted, m.refused) for m in run.members] == [(5, 0), (5, 0), (1, 1)]
    assert (run.members[0].low, run.members[0].high) == (2.5, 2.5)  # Every round is alike.
    assert run.members[2].low < -1.0 < run.members[2].high
    stated = {m.client_id: m.interval for m in settle(read_run(run.folder.path)).members}
    assert {m.client_id: (m.low, m.high) for m in run.members} == stated


def test_intervals_are_about_other_held_out_examples_where_these_are_split(tmp_path):
    assert by_hand(tmp_path / "whole").interval == "95 %, other rounds"
    # Of member 0's 2.5, 2 are of one half of the examples: without a half it had 4 or 1.
    run = by_hand(tmp_path, blocks={0: (0.8, 0.2), 1: (0.5, 0.5), 2: (0.5, 0.5)})
    assert run.interval == "95 %, other held-out set"
    width = t.ppf(0.975, 1) * 1.5
    assert (run.members[0].low, run.members[0].high) == pytest.approx((2.5 - width, 2.5 + width))
    assert run.members[1].low == pytest.approx(run.members[1].high)
    assert run.interval in run.table().heading


def test_texts_are_read_as_they_were_written(tmp_path):
    """A spreadsheet takes them for formulas: a sign stands before them in the file."""
    names = {0: "-hospital", 1: "'quoted'", 2: "'@home"}
    run = by_hand(tmp_path, names=names)
    run.folder.names.replace({"client_id": i, "name": name} for i, name in names.items())
    assert "'-hospital" in run.folder.names.path.read_text()
    assert [member.label for member in load(run.folder.path).members] == list(names.values())
    assert [text_in(cell(text)) for text in ("=1", "'=1", "''=1", "'")] == [
        "=1",
        "'=1",
        "''=1",
        "'",
    ]
    run.folder.rounds.replace([{"round": 1, "losses": "-0.5 -0.75", "reason": "=1+1"}])
    [line] = run.lines("rounds")
    assert (line["losses"], line["reason"]) == ("-0.5 -0.75", "=1+1")


def test_completeness_reads_tables_as_often_whatever_their_length(tmp_path, monkeypatch):
    run = by_hand(tmp_path)
    run.folder.attendance.begin()
    line = {"round": 1, "partition_id": 0, "client_id": 0, "presence": "online"}
    run.folder.attendance.append([line] * 20)
    read = []

    def counted(path, *given, **options):
        read.append(path.name)
        return read_table(path, *given, **options)

    monkeypatch.setattr(results, "read_table", counted)
    assert len(run.completeness.members) == 3
    assert len(read) < 10


def test_members_are_sorted_by_any_column(tmp_path):
    run = by_hand(tmp_path)
    assert [m.client_id for m in run.sort("refused")] == [2, 0, 1]
    assert [m.label for m in run.sort("name")] == ["client 0", "client 2", "hospital-b"]
    with pytest.raises(ConfigError, match=r"sort = 'worth'; allowed: client_id, .*contribution"):
        run.sort("worth")
    with pytest.raises(ConfigError, match=r"holds no run: there is no rounds\.csv"):
        load(tmp_path)


def of_scores(folder: Path, scores: list[float]) -> Run:
    """Return a run of one round, with a weight score of each client."""
    run = RunFolder(folder)
    run.rounds.begin()
    run.rounds.append([{"round": 1, "accepted": len(scores)}])
    run.clients.begin()
    for client_id, score in enumerate(scores):
        line = {"round": 1, "partition_id": client_id, "client_id": client_id, "malicious": False}
        run.clients.append([{**line, "weight_score": score, "weight": 0.25, "status": "accepted"}])
    return load(folder)


def test_a_score_that_is_no_number_stands_last(tmp_path):
    run = of_scores(tmp_path, [math.nan, -math.inf, 0.5, math.inf])
    assert [m.client_id for m in run.sort("weight_score")] == [3, 2, 1, 0]
    assert [m.client_id for m in run.members] == [3, 2, 1, 0]


def test_a_rule_without_weights_gives_no_member_the_weight_0(tmp_path):
    """The median weighs nobody; a refused reply has the weight 0 under any rule."""
    run = RunFolder(tmp_path)
    run.rounds.begin()
    run.rounds.append([{"round": 1, "accepted": 1}, {"round": 2, "accepted": 0}])
    run.clients.begin()
    who = {"partition_id": 0, "client_id": 0, "malicious": False}
    run.clients.append([{**who, "round": 1, "status": "accepted"}])
    run.clients.append([{**who, "round": 2, "status": "refused", "weight": 0.0}])
    [member] = load(tmp_path).members
    assert member.weight is None
    assert "weight" not in load(tmp_path).table().heading


def test_who_is_no_member_any_more_is_away(tmp_path):
    run = by_hand(tmp_path)
    path = run.folder.clients.path
    path.write_text(path.read_text().replace("refused", "revoked").replace("too long", ""))
    [member] = [member for member in load(run.folder.path).members if member.client_id == 2]
    assert (member.accepted, member.refused, member.failed, member.away) == (1, 0, 0, 1)


def test_a_line_that_is_changed_changes_no_member(tmp_path):
    run = by_hand(tmp_path)
    run.lines()[0]["accepted"] = 99
    assert run.members[0].accepted == run.lines()[0]["accepted"] == 5


def test_numbers_in_names_are_sorted_as_numbers(tmp_path):
    run = by_hand(tmp_path, names={0: "site 10", 1: "site 9", 2: "site 10b"})
    assert [m.label for m in run.sort("name")] == ["site 9", "site 10", "site 10b"]


def test_small_contributions_can_be_told_apart(tmp_path):
    """With four decimals all three would have contributed 0.0000."""
    run_dir = make_run(tmp_path / "run", [{0: 2e-6, 1: -1e-6, 2: 1.25e-7}])
    (run_dir / "rounds.csv").write_text("round,accepted\n1,3\n")
    table = load(run_dir).table()
    column = table.heading.index("contribution")
    assert [line[column] for line in table.lines] == ["0.000002000", "0.000000125", "-0.000001000"]


def test_a_run_of_somebody_else_is_named_without_escapes(tmp_path):
    run = by_hand(tmp_path)
    (run.folder.path / "config.json").write_text('{"strategy": "\\u001b[2Jfedif"}')
    shown = repr(load(run.folder.path))
    assert "?[2Jfedif on " in shown
    assert shown.isprintable()


def test_a_round_that_was_cut_off_counts_for_nobody(tmp_path):
    """Replies and weights are those of the rounds whose contributions count."""
    run = by_hand(tmp_path)
    (run.folder.path / "rounds.csv").write_text("round,test_loss,accepted\n0,2.5,0\n4,1.5,2\n")
    run = load(run.folder.path)
    counts = [(m.client_id, m.accepted, m.refused) for m in run.members]
    assert counts == [(0, 4, 0), (1, 4, 0), (2, 0, 1)]
    assert repr(run).endswith("4 rounds, unfinished)")
    (run.folder.path / "rounds.csv").write_text("round,test_loss,accepted\n1,2.5,2\n")
    assert repr(load(run.folder.path)).endswith("1 round, unfinished)")


def test_tables_are_read_as_numbers_and_frames(tmp_path):
    run = by_hand(tmp_path)
    counts = {"rejected": 0, "failed": 0, "late": 0, "round_failed": 0, "online": 3}
    assert run.lines("rounds") == [
        {**counts, "round": 0, "test_loss": 2.5, "accepted": 0},
        {**counts, "round": 5, "test_loss": 1.5, "accepted": 3},
    ]
    with pytest.raises(ConfigError, match="table = 'x'; allowed: members, rounds, clients"):
        run.lines("x")
    pytest.importorskip("pandas")
    assert run.to_pandas().loc[0, "contribution"] == 2.5
    assert len(run.to_pandas("attribution")) == 11


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> list[Path]:
    """Two runs of a task by different strategies."""
    folder = tmp_path_factory.mktemp("runs")
    small = {"num_clients": 3, "num_server_rounds": 2}
    task = points.regression()
    return [points.run(folder, task, strategy=name, run_name=name, **small) for name in RUNS]


def test_runs_are_compared_by_what_differs(two):
    table = compare([load(folder) for folder in two])
    lines = {line[0]: dict(zip(table.heading, line, strict=True)) for line in table.lines}
    assert {name: line["strategy"] for name, line in lines.items()} == {n: n for n in lines}
    assert "num-clients" not in table.heading
    # FedIF comes with bounds, the median does not: what leads may be either.
    assert re.fullmatch(r"Clip.* \+ LossBound.*, by default", lines["fedif"]["bounds"])
    assert lines["median"]["bounds"] == "none, by default"
    last = read_rows(two[1] / "rounds.csv")[-1]["test_mean_absolute_error"]
    assert float(lines["median"]["last round"]) == pytest.approx(float(last), rel=1e-3)


def test_runs_of_one_name_are_called_by_their_paths(two, tmp_path):
    folders = [shutil.copytree(run_dir, tmp_path / run_dir.name / "run") for run_dir in two]
    lines = compare([load(folder) for folder in folders]).lines
    assert [line[0] for line in lines] == list(map(str, folders))


def test_a_run_that_is_not_complete_is_shown_and_not_compared(two, tmp_path):
    stopped = tmp_path / "stopped"
    shutil.copytree(two[0], stopped)
    (stopped / "summary.json").unlink()
    run = load(stopped)
    assert repr(run).endswith("2 rounds, unfinished)")
    assert len(run.table().lines) == 3
    with pytest.raises(ConfigError, match="stopped is unfinished"):
        compare([run, load(two[1])])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
def test_a_full_disk_is_not_the_run_s_fault(two):
    program = "from fedif_flower.cli import main; main()"
    show = [sys.executable, "-c", program, "show", str(two[0])]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(show, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert "holds no run" not in done.stderr


def test_a_folder_s_name_that_is_no_text_is_drawn(two, tmp_path, pictures):
    """Of another locale, or of bytes that are no letters."""
    folders = []
    for run_dir, name in zip(two, ("caf\udce9", "other"), strict=True):
        folders.append(shutil.copytree(run_dir, tmp_path / name))
    series = {folder.name: [read_measurement(folder)] for folder in folders}
    assert plot_curves(series, tmp_path / "curves.png", "two runs")
    assert (tmp_path / "curves.png").read_bytes().startswith(PNG)


def test_the_commands(two, tmp_path, pictures):
    def fedif(*arguments: object) -> str:
        return CliRunner().invoke(cli, [*map(str, arguments)], catch_exceptions=False).stdout

    shown = fedif("show", two[0], "--picture", tmp_path / "members.png")
    assert "client 2" in shown
    assert "2 rounds, complete" in shown
    assert (tmp_path / "members.png").read_bytes().startswith(PNG)
    shown = fedif("show", two[0], "--picture", tmp_path / "rounds.png", "--of", "rounds")
    assert shown.rstrip().endswith("rounds.png")
    compared = fedif("compare", *two, "--output-dir", tmp_path / "both")
    assert "median" in compared
    assert (tmp_path / "both" / "accuracy.png").read_bytes().startswith(PNG)
    assert "| fedif |" in (tmp_path / "both" / "table.md").read_text()


def test_show_says_what_its_columns_are(two):
    """The weight is a sum: beside "weight of malicious clients" it would be taken for a share."""
    shown = CliRunner().invoke(cli, ["show", str(two[0])], catch_exceptions=False).stdout
    assert "Weight is the sum of the member's aggregation weights over its rounds." in shown


def test_a_picture_says_whom_it_leaves_out_and_what_its_lines_are(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(
        "fedif_flower.run.member_pictures.save_figure", lambda figure, _: figures.append(figure)
    )
    rounds = [{client: client + extra for client in range(41)} for extra in (0, 1)]
    run = load(make_run(tmp_path / "many", rounds))
    run.plot(tmp_path / "many.png")
    by_hand(tmp_path).plot(tmp_path / "few.png")
    many, few = (figure.axes[0] for figure in figures)
    assert many.get_title() == f"{run.title}\nthe first 40 of 41 members"
    names = [text.get_text() for text in many.get_yticklabels()]
    assert (names[0], names[-1], len(names)) == ("client 1", "client 40", 40)
    assert few.get_title() == "fedif on digits"
    assert few.get_xlabel() == "decrease of the validation loss; line: 95 %, other rounds"


def test_a_picture_is_no_file_of_another_kind(two, tmp_path):
    with pytest.raises(ConfigError, match=r"x\.svg'; allowed: a file \*\.png"):
        load(two[0]).plot(tmp_path / "x.svg")
    assert not (tmp_path / "x.svg").exists()


def drawn_rounds(run: Run, path: Path, monkeypatch) -> Figure:
    figures = []
    monkeypatch.setattr(plots, "save_figure", lambda figure, _: figures.append(figure))
    run.plot(path, "rounds")
    return figures[0]


def test_influences_and_weights_are_drawn_by_client_and_round(two, tmp_path, monkeypatch):
    run = load(two[0])  # FedIF: three clients, two rounds.
    figure = drawn_rounds(run, tmp_path / "rounds.png", monkeypatch)
    maps = {axes.images[0].colorbar.ax.get_ylabel(): axes for axes in figure.axes if axes.images}
    assert set(maps) == {"influence", "weight"}
    for name, column in (("influence", "score"), ("weight", "weight")):
        shown = maps[name].images[0].get_array()  # [clients, rounds]
        assert shown.shape == (3, 2)
        for line in run.lines("clients"):
            row = sorted(member.client_id for member in run.members).index(line["client_id"])
            assert shown[row, line["round"] - 1] == pytest.approx(line[column])
    assert maps["weight"].get_xlabel() == "round; grey: had no part"
    assert all(place.is_integer() for place in maps["weight"].get_xticks())


def test_a_round_that_is_cut_off_is_not_drawn(two, tmp_path, monkeypatch):
    """It was killed while the model of round 2 was evaluated: round 2 has no line of its own."""
    stopped = tmp_path / "stopped"
    shutil.copytree(two[0], stopped)
    (stopped / "summary.json").unlink()
    rounds = stopped / "rounds.csv"
    rounds.write_text("".join(rounds.read_text().splitlines(keepends=True)[:-1]))
    figure = drawn_rounds(load(stopped), tmp_path / "rounds.png", monkeypatch)
    maps = [axes.images[0].get_array() for axes in figure.axes if axes.images]
    assert [shown.shape for shown in maps if shown.shape[0] == 3] == [(3, 1), (3, 1)]
    rounds.write_text("".join(rounds.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(ConfigError, match="neither influences nor weights to draw"):
        load(stopped).plot(tmp_path / "rounds.png", "rounds")


def test_between_two_rounds_there_is_none(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(plots, "save_figure", lambda figure, _: figures.append(figure))
    rounds = [{"round": t, "test_accuracy": 0.3 * t} for t in range(3)]
    plots.plot_progress(rounds, RunFolder(tmp_path), title="")
    named = {"ylabel": "weight", "title": ""}
    plots.plot_members({1: [(1, 0.5)]}, {1: ("a", False)}, 2, tmp_path / "members.png", **named)
    for figure in figures:
        (axes,) = figure.axes
        assert axes.get_xlabel() == "round"
        assert all(place.is_integer() for place in axes.get_xticks().tolist())


def test_dollars_in_names_are_no_formulas(tmp_path, pictures):
    """matplotlib cannot read this one, and a run would end without its report."""
    name = "costs $x_{ or $"
    path = tmp_path / "members.png"
    plots.plot_members({1: [(1, 0.5)]}, {1: (name, False)}, 2, path, ylabel=name, title=name)
    assert path.read_bytes().startswith(PNG)


def test_a_legend_has_names_that_begin_with_an_underscore(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(plots, "save_figure", lambda figure, _: figures.append(figure))
    members = {1: ("_ward", False), 2: ("lab", False)}
    series = {1: [(1, 0.5)], 2: [(1, 0.25)]}
    plots.plot_members(series, members, 2, tmp_path / "members.png", ylabel="", title="")
    (axes,) = figures[0].axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [" _ward", "lab"]


def test_a_client_without_a_part_in_a_round_is_grey_and_the_malicious_stand_below(
    tmp_path, monkeypatch
):
    run = by_hand(tmp_path)
    clients = [(1, 0, 0.5, 0), (1, 2, -1.0, 1), (5, 1, 0.25, 0)]
    lines = [dict(zip(("round", "client_id", "weight", "bad"), c, strict=True)) for c in clients]
    told = [{**line, "score": None} for line in lines]
    members = [SimpleNamespace(client_id=i, label=f"c{i}", malicious=i == 0) for i in range(3)]
    monkeypatch.setattr(Run, "lines", lambda self, table="members": told)
    monkeypatch.setattr(Run, "members", members)
    monkeypatch.setattr(Run, "last_round", 5)
    figure = drawn_rounds(run, tmp_path / "rounds.png", monkeypatch)
    (axes,) = (axes for axes in figure.axes if axes.images)  # Nobody has influences.
    assert [text.get_text() for text in axes.get_yticklabels()] == ["c1", "c2", "c0 (malicious)"]
    shown = axes.images[0].get_array().filled(np.nan)
    expected = np.full((3, 5), np.nan)
    expected[0, 4], expected[1, 0], expected[2, 0] = 0.25, -1.0, 0.5
    np.testing.assert_array_equal(shown, expected)


def test_what_cannot_be_drawn_is_named(two, tmp_path):
    with pytest.raises(ConfigError, match="of = 'loss'; allowed: members, rounds"):
        load(two[0]).plot(tmp_path / "x.png", "loss")
