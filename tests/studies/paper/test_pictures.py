"""The pictures of the paper's tables: every row is a point, and findings follow from rows."""

from __future__ import annotations

import csv
import re

import pytest

from fedif_flower.run.rows import read_rows
from fedif_studies.lab.measurements import find_measurements
from fedif_studies.lab.table import MeanStd
from fedif_studies.paper.cells import fill_table
from fedif_studies.paper.commands import report
from fedif_studies.paper.curve_picture import heaviest
from fedif_studies.paper.curves import Curves
from fedif_studies.paper.dot_pictures import seconds_picture
from fedif_studies.paper.findings import auc_finding, seconds_finding
from fedif_studies.paper.glance import CASES, MethodVariant, glance_finding, glance_picture
from fedif_studies.paper.pictures import accuracy_picture
from fedif_studies.paper.tables import TABLES
from fedif_studies.pictures.panels import SHEETS
from tests.studies.lab.small import DEFAULTS, write_result
from tests.studies.paper.test_tables import accuracies, settings
from tests.test_docs_names import DOCS

HEAVY = "label-noise_0.7_0.7-0.8"
MARKS = "".join(
    f"<!-- begin: {name} -->\n<!-- end: {name} -->\n" for name in ("pictures", "results")
)


def points_in(text: str) -> dict[str, list[str]]:
    """Return the notes of a picture's points, by how they are drawn."""
    points = {}
    for kind, note in re.findall(r'<path class="(\w+) \w+"[^>]*><title>([^<]*)</title>', text):
        points.setdefault(kind, []).append(note)
    return points


def cells_of(folder, table: str = "cifar10"):
    return fill_table(TABLES[table], find_measurements([folder]), DEFAULTS)


@pytest.fixture
def measured(tmp_path):
    """FedAvg and FedIF without attack and under the heaviest label noise; FedIF has two seeds."""
    for column, fedavg, fedif in (("clean", 0.60, 0.59), (HEAVY, 0.40, 0.50)):
        write_result(
            tmp_path / f"{column}-a", settings("cifar10", "fedavg", column), accuracies(fedavg, 0.7)
        )
        row = settings("cifar10", "fedif", column)
        write_result(tmp_path / f"{column}-b", row, accuracies(fedif, 0.7), detection_auc=0.75)
        other = row | {"seed": 1}
        write_result(tmp_path / f"{column}-c", other, accuracies(0.9, 0.9), detection_auc=0.95)
    return tmp_path


def test_every_cell_with_a_row_is_a_point_beside_the_papers_and_the_others_are_counted(measured):
    row = settings("cifar10", "krum", "clean", device="cuda")
    write_result(measured / "d", row, accuracies(0.3, 0.3), machine=GPU)
    picture = accuracy_picture(TABLES["cifar10"], cells_of(measured))
    for sheet in SHEETS:
        points = points_in(picture.draw(sheet))
        assert points["filled"] == [
            "FedAvg, clean, here: 60.00",
            "FedIF, clean, here: 74.50±21.92",
            "FedAvg, label noise 0.7 (0.7, 0.8), here: 40.00",
            "FedIF, label noise 0.7 (0.7, 0.8), here: 70.00±28.28",
        ]
        assert points["holed"] == ["Krum, clean, here, on a GPU: 30.00"]
        assert len(points["hollow"]) == 45
        assert "FedIF, clean, paper: 63.60±0.43" in points["hollow"]
    assert picture.caption == "Missing here: 40 of 45 cells."


def test_a_higher_figure_stands_higher(measured):
    text = accuracy_picture(TABLES["cifar10"], cells_of(measured)).draw(SHEETS[1])
    (fedavg, fedif) = (
        float(re.search(rf'd="M[\d.]+ ([\d.]+)[^>]*><title>{name}, clean, paper', text)[1])
        for name in ("FedAvg", "FedIF")
    )
    assert fedif < fedavg  # 63.60 and 62.52, from above.


