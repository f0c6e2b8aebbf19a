from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Barrier, BrokenBarrierError

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from fedif_flower.errors import ConfigError
from fedif_flower.run.config import RunConfig
from fedif_flower.run.rows import read_rows
from fedif_flower.settings import Scalar
from fedif_studies.lab.cells import LABEL, distinct, find_result
from fedif_studies.lab.commands import jobs_that_fit
from fedif_studies.lab.measurements import (
    Measurement,
    find_measurements,
    from_row,
    read_measurement,
    to_row,
)
from fedif_studies.paper import results_page
from fedif_studies.paper.cells import (
    cell_name,
    fill_table,
    select,
    settings_of_cells,
    table_cells,
    why_in_no_cell,
)
from fedif_studies.paper.commands import paper, report
from fedif_studies.paper.report import report_table, result_rows, result_table
from fedif_studies.paper.results_page import read_results, update_docs
from fedif_studies.paper.tables import TABLES
from fedif_studies.rows import RESULTS, add_rows, machine, put_tables
from tests.studies.lab.small import DEFAULTS, write_result


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_every_cell_is_a_valid_configuration_of_its_own(table):
    pairs = [(row, column) for row in table.rows for column in table.columns]
    configs = [
        RunConfig.from_run_config({**DEFAULTS, **table.settings(row, column)})
        for row, column in pairs
    ]
    assert len({config.digest() for config in configs}) == len(pairs)
    assert len({cell_name(row, column, 0) for row, column in pairs}) == len(pairs)
    assert {(c.num_clients, c.num_drawn, c.local_epochs) for c in configs} == {(100, 10, 5)}
    assert {(c.batch_size, c.learning_rate, c.momentum) for c in configs} == {(16, 0.001, 0.9)}
    assert {c.num_server_rounds for c in configs} == {10 if table.name == "timing" else 100}
    assert {c.dirichlet_alpha for c in configs} == {1.0}


def test_pixels_are_scaled_as_the_authors_of_the_models_do():
    scalings = {
        (column.settings["dataset"], column.settings["normalization"])
        for table in TABLES.values()
        for column in table.columns
    }
    assert scalings == {("cifar10", "unit-range"), ("fashion-mnist", "mnist")}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_no_method_corrects_its_held_out_loss_since_the_paper_does_not(table):
    rows = {row.key: row.settings for row in table.rows}
    noise = {key: settings.get("validation.noise") for key, settings in rows.items()}
    others = {"fedavg", "fedprox", "krum"}  # They look at no held-out loss.
    assert noise == {key: None if key in others else "off" for key in rows}
    for row in table.rows:
        assert table.settings(row, table.columns[0])["validation.vet"] is False


def test_no_new_default_changes_a_cell_unnoticed():
    """A setting that the paper lacks is pinned in ``PROTOCOL``, then written into the file."""
    decided = json.loads(Path(__file__).with_name("protocol.json").read_text())
    table = replace(TABLES["cifar10"], columns=TABLES["cifar10"].columns[:1])
    for cell in settings_of_cells([table], DEFAULTS):
        expected = {}
        for key, setting in decided.items():
            if not isinstance(setting, dict):
                expected[key] = setting
            elif cell.row.key in setting:
                expected[key] = setting[cell.row.key]
        assert dict(cell.settings) == expected


def test_a_run_with_a_corrected_loss_is_no_cell():
    plain = settings("cifar10", "fedif", "clean")
    corrected = plain | {"validation.noise": "auto", "validation.vet": True}
    examined = plain | {"validation.vet": True, "validation.seconds": 60.0}
    before = {key: value for key, value in plain.items() if not key.startswith("validation.")}
    counted = []
    for config in (plain, corrected, examined, before):
        run = Measurement({**config, "seed": 0}, "CIFAR-10", {}, "abacus")
        cells = fill_table(TABLES["cifar10"], [run], DEFAULTS)
        counted.append(sum(len(cell.measurements) for cell in cells))
    assert counted == [1, 0, 1, 1]