def test_a_panel_says_what_its_numbers_are(tmp_path):
    table = TABLES["cifar10-gradient"]
    for sheet in SHEETS:
        text = accuracy_picture(table, cells_of(tmp_path, table.name)).draw(sheet)
        assert text.count(">gradient noise</text>") == 4
        assert ">0.5, std 0.05</text>" in text
        assert ">0.7 (0.7, 0.8)</text>" in accuracy_picture(
            TABLES["cifar10"], cells_of(tmp_path)
        ).draw(sheet)


def test_cells_with_other_pixels_are_no_points_and_are_said_to_be_there(measured, tmp_path):
    table = TABLES["cifar10"]
    earlier = tmp_path / "earlier"
    for name in ("krum", "fedif"):
        own = settings("cifar10", name, "clean", normalization="data")
        write_result(earlier / name, own, accuracies(0.3, 0.3))
    runs = find_measurements([measured])
    cells = fill_table(table, runs, DEFAULTS)
    before = fill_table(table, runs, DEFAULTS, changed={"normalization": "data"})
    caption = accuracy_picture(table, cells, before).caption
    other = "Of these, 1 was measured with other pixels: see the table."
    assert caption == f"Missing here: 41 of 45 cells. {other}"


def test_the_alternative_text_says_what_toy_rows_say(measured):
    # Over the seed that both have: 59 - 60 and 50 - 40 points. Means are 2.52 and 4.30 (FedAvg),
    # 10.90 and 18.26 (FedIF, of two seeds) from the paper's 62.52, 44.30, 63.60 and 51.74.
    assert accuracy_picture(TABLES["cifar10"], cells_of(measured)).finding == (
        "FedIF is above FedAvg in 1 of 2 columns, in the paper in 6 of 9. "
        "Its largest lead is 10.0 points (label noise 0.7 (0.7, 0.8)). "
        "Here and paper are 7.6 points apart in the median of 4 cells, "
        "18.3 at most (FedIF, label noise 0.7 (0.7, 0.8))."
    )


def test_the_alternative_text_of_nothing_says_so(tmp_path):
    assert accuracy_picture(TABLES["cifar10"], cells_of(tmp_path)).finding == (
        "FedIF and FedAvg are both measured in no column yet; "
        "FedIF is above FedAvg in the paper in 6 of 9 columns."
    )


def test_scores_are_counted_by_their_auc(measured):
    noisy = [cell for cell in cells_of(measured) if cell.column.key == HEAVY]
    assert auc_finding({"CIFAR-10": noisy, "Fashion-MNIST": []}) == (
        "CIFAR-10: FedIF's scores reach an AUC of 0.95 in 0 of 1 column; "
        "the least is 0.850 (label noise 0.7 (0.7, 0.8))."
    )
    assert auc_finding({"CIFAR-10": []}) == "No AUC is measured yet."


def test_seconds_stand_beside_the_papers(tmp_path):
    for row, seconds in (("afedsv", 30.0), ("fedif", 0.02)):
        own = settings("timing", row, "cifar10")
        own["num-server-rounds"] = 10
        write_result(tmp_path / row, own, [0.5] * 10, aggregation_seconds_per_round=seconds)
    table, cells = TABLES["timing"], cells_of(tmp_path, "timing")
    # The paper: 91.7635 to 0.1834 s, and 71.2 to 0.16 s.
    assert seconds_finding(table, cells) == (
        "AFedSV's seconds as a multiple of FedIF's. FedIF takes its gradient while clients train, "
        "so its seconds here leave that out. CIFAR-10: 1,500 times here, 500 times in the paper. "
        "Fashion-MNIST: 450 times in the paper."
    )
    drawn = seconds_picture(table, cells).draw(SHEETS[0])
    assert "so its seconds here leave that out." in " ".join(re.findall(r">([^<>]+)</text>", drawn))
    points = points_in(drawn)
    assert points["filled"] == ["AFedSV, cifar10, here: 30.0000", "FedIF, cifar10, here: 0.0200"]
    assert len(points["hollow"]) == 10


GPU = {"cores": 2, "processor": "abacus", "gpu": "slide rule", "device": "cuda"}


def test_seconds_of_a_cpu_are_not_divided_by_those_of_a_gpu(tmp_path):
    own = settings("timing", "fedif", "cifar10")
    write_result(tmp_path / "a", own, [0.5] * 10, aggregation_seconds_per_round=0.02)
    for row, seconds in (("afedsv", 8.0), ("fedif", 0.002)):
        on_gpu = settings("timing", row, "cifar10", device="cuda")
        measured = {"aggregation_seconds_per_round": seconds, "machine": GPU}
        write_result(tmp_path / f"{row}-b", on_gpu, [0.5] * 10, **measured)
    finding = seconds_finding(TABLES["timing"], cells_of(tmp_path, "timing"))
    assert "CIFAR-10: 4,000 times here, 500 times in the paper." in finding


def test_a_curve_of_a_gpu_has_holes_in_its_points(tmp_path):
    docs = tmp_path / "docs"
    docs.mkdir()
    write_result(
        tmp_path / "runs" / "a", settings("cifar10", "fedavg", HEAVY), accuracies(0.4, 0.4)
    )
    for row in ("fedavg", "fedif"):
        on_gpu = settings("cifar10", row, HEAVY, device="cuda")
        write_result(tmp_path / "runs" / f"{row}-b", on_gpu, accuracies(0.5, 0.5), machine=GPU)
    assert "Missing: 10 of 12 curves." in reported(docs, tmp_path / "runs")
    points = points_in((docs / "pictures" / "curves-380.svg").read_text())
    assert points["filled"][-1] == "FedAvg, round 100: 40.00"  # The CPU's, where it has one.
    assert points["holed"][-1] == "FedIF, round 100: 50.00"
    assert len(points["filled"]) == len(points["holed"]) == 5
    assert len(points["hollow"]) == 12


def test_the_heaviest_column_has_most_malicious_clients_and_the_worst_they_do():
    assert heaviest(TABLES["cifar10"], "label-noise").key == HEAVY
    assert heaviest(TABLES["cifar10-gradient"], "gradient-noise").key == "gradient-noise_0.6_0.1"
    fashion = TABLES["fashion-mnist-gradient"]
    assert heaviest(fashion, "gradient-noise").key == "gradient-noise_0.7_0.1"


def reported(docs, *folders) -> str:
    (docs / "results.md").write_text(MARKS)
    report(list(folders), docs=docs)
    return (docs / "results.md").read_text()


def test_a_report_writes_every_fifth_round_of_each_run_and_draws_it(tmp_path, measured):
    docs = tmp_path / "docs"
    docs.mkdir()
    run = write_result(
        measured / "e",
        settings("cifar10", "afedsv", HEAVY),
        [0.2] * 4 + [0.3] + [0.2] * 94 + [0.35],
    )
    page = reported(docs, measured)
    rows = read_rows(docs / "results" / "cifar10-curves.csv")
    curve = [row for row in rows if (row["row"], row["column"]) == ("afedsv", HEAVY)]
    assert [int(row["round"]) for row in curve] == list(range(0, 101, 5))
    assert [row["test"] for row in curve[:3]] == ["0.100000", "0.300000", "0.200000"]
    assert (curve[-1]["test"], curve[-1]["validation"]) == ("0.350000", "0.360000")
    assert {(r["seed"], r["revision"], r["normalization"]) for r in curve} == {
        ("0", "abc", "unit-range")
    }
    assert len(rows) == 7 * 21
    assert "Missing: 9 of 12 curves. CIFAR-10, gradient noise 0.6, std 0.1: FedAvg, " in page
    # FedIF's mean over two seeds.
    last = "CIFAR-10, label noise 0.7 (0.7, 0.8): FedAvg 40.0, AFedSV 35.0, FedIF 70.0."
    assert last in page
    # A curve stays when the run's folder is gone, as its row does.
    (run / "rounds.csv").unlink()
    (run / "summary.json").unlink()
    assert reported(docs, measured) == page
    assert read_rows(docs / "results" / "cifar10-curves.csv") == rows