def test_a_masked_run_is_no_cell_and_one_with_receipts_takes_another_time():
    [timed] = [name for name, table in TABLES.items() if table.is_timed]
    changes = ({}, {"masking.mode": "off"}, {"masking.mode": "trial"}, {"evidence.receipts": True})
    counted = {}
    for name in ("cifar10", timed):
        counted[name] = []
        for change in changes:
            column = TABLES[name].columns[0].key
            config = settings(name, "fedif", column) | change | {"seed": 0}
            run = Measurement(config, "CIFAR-10", {}, "abacus")
            cells = fill_table(TABLES[name], [run], DEFAULTS)
            counted[name].append(sum(len(cell.measurements) for cell in cells))
    assert counted == {"cifar10": [1, 1, 0, 1], timed: [1, 1, 0, 0]}


def test_runs_with_the_datas_own_pixels_have_a_column_of_their_own(tmp_path):
    now = settings("cifar10", "fedif", "clean")
    earlier = now | {"normalization": "data"}
    write_result(tmp_path / "now", now, accuracies(0.60, 0.63))
    write_result(tmp_path / "earlier", earlier, accuracies(0.65, 0.66))
    (tmp_path / "results.md").write_text("<!-- begin: results -->\n<!-- end: results -->\n")
    report([tmp_path], docs=tmp_path)
    text = (tmp_path / "results.md").read_text()
    assert "| clean | FedIF | 1 | 60.00 | 60.00 | 63.00 | **63.60±0.43** | -3.60 | 65.00 |" in text
    rows = read_rows(tmp_path / "results" / "cifar10.csv")
    assert [row["normalization"] for row in rows] == ["unit-range", "data"]


def test_figures_as_printed():
    assert TABLES["cifar10"].paper["fedif"]["label-noise_0.7_0.7-0.8"] == (51.74, 0.59)
    assert TABLES["timing"].paper["afedsv"]["cifar10_aggregation"] == (91.7635, None)


@pytest.mark.parametrize(("pattern", "count"), [("*_fedif", 9), ("adversarial_0.7*krum*", 2)])
def test_cells_are_chosen_by_patterns(pattern, count):
    assert len(select(TABLES["cifar10"], patterns=[pattern])) == count


def settings(table: str, row: str, column: str, **changed: Scalar) -> dict[str, Scalar]:
    found = TABLES[table]
    [r] = [r for r in found.rows if r.key == row]
    [c] = [c for c in found.columns if c.key == column]
    return found.settings(r, c) | {key.replace("_", "-"): value for key, value in changed.items()}


def accuracies(last: float, best: float) -> list[float]:
    """Return 100 rounds whose last ten have the mean of ``last``."""
    return [best] + [0.2] * 89 + [last] * 10


def test_rows_are_compared_over_the_seeds_that_they_share(tmp_path):
    afedsv, fedif = (settings("cifar10", row, "clean") for row in ("afedsv", "fedif"))
    write_result(tmp_path / "a", afedsv, accuracies(0.60, 0.63))
    for seed, last in enumerate((0.61, 0.50)):
        write_result(tmp_path / f"b{seed}", fedif | {"seed": seed}, accuracies(last, 0.63))
    cells = fill_table(TABLES["cifar10"], find_measurements([tmp_path]), DEFAULTS)
    shown = "\n".join(result_table(TABLES["cifar10"], cells).to_markdown())
    assert "| AFedSV | 1 | 60.00 | 60.00 |" in shown
    assert "| FedIF | 2 | **55.50±7.78** | **55.50±7.78** |" in shown


@pytest.mark.parametrize(
    "table", [t for t in TABLES.values() if not t.is_timed], ids=lambda t: t.name
)
def test_bold_figures_of_the_paper_are_the_highest_of_all_its_rows(table):
    """Also where rows of the paper have no line, since nobody measured them."""
    cells = fill_table(table, read_results(RESULTS / f"{table.name}.csv"), DEFAULTS)
    shown = [cell for cell in cells if cell.measurements]
    printed = result_table(table, shown)
    place = printed.heading.index("paper")
    bold = [line[place].startswith("**") for line in printed.lines]
    expected = []
    for cell in shown:
        figures = [table.printed(row, cell.column).mean for row in table.rows]
        expected.append(cell.paper.mean == max(figures))
    assert bold == expected


def test_figures_that_are_the_same_as_shown_are_bold_together(tmp_path):
    fedavg, fedif = (settings("cifar10", row, "clean") for row in ("fedavg", "fedif"))
    write_result(tmp_path / "a", fedavg, accuracies(0.60001, 0.63))
    write_result(tmp_path / "b", fedif, accuracies(0.60003, 0.65))
    cells = fill_table(TABLES["cifar10"], find_measurements([tmp_path]), DEFAULTS)
    shown = "\n".join(result_table(TABLES["cifar10"], cells).to_markdown())
    assert "| FedAvg | 1 | **60.00** | **60.00** | 63.00 |" in shown
    assert "| FedIF | 1 | **60.00** | **60.00** | **65.00** |" in shown


def test_of_two_runs_of_a_cell_the_later_one_counts_wherever_it_lies(tmp_path):
    """Another table may have needed the same cell."""
    fedif = settings("cifar10", "fedif", "clean")
    for name, last, completed in (("cifar10", 0.70, 2000), ("gradient", 0.60, 1000)):
        run_dir = write_result(tmp_path / name, fedif, accuracies(last, 0.75))
        os.utime(run_dir / "summary.json", (completed, completed))
    cells = fill_table(TABLES["cifar10"], find_measurements([tmp_path]), DEFAULTS)
    shown = "\n".join(result_table(TABLES["cifar10"], cells).to_markdown())
    assert "| FedIF | 1 | 70.00 | 70.00 | 75.00 |" in shown


@pytest.mark.parametrize(
    "changed", [{"model": "lenet5"}, {"fedif.smooth-update": False}, {"eval-every": 10}]
)
def test_a_run_with_another_setting_is_no_cell_of_the_table(tmp_path, changed):
    write_result(tmp_path / "run", settings("cifar10", "fedif", "clean", **changed), [0.5])
    cells = fill_table(TABLES["cifar10"], find_measurements([tmp_path]), DEFAULTS)
    assert not any(cell.measurements for cell in cells)


def test_a_table_is_written_with_its_rows_and_pictures(tmp_path, capsys):
    fedavg, fedif = (settings("cifar10", row, "clean") for row in ("fedavg", "fedif"))
    write_result(tmp_path / "a", fedavg, accuracies(0.60, 0.63))
    write_result(tmp_path / "b", fedif, accuracies(0.62, 0.65))
    write_result(tmp_path / "c", fedif | {"seed": 1}, accuracies(0.64, 0.64))
    console, table = Console(width=200), TABLES["cifar10"]
    cells = fill_table(table, find_measurements([tmp_path]), DEFAULTS)
    report_table(table, cells, tmp_path / "out", console, 100)
    folder = tmp_path / "out" / "cifar10"
    text = (folder / "table.md").read_text()
    fedavg = "| clean | FedAvg | 1 | 60.00 | 60.00 | 63.00 "
    assert fedavg + "| 62.52±0.13 | -2.52 |" in text
    fedif = "|  | FedIF | 2 | **63.00±1.41** | **63.00±1.41** | **64.50±0.71** "
    assert fedif + "| **63.60±0.43** | -0.60 |" in text
    assert "Rounds: 100; seeds: 0, 1; missing: 43 of 45 cells." in text
    assert [path.name for path in folder.glob("*.png")] == ["clean.png"]
    curve = [row for row in read_rows(folder / "curves.csv") if row["row"] == "fedavg"]
    assert [int(row["round"]) for row in curve] == list(range(0, 101, 5))
    assert [row["test"] for row in curve[:2]] == ["0.100000", "0.200000"]
    rows = read_rows(folder / "results.csv")
    assert [(row["row"], row["seed"]) for row in rows] == [
        *(("fedavg", "0"), ("fedif", "0"), ("fedif", "1"))
    ]
    assert "63.00±1.41" in capsys.readouterr().out