def test_a_curve_leaves_with_the_row_that_it_was_of(tmp_path, measured):
    docs = tmp_path / "docs"
    docs.mkdir()
    reported(docs, measured)
    path = docs / "results" / "cifar10-curves.csv"
    fedavg = "fedavg,clean,0,,unit-range,"
    path.write_text(path.read_text().replace(f"{fedavg}abc", f"{fedavg}older"))
    for folder in measured.glob("*-a"):
        (folder / "summary.json").unlink()  # Their rows stay; what they say of a curve does not.
    reported(docs, measured)
    assert {row["column"] for row in read_rows(path) if row["row"] == "fedavg"} == {HEAVY}


def test_a_curve_is_the_mean_of_the_rounds_that_all_seeds_have(tmp_path, measured):
    docs = tmp_path / "docs"
    docs.mkdir()
    reported(docs, measured)
    curves = Curves(docs / "results" / "cifar10-curves.csv")
    (fedif,) = [cell for cell in cells_of(measured) if cell.key == ("fedif", "clean")]
    curve = dict(curves.mean(fedif))
    assert curve[5] == pytest.approx(0.2)
    assert curve[100] == pytest.approx((0.59 + 0.9) / 2)


def test_a_glance_says_what_bounds_bring():
    fedavg, bounded, fedif = (
        MethodVariant("FedAvg", False),
        MethodVariant("FedAvg", True),
        MethodVariant("FedIF", False),
    )
    figures = [
        {fedavg: 30.0, bounded: 50.0, fedif: 40.0},
        {fedavg: 80.0, bounded: 81.0, fedif: 79.0},
    ]
    cases = [{variant: MeanStd(mean, None) for variant, mean in case.items()} for case in figures]
    assert glance_finding(cases) == (
        "Bounds bring FedAvg 10.5 points in the median of 2 cases, 20.0 at most. "
        "With bounds FedIF is above FedAvg in 0 of 0 cases. "
        "Without bounds FedIF is above FedAvg in 1 of 2 cases."
    )


@pytest.mark.parametrize("changed", [{"normalization": "unit-range"}, {"gpu": "H200"}])
def test_a_glance_leaves_out_rows_of_other_pixels_and_of_a_gpu(tmp_path, changed):
    """Of a file's two rows the second was measured in another way: a mean would mix them."""
    names = ["rule.bounds", "rule.weights", "normalization", "gpu", "test-last-ten"]
    usual = dict(zip(names, ["full", "fedif", "data", "", "0.5"], strict=True))
    for name in ("cifar10-gradient.csv", "influence-descent-cifar10-gradient-noise.csv"):
        (tmp_path / name).write_text(",".join([*names, "column", "strategy"]) + "\n")
    with (tmp_path / "cifar10-gradient-noise-bounds.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerow(usual)
        writer.writerow({**usual, **changed, "test-last-ten": "0.9"})
    [case] = [case for case in CASES if case.words == "50 % add noise to updates"]
    assert case.read(tmp_path) == {("FedIF", True): MeanStd(50.0, None)}


def test_a_glance_counts_what_is_not_measured(tmp_path):
    picture = glance_picture(tmp_path)
    assert picture.caption == f"Not measured: {6 * len(CASES)} of {6 * len(CASES)} points."
    assert points_in(picture.draw(SHEETS[0])) == {}
    assert glance_picture(DOCS / "results").caption == "All 36 points are measured."