def reported_after(rounds: int, folder: Path) -> str:
    """Return the table of CIFAR-10 with a single cell, measured over so many rounds."""
    fedavg = settings("cifar10", "fedavg", "clean", **{"num-server-rounds": rounds})
    write_result(folder / "a", fedavg, [0.5] * rounds)
    table = TABLES["cifar10"]
    cells = fill_table(table, find_measurements([folder]), DEFAULTS, rounds)
    report_table(table, cells, folder / "out", Console(width=200), rounds)
    return (folder / "out" / f"cifar10-{rounds}-rounds" / "table.md").read_text()


def test_after_another_number_of_rounds_no_figure_of_the_paper_stands_beside(tmp_path):
    text = reported_after(12, tmp_path)
    best = "| column | row | seeds | last round | mean of last ten | best round |\n"
    assert best in text
    assert "| clean | FedAvg | 1 | 50.00 | 50.00 | 50.00 |\n" in text
    assert "The paper's figures are for 100 rounds, so they are not shown." in text
    assert "62.52" not in text
    assert "of the last ten rounds" not in text


def test_a_mean_of_fewer_than_ten_rounds_says_so(tmp_path):
    text = reported_after(5, tmp_path)
    assert "The mean of the last ten rounds includes only the evaluated ones: 5.\n" in text


def test_seconds_of_a_round_stand_beside_the_papers_after_any_number():
    cells = fill_table(TABLES["timing"], [], DEFAULTS, 12)
    shown = "\n".join(result_table(TABLES["timing"], cells).to_markdown())
    assert "91.7635" in shown


def labelled(run_dir: Path, group: str) -> None:
    (run_dir / LABEL).write_text(json.dumps({"revision": "abc", "group": group}))


def test_seconds_are_those_of_one_thread_and_of_runs_for_their_table(tmp_path):
    """Cells of another table with as few rounds may have been run several at a time."""
    fedavg = settings("timing", "fedavg", "cifar10")
    for name, seed, changed, group in (
        ("own", 0, {}, "timing"),
        ("by hand", 1, {}, ""),
        ("threads", 2, {"threads-per-client": 8}, "timing"),
        ("other", 3, {}, "cifar10"),
    ):
        labelled(
            write_result(tmp_path / name, fedavg | changed | {"seed": seed}, [0.5] * 10), group
        )
    runs = find_measurements([tmp_path])
    cells = fill_table(TABLES["timing"], runs, DEFAULTS)
    assert [run.run_dir.name for cell in cells for run in cell.measurements] == ["own", "by hand"]
    table = settings_of_cells([TABLES["timing"]], DEFAULTS)
    reasons = {run.run_dir.name: why_in_no_cell(run, table) for run in runs}
    assert reasons["own"] == reasons["by hand"] == ""
    nearest = "The nearest cell (table timing, row fedavg, column cifar10) differs in "
    assert reasons["threads"] == f"{nearest}threads-per-client, 1 there and 8 in the run"
    assert reasons["other"].startswith(f"{nearest}table, ")
    short = TABLES["cifar10"]
    accuracies_of = fill_table(short, runs, DEFAULTS, 10)  # Threads do not change these.
    assert [len(cell.measurements) for cell in accuracies_of if cell.measurements] == [4]


def test_cells_of_the_timing_table_need_results_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr("fedif_studies.lab.cells.fingerprint", lambda _: "")
    chosen = []
    for name in ("cifar10", "timing"):
        pattern = "*_fedavg" if name == "timing" else "clean_fedavg"
        chosen.append((TABLES[name], select(TABLES[name], patterns=[pattern])))
    cells = table_cells(chosen, DEFAULTS, tmp_path, rounds=10)
    of_cifar, timed, _ = cells
    assert of_cifar.digest == timed.digest
    of_cifar.config.run_dir.mkdir(parents=True)
    (of_cifar.config.run_dir / "summary.json").write_text("{}")
    assert find_result(of_cifar) == of_cifar.config.run_dir
    assert find_result(timed) is None
    assert distinct(cells) == cells


def test_a_report_that_adds_nothing_says_why(tmp_path, capsys):
    (tmp_path / "results.md").write_text("<!-- begin: results -->\n<!-- end: results -->\n")
    runs = tmp_path / "runs"
    runs.mkdir()

    def said(*directories) -> str:
        report(list(directories), docs=tmp_path)
        return capsys.readouterr().out

    assert "No rows were added: no folder with runs is given." in said()
    assert f"no complete run with an evaluated model lies in {runs}." in said(runs)
    short = settings("cifar10", "fedif", "clean", **{"num-server-rounds": 12})
    write_result(runs / "short", short, [0.5] * 12)
    told = said(runs)
    assert "0 of 1 runs belong to a cell of a table." in told
    assert (
        f"{runs / 'short'} belongs to no cell. The nearest cell (table cifar10, row fedif, column "
        "clean) differs in num-server-rounds, 100 there and 12 in the run."
    ) in told
    write_result(runs / "cell", settings("cifar10", "fedif", "clean"), accuracies(0.6, 0.6))
    earlier = settings("cifar10", "fedif", "clean", normalization="data", seed=1)
    write_result(runs / "earlier", earlier, accuracies(0.6, 0.6))
    assert "2 of 3 runs belong to a cell of a table." in said(runs)


def test_the_seeds_of_the_last_column_are_its_own(tmp_path):
    for seed in (0, 1):
        earlier = settings("cifar10", "fedif", "clean", normalization="data", seed=seed)
        write_result(tmp_path / f"earlier-{seed}", earlier, accuracies(0.6, 0.6))
    write_result(tmp_path / "cell", settings("cifar10", "fedif", "clean"), accuracies(0.6, 0.6))
    (tmp_path / "results.md").write_text("<!-- begin: results -->\n<!-- end: results -->\n")
    report([tmp_path], docs=tmp_path)
    text = (tmp_path / "results.md").read_text()
    words = "Rounds: 100; seeds: 0; missing: 44 of 45 cells. Seeds of the last column: 0, 1."
    assert words in text


def test_reports_at_once_lose_no_row(tmp_path, monkeypatch):
    """Each has read the rows before the other writes its own, where they can."""
    (tmp_path / "results.md").write_text("<!-- begin: results -->\n<!-- end: results -->\n")
    both_have_read = Barrier(2)

    def read_and_wait(path: Path) -> list[Measurement]:
        results = read_results(path)
        if path.name == "cifar10.csv":
            with suppress(BrokenBarrierError):
                both_have_read.wait(timeout=1)
        return results

    monkeypatch.setattr(results_page, "read_results", read_and_wait)
    runs = []
    for seed in (0, 1):
        fedif = settings("cifar10", "fedif", "clean", seed=seed)
        runs.append(
            read_measurement(write_result(tmp_path / str(seed), fedif, accuracies(0.6, 0.6)))
        )
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda run: update_docs(tmp_path, [run], DEFAULTS), runs))
    rows = read_rows(tmp_path / "results" / "cifar10.csv")
    assert sorted(row["seed"] for row in rows) == ["0", "1"]
    curves = read_rows(tmp_path / "results" / "cifar10-curves.csv")
    assert {row["seed"] for row in curves} == {"0", "1"}


def test_a_page_without_marks_is_not_said_to_be_written(tmp_path):
    (tmp_path / "results.md").write_text("<!-- end: results -->\n<!-- begin: results -->\n")
    with pytest.raises(ConfigError, match=r"a folder with results\.md, which has"):
        report(docs=tmp_path)
    (tmp_path / "results.md").write_text("<!-- begin: results -->\nkept\n")
    put_tables(tmp_path / "results.md", {"results": ["new"]})  # What follows a mark is not lost.
    assert (tmp_path / "results.md").read_text() == "<!-- begin: results -->\nkept\n"


def test_what_a_gpu_measured_stands_in_a_row_of_its_own(tmp_path):
    fedif = settings("cifar10", "fedif", "clean")
    gpu = {"cores": 2, "processor": "abacus", "gpu": "slide rule"}
    write_result(tmp_path / "a", fedif, accuracies(0.60, 0.63))
    on_gpu = fedif | {"device": "cuda"}
    write_result(tmp_path / "b", on_gpu, accuracies(0.61, 0.62), machine=gpu | {"device": "cuda"})
    # One that is there, and is left alone.
    left_alone = fedif | {"seed": 1, "device": "cpu"}
    write_result(
        tmp_path / "c", left_alone, accuracies(0.64, 0.64), machine=gpu | {"device": "cpu"}
    )
    only = settings("cifar10", "krum", "clean", device="cuda")
    write_result(tmp_path / "d", only, accuracies(0.50, 0.51), machine=gpu | {"device": "cuda"})
    (tmp_path / "results.md").write_text("<!-- begin: results -->\n<!-- end: results -->\n")
    report([tmp_path], docs=tmp_path)
    text = (tmp_path / "results.md").read_text()
    assert "FedIF | 2 | 62.00±2.83 | 62.00±2.83 | " in text
    assert "FedIF (slide rule) | 1 | **61.00** | **61.00** | " in text
    assert "Krum (slide rule) | 1 | 50.00 | 50.00 | " in text
    assert "missing: 43 of 45 cells." in text
    rows = read_rows(tmp_path / "results" / "cifar10.csv")
    found = {(row["row"], row["gpu"], row["seed"], row["test-last"]) for row in rows}
    assert found == {
        ("fedif", "", "0", "0.600000"),
        ("fedif", "", "1", "0.640000"),
        ("fedif", "slide rule", "0", "0.610000"),
        ("krum", "slide rule", "0", "0.500000"),
    }
    from_rows = read_results(tmp_path / "results" / "cifar10.csv")
    again = fill_table(TABLES["cifar10"], from_rows, DEFAULTS)
    assert [(c.line_key[0], len(c.measurements)) for c in again if c.measurements] == [
        *(("krum slide rule", 1), ("fedif", 2), ("fedif slide rule", 1))
    ]


def test_every_row_says_what_it_has_to_be_read_with(tmp_path):
    fedif = settings("cifar10", "fedif", "label-noise_0.7_0.7-0.8")
    write_result(tmp_path / "a", fedif, accuracies(0.60, 0.63), seconds=7.5, detection_auc=0.75)
    cells = fill_table(TABLES["cifar10"], find_measurements([tmp_path]), DEFAULTS)
    [row] = result_rows(TABLES["cifar10"], cells)
    expected = {
        "revision": "abc",
        "seed": "0",
        "processor": "abacus",
        "gpu": "",
        "normalization": "unit-range",
        "test-last": "0.600000",
        "test-last-ten": "0.600000",
        "test-best": "0.630000",
        "detection-auc": "0.75",
        "seconds": "7.5",
    }
    assert {name: row[name] for name in expected} == expected


@pytest.mark.parametrize("name", TABLES)
def test_every_published_row_says_what_it_has_to_be_read_with(name):
    for row in read_rows(RESULTS / f"{name}.csv"):
        measured = from_row({k: v for k, v in row.items() if k not in ("table", "row", "column")})
        told = to_row(measured)
        needed = ("revision", "seed", "processor", "normalization", "seconds")
        needed += ("test-last", "test-last-ten", "test-best")
        assert [key for key in needed if not told[key]] == []
        # Scores that tell members apart are there where a method has scores, and somebody attacks.
        if row["row"] in ("fedif", "afedsv") and row.get("attack", "none") != "none":
            assert told["detection-auc"]


def test_the_latest_reason_stands_beside_a_table_whose_cell_failed(tmp_path):
    write_result(tmp_path / "a", settings("cifar10", "fedif", "clean"), accuracies(0.60, 0.63))
    for name, reason in (("clean_krum_seed0", "early"), ("clean_krum_seed0", "late")):
        failed = {"cell": name, "reason": reason, "revision": "abc", "seed": 0}
        add_rows(tmp_path / "out" / "cifar10" / "failures.csv", [failed])
    there = {"cell": "clean_fedif_seed0", "reason": "gone", "revision": "abc", "seed": 0}
    add_rows(tmp_path / "out" / "cifar10" / "failures.csv", [there])
    cells = fill_table(TABLES["cifar10"], find_measurements([tmp_path / "a"]), DEFAULTS)
    report_table(TABLES["cifar10"], cells, tmp_path / "out", Console(width=200), 100)
    text = (tmp_path / "out" / "cifar10" / "table.md").read_text()
    assert "Failed: clean_krum_seed0: late" in text
    assert "early" not in text
    assert "gone" not in text


ALONE = """
import socket
import sys

sys.modules["ray"] = None


def refused(self, address):
    raise AssertionError(f"a connection to {address}")


socket.socket.connect = refused
"""


@pytest.mark.all
def test_cells_run_beside_each_other_on_a_device_without_ray_or_network(tmp_path):
    images = np.random.default_rng(0)
    for split, count in (("train", 100), ("test", 4)):
        for label in ("airplane", *"bcdefghij"):
            folder = tmp_path / "data" / split / label
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = images.integers(0, 256, (32, 32, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")
    (tmp_path / "sitecustomize.py").write_text(ALONE)  # Of every process that Python starts.
    start = "from fedif_studies.start import main; main()"
    words = [sys.executable, "-c", start, "paper", "cifar10", "--rounds", "1"]
    words += ["--cells", "clean", "--methods", "fedavg,fedif", "--jobs", "2"]
    words += ["--data-dir", str(tmp_path / "data"), "--output-dir", str(tmp_path / "out")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path.cwd())])}
    environment |= {"XDG_CACHE_HOME": str(tmp_path / "cache"), "COLUMNS": "200"}

    words += ["--device", "cpu"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = read_rows(tmp_path / "out" / "cifar10-1-rounds" / "results.csv")
    assert {row["row"]: row["device"] for row in rows} == {"fedavg": "cpu", "fedif": "cpu"}
    assert {(row["gpu"], row["processor"]) for row in rows} == {("", machine()["processor"])}


@pytest.mark.parametrize(
    ("device", "told"),
    [
        ("cuda:99", "device = 'cuda:99': this process sees"),
        ("abacus", "device = 'abacus'; allowed"),
    ],
)
def test_a_device_that_is_not_there_is_an_error_before_any_data_is_read(tmp_path, device, told):
    with pytest.raises(ConfigError, match=told):
        paper(["cifar10"], data_dir=str(tmp_path), output_dir=tmp_path, device=device)
    assert not list(tmp_path.iterdir())


def test_seconds_are_measured_on_one_thread(tmp_path):
    with pytest.raises(ConfigError, match="threads = 2; allowed: 1 for a table of seconds"):
        paper(["cifar10", "timing"], data_dir=str(tmp_path), output_dir=tmp_path, threads=2)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("threads", "jobs"), [(1, 8), (2, 4), (3, 2), (8, 1), (9, 1)])
def test_so_many_cells_run_at_a_time_that_each_thread_has_a_core(monkeypatch, threads, jobs):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert jobs_that_fit(threads) == jobs
