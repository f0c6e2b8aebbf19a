"""Pictures of sweeps and comparisons: what each axis is, and differences seed by seed."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from rich.console import Console

from fedif_flower.errors import ConfigError
from fedif_flower.run import palette, plots
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.rows import read_rows
from fedif_flower.settings import Scalar
from fedif_studies.lab.bounded import RULE
from fedif_studies.lab.commands import compare
from fedif_studies.lab.differences import varying
from fedif_studies.lab.measurements import find_measurements, read_measurement
from fedif_studies.lab.pairs import pair_runs, paired_remarks, paired_table, plot_pairs
from fedif_studies.lab.panels import ROUND, Roles, axes_of, points_of, roles_of
from fedif_studies.lab.sweep_report import report_sweep
from tests.studies.lab.small import write_result


@pytest.mark.parametrize(
    ("axes", "along", "roles"),
    [
        ({"strategy": ("a", "b")}, ROUND, ("", ("strategy",))),
        ({"strategy": ("a", "b"), "attack": ("c", "d")}, ROUND, ("attack", ("strategy",))),
        ({"share": (0.1, 0.2, 0.3), "strategy": ("a", "b")}, "share", ("", ("strategy",))),
        ({"share": (0.1, 0.2), "strategy": ("a", "b")}, ROUND, ("strategy", ("share",))),
        ({"on": (True, False), "a": (1, 2, 3), "b": (1, 2, 3, 4)}, "b", ("a", ("on",))),
        ({"x": "ab", "y": "cd", "z": "ef"}, ROUND, ("y", ("x", "z"))),
        ({}, ROUND, ("", ())),
    ],
)
def test_each_axis_is_panels_or_lines_or_lies_along_them(axes, along, roles):
    assert roles_of(axes, over_rounds=False) == Roles(along, *roles)
    assert roles_of(axes, over_rounds=True).along == ROUND


@pytest.fixture
def swept(tmp_path):
    """Two strategies under two attacks with three shares, in two seeds: 24 runs of two rounds."""
    for index, strategy in enumerate(("fedavg", "fedif")):
        for attack in ("label-noise", "sign-flip"):
            for share in (0.3, 0.1, 0.2):
                for seed in (0, 1):
                    own = {"strategy": strategy, "attack": attack, "malicious-fraction": share}
                    own |= {"seed": seed, "num-server-rounds": 2}
                    last = 0.5 + index / 10 - share + seed / 50
                    name = f"{strategy}-{attack}-{share}-{seed}"
                    write_result(tmp_path / "runs" / name, own, [0.3, last])
    return find_measurements([tmp_path / "runs"])


KEYS = ["strategy", "attack", "malicious-fraction"]


def test_a_point_is_the_mean_over_seeds_and_its_bar_their_deviation(swept):
    wanted = {"strategy": "fedif", "attack": "sign-flip"}.items()
    own = [measurement for measurement in swept if wanted <= measurement.config.items()]
    # Means of the last ten rounds: of 30 % and 60 - 100 share, and 2 points more for seed 1.
    points = points_of(own, "malicious-fraction")
    assert [place for place, _ in points] == [0.1, 0.2, 0.3]
    assert [mean.mean for _, mean in points] == pytest.approx([40.5, 35.5, 30.5])
    assert [mean.std for _, mean in points] == pytest.approx([2**0.5 / 2] * 3)
    one = [m for m in own if m.config["malicious-fraction"] == 0.1]
    over_rounds = points_of(one, ROUND)
    assert [place for place, _ in over_rounds] == [0, 1, 2]
    assert [mean.mean for _, mean in over_rounds] == pytest.approx([10, 30, 51])
    assert over_rounds[2][1].std == pytest.approx(2**0.5)


@pytest.fixture
def drawn(monkeypatch) -> dict[str, Figure]:
    """Keep what is drawn, by the name of its file."""
    figures: dict[str, Figure] = {}

    def keep(figure: Figure, path: Path) -> None:
        figures[path.name] = figure
        figure.savefig(path, dpi=20)

    monkeypatch.setattr(plots, "save_figure", keep)
    return figures


def test_a_sweep_has_a_panel_for_each_value_and_names_its_axes(swept, tmp_path, drawn):
    report_sweep("mine", swept, tmp_path / "out", Console(width=200), set(KEYS))
    shown = drawn["axes.png"]
    visible = [panel for panel in shown.axes if panel.get_visible()]
    assert [panel.get_title() for panel in visible] == [
        "attack = label-noise",
        "attack = sign-flip",
    ]
    assert {panel.get_xlabel() for panel in visible} == {"malicious-fraction"}
    assert visible[0].get_ylabel() == "test accuracy, %\n(mean of the last ten rounds)"
    (legend,) = shown.legends
    assert legend.get_title().get_text() == "strategy"
    assert [text.get_text() for text in legend.get_texts()] == ["fedavg", "fedif"]
    for panel in visible:
        assert len(panel.containers) == 2  # Lines with their bars.
        fedif = panel.containers[1].lines[0].get_ydata()
        assert list(fedif) == pytest.approx([40.5, 35.5, 30.5])
    over_rounds = drawn["accuracy.png"]
    titles = [panel.get_title() for panel in over_rounds.axes if panel.get_visible()]
    assert titles == ["attack = label-noise", "attack = sign-flip"]
    # Three rounds: between them there is none.
    for panel in (shown for shown in over_rounds.axes if shown.get_visible()):
        assert all(float(place).is_integer() for place in panel.get_xticks())
    page = (tmp_path / "out" / "table.md").read_text()
    assert "![axes](axes.png)\n\n![accuracy](accuracy.png)" in page


def test_a_line_says_whose_it_is_where_one_value_of_an_axis_alone_is_measured(tmp_path, drawn):
    own: dict[str, Scalar] = {"strategy": "median", "num-server-rounds": 1}
    write_result(tmp_path / "runs" / "median", own, [0.5])
    runs = find_measurements([tmp_path / "runs"])
    keys = {"strategy", "learning-rate"}
    # Its third cell has the same rate: no axis, as all have it.
    planned = [{**runs[0].config, "strategy": name} for name in ("fedavg", "median", "krum")]
    report_sweep("mine", runs, tmp_path / "out", Console(width=200), keys, planned=planned)
    page = (tmp_path / "out" / "table.md").read_text()
    assert "| strategy | seeds | last round |" in page
    assert "| median | 1 | 50.00 |" in page
    (legend,) = drawn["accuracy.png"].legends
    assert [text.get_text() for text in legend.get_texts()] == ["median"]


def test_a_picture_along_an_axis_that_a_sweep_has_no_more_is_gone(swept, tmp_path):
    out = tmp_path / "out"
    report_sweep("mine", swept, out, Console(width=200), set(KEYS))
    assert {path.name for path in out.glob("*.png")} == {"axes.png", "accuracy.png"}
    fewer = [run for run in swept if run.config["malicious-fraction"] == 0.1]
    report_sweep("mine", fewer, out, Console(width=200), {"strategy", "attack"})
    assert {path.name for path in out.glob("*.png")} == {"accuracy.png"}


def test_folders_that_a_sweep_goes_over_are_an_axis_and_no_seeds(tmp_path):
    for folder, last in (("cats", 0.9), ("dogs", 0.5)):
        own = {"dataset": "image-folder", "data-dir": folder, "num-server-rounds": 1}
        write_result(tmp_path / "runs" / folder, own, [last])
    runs = find_measurements([tmp_path / "runs"])
    report_sweep("mine", runs, tmp_path / "out", Console(width=200), {"data-dir"})
    page = (tmp_path / "out" / "table.md").read_text()
    assert "| cats | 1 | 90.00 | 90.00 | 90.00 | - |\n| dogs | 1 | 50.00 |" in page
    rows = read_rows(tmp_path / "out" / "results.csv")
    assert [(row["data-dir"], row["test-last"]) for row in rows] == [
        ("cats", "0.900000"),
        ("dogs", "0.500000"),
    ]


def test_a_setting_that_runs_have_under_another_key_is_an_axis_and_no_seeds(tmp_path):
    for gamma, last in ((0.5, 0.9), (0.25, 0.5)):
        own = {"strategy": "fedif_flower:FedIF", "own-settings": f"FedIF.gamma={gamma}"}
        write_result(tmp_path / "runs" / str(gamma), {**own, "num-server-rounds": 1}, [last])
    runs = find_measurements([tmp_path / "runs"])
    report_sweep("mine", runs, tmp_path / "out", Console(width=200), {"own-settings"})
    page = (tmp_path / "out" / "table.md").read_text()
    assert "| 0.5 | 1 | 90.00 | 90.00 | 90.00 | - |\n| 0.25 | 1 | 50.00 |" in page


@pytest.mark.parametrize("strategy", ["_mine:Own", "$\\alpha$:Own"])
def test_a_sweep_is_reported_whatever_its_values_are_called(tmp_path, strategy):
    for name in ("fedif", strategy):
        own = {"local-method": name, "num-server-rounds": 1}
        folder = write_result(tmp_path / "runs" / str(len(name)), {"num-server-rounds": 1}, [0.5])
        summary = RunFolder(folder).summary
        content = summary.read()
        content["config"] |= own
        summary.write(content)
    runs = find_measurements([tmp_path / "runs"])
    report_sweep("mine", runs, tmp_path / "out", Console(width=200), {"local-method"})
    page = (tmp_path / "out" / "table.md").read_text()
    assert f"| {strategy} | 1 | 50.00 |" in page
    assert "![accuracy](accuracy.png)" in page


def with_own_metric(run_dir: Path, settings: dict[str, object], errors: list[float]) -> Path:
    """Write the result of a task of classes with an error of its own, whose accuracies rise."""
    accuracies = [0.5 + index / 10 for index in range(len(errors))]
    folder = write_result(run_dir, settings, accuracies)
    rounds = RunFolder(folder).rounds.path
    heading, initial, *lines = rounds.read_text().splitlines()
    heading += ",test_balanced_error,validation_balanced_error"
    trained = [f"{line},{error},{error}" for line, error in zip(lines, errors, strict=True)]
    rounds.write_text("\n".join([heading, f"{initial},1.0,1.0", *trained]) + "\n")
    summary = RunFolder(folder).summary
    figures = {"higher_is_better": False, "test": errors[-1], "validation": errors[-1]}
    own = {"test_accuracy": accuracies[-1], "metrics": {"balanced error": figures}}
    summary.write(summary.read() | own)
    return folder


def test_a_sweep_shows_a_task_s_first_metric_in_the_place_of_accuracy(tmp_path, drawn):
    for strategy, errors in (("fedavg", [0.4, 0.2, 0.3]), ("fedif", [0.4, 0.1, 0.4])):
        own = {"strategy": strategy, "num-server-rounds": 3, "update-clipping": 0.0}
        with_own_metric(tmp_path / "runs" / strategy, own, errors)
    runs = find_measurements([tmp_path / "runs"])
    report_sweep("mine", runs, tmp_path / "out", Console(width=200), {"strategy"})
    page = (tmp_path / "out" / "table.md").read_text()
    assert "| fedavg | 1 | 0.3 | 0.3 | 0.2 | - |\n| fedif | 1 | 0.4 | 0.3 | 0.1 | - |" in page
    assert "Test balanced error; lower is better." in page
    (panel,) = drawn["accuracy.png"].axes
    assert panel.get_ylabel() == "test balanced error"
    assert list(panel.containers[0].lines[0].get_ydata()) == [1.0, 0.4, 0.2, 0.3]
    row = read_rows(tmp_path / "out" / "results.csv")[0]
    assert (row["metric"], row["higher-is-better"], row["test-best"]) == (
        "balanced error",
        "false",
        "0.200000",
    )


def test_a_sweep_over_tasks_says_what_each_line_is_measured_by(tmp_path, drawn):
    own = {"num-server-rounds": 1, "update-clipping": 0.0}
    write_result(tmp_path / "runs" / "a", {**own, "strategy": "fedavg"}, [0.5])
    with_own_metric(tmp_path / "runs" / "b", {**own, "strategy": "fedif"}, [0.25])
    runs = find_measurements([tmp_path / "runs"])
    report_sweep("mine", runs, tmp_path / "out", Console(width=200), {"strategy"})
    page = (tmp_path / "out" / "table.md").read_text()
    assert "| fedavg | accuracy | 1 | 50.00 | 50.00 | 50.00 | - |" in page
    assert "| fedif | balanced error | 1 | 0.25 | 0.25 | 0.25 | - |" in page
    assert "The pictures show accuracy alone." in page


def test_a_sweep_says_which_strategies_bring_bounds_with_them(tmp_path):
    """A lead may be theirs."""
    for strategy in ("fedavg", "fedif"):
        own = {"strategy": strategy, "num-server-rounds": 1}
        write_result(tmp_path / "runs" / strategy, own, [0.5])
    runs = find_measurements([tmp_path / "runs"])
    report_sweep("mine", runs, tmp_path / "out", Console(width=200), {"strategy"})
    page = (tmp_path / "out" / "table.md").read_text()
    assert "| strategy | bounds | seeds |" in page
    assert "| fedavg | none, by default | 1 |" in page
    bounds = "Clip(multiple=2.0) + LossBound(tolerance=0.1), by default"
    assert f"| fedif | {bounds} | 1 |" in page


def test_a_mean_auc_of_fewer_seeds_than_its_line_says_so(tmp_path):
    """No malicious client took part with seed 2, and none at all under the median."""
    for strategy, aucs in (("fedavg", [0.5, 0.75, None]), ("median", [None] * 3)):
        for seed, auc in enumerate(aucs):
            own = {"strategy": strategy, "seed": seed, "num-server-rounds": 1}
            folder = tmp_path / "runs" / f"{strategy}-{seed}"
            write_result(folder, own, [0.5], detection_auc=auc)
    runs = find_measurements([tmp_path / "runs"])
    report_sweep("mine", runs, tmp_path / "out", Console(width=200), {"strategy"})
    page = (tmp_path / "out" / "table.md").read_text()
    # The deviation of 0.5 and 0.75 is a quarter over the root of 2.
    assert "| 0.625±0.177 (2 of 3 seeds) |" in page
    assert page.count(" seeds) |") == 1


def test_values_of_an_axis_stand_in_order_where_they_are_numbers(swept):
    assert axes_of(swept, KEYS) == {
        "strategy": ("fedavg", "fedif"),
        "attack": ("label-noise", "sign-flip"),
        "malicious-fraction": (0.1, 0.2, 0.3),
    }


def test_a_picture_of_differences_says_of_what_they_are(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(plots, "save_figure", lambda figure, _: figures.append(figure))
    measurements = [read_measurement(folder) for folder in compared(tmp_path, *RUNS)]
    plot_pairs(pair_runs(measurements, ["strategy"]), tmp_path / "differences.png")
    (axes,) = figures[0].axes
    assert axes.get_xlabel().replace("\n", " ") == (
        "points beyond strategy = fedavg, mean of the last ten rounds; bar: mean over seeds"
    )


def compared(tmp_path, *runs: tuple[str, int, float]) -> list[Path]:
    folders = []
    for strategy, seed, accuracy in runs:
        own = {"strategy": strategy, "seed": seed, "update-clipping": 0.0, "num-server-rounds": 1}
        folder = tmp_path / f"{strategy}-{seed}"
        folders.append(write_result(folder, own, [accuracy]))
    return folders


RUNS = [
    *(("fedavg", 0, 0.50), ("fedavg", 1, 0.40), ("fedavg", 2, 0.45)),
    *(("fedif", 0, 0.55), ("fedif", 1, 0.38), ("fedif", 3, 0.90)),
]


def test_differences_are_of_the_seeds_that_both_have(tmp_path):
    measurements = [read_measurement(folder) for folder in compared(tmp_path, *RUNS)]
    paired = pair_runs(measurements, ["strategy"])
    assert paired.first == "strategy = fedavg"
    (fedif,) = paired.others
    assert dict(fedif.by_seed) == pytest.approx({0: 5.0, 1: -2.0})
    table = paired_table(paired)
    assert table.title == "points beyond strategy = fedavg, mean of the last ten rounds"
    assert table.heading == ["settings", "seed 0", "seed 1", "mean", "higher in"]
    assert table.lines == [["strategy = fedif", "+5.00", "-2.00", "+1.50", "1 of 2"]]
    # FedIF's seed 3, and nothing of FedAvg's own.
    assert paired_remarks(paired) == [
        "Runs with a seed that strategy = fedavg lacks are in no difference: 1."
    ]
    alone = [m for m in measurements if m.config["strategy"] == "fedavg" or m.seed == 3]
    assert pair_runs(alone, ["strategy"]) is None


def test_runs_of_apps_of_their_own_have_no_seed_and_are_in_no_difference(tmp_path):
    measurements = [read_measurement(folder) for folder in compared(tmp_path, *RUNS[:4])]
    own = dataclasses.replace(measurements[0], config={"strategy": "FedIF"})
    paired = pair_runs([own, *measurements], ["strategy"])
    assert paired.first == "strategy = fedavg"
    assert paired_table(paired).lines == [["strategy = fedif", "+5.00", "+5.00", "1 of 1"]]
    assert paired_remarks(paired) == [
        "Runs of apps of their own tell no seed and are in no difference: 1."
    ]
    assert pair_runs([own, own], ["strategy"]) is None


def test_a_run_in_the_place_of_another_stays_among_the_seeds_of_its_settings(tmp_path):
    folders = compared(tmp_path, *RUNS[:4])
    again = {"strategy": "fedif", "seed": 1, "update-clipping": 0.0, "num-server-rounds": 1}
    folders.append(write_result(tmp_path / "again", again | {"overwrite": True}, [0.38]))
    measurements = [read_measurement(folder) for folder in folders]
    assert varying(measurements) == ["strategy"]
    paired = pair_runs(measurements, varying(measurements))
    # 55 - 50 and 38 - 40 points, 1.5 in the mean.
    assert paired_table(paired).lines == [["strategy = fedif", "+5.00", "-2.00", "+1.50", "1 of 2"]]


def test_a_comparison_says_which_way_is_better_and_which_runs_are_in_no_difference(tmp_path, drawn):
    folders = []
    for name, strategy, last in (
        ("old", "fedavg", 3.0),
        ("new", "fedavg", 2.0),
        ("b", "fedif", 1.5),
    ):
        own = {"strategy": strategy, "update-clipping": 0.0, "num-server-rounds": 1}
        metrics = {"metrics": {"loss": {"higher_is_better": False}}}
        folder = write_result(tmp_path / name, own, [last], **metrics)
        rounds = folder / "rounds.csv"
        rounds.write_text(rounds.read_text().replace("_accuracy", "_loss"))
        folders.append(folder)
    compare(folders, tmp_path / "out")
    page = (tmp_path / "out" / "table.md").read_text()
    assert "Test loss; lower is better." in page
    assert "| strategy = fedif | -0.5 | -0.5 | 0 of 1 |" in page
    assert "same settings and seed the last one counts in the differences; left out: 1." in page


def test_one_run_is_no_comparison(tmp_path):
    with pytest.raises(ConfigError, match="run_dirs = 1; allowed: two or more"):
        compare(compared(tmp_path, RUNS[0]), tmp_path / "out")


def test_a_comparison_does_not_replace_the_picture_of_a_run(tmp_path):
    folders = compared(tmp_path, *RUNS)
    picture = folders[0] / "accuracy.png"
    picture.write_bytes(b"of its report")
    with pytest.raises(ConfigError, match=r"output-dir = '.*'; allowed: a folder of no run"):
        compare(folders, folders[0])
    assert picture.read_bytes() == b"of its report"


def test_a_comparison_leaves_no_picture_of_an_earlier_one(tmp_path):
    out = tmp_path / "out"
    folders = compared(tmp_path, *RUNS)
    compare(folders, out)
    assert (out / "differences.png").exists()
    compare(folders[:2], out)  # Two seeds of one setting: no difference.
    assert not (out / "differences.png").exists()
    assert "differences.png" not in (out / "table.md").read_text()


def test_a_comparison_shows_differences_seed_by_seed(tmp_path, drawn, capsys):
    compare(compared(tmp_path, *RUNS), tmp_path / "out")
    (axes,) = drawn["differences.png"].axes
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == ["seed 0", "seed 1"]
    points = {line.get_label(): list(line.get_xdata()) for line in axes.lines}
    assert points["seed 0"] == pytest.approx([5.0])
    assert points["seed 1"] == pytest.approx([-2.0])
    page = (tmp_path / "out" / "table.md").read_text()
    assert "| strategy = fedif | +5.00 | -2.00 | +1.50 | 1 of 2 |" in page
    assert "![differences](differences.png)" in page
    assert "The mean of the last ten rounds includes only the evaluated ones: 1." in page
    assert "seed 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("seeds", "data", "code", "remarks"),
    [
        ((0, 0), ("a", "a"), ("c", "c"), []),
        ((0, 0), ("a", "b"), ("c", "c"), ["same data: 2 different sets"]),
        ((0, 1), ("a", "b"), ("c", "c"), []),  # A task may draw them from the seed.
        ((0, 0), ("a", "a"), ("c", "d"), ["same code: 2 versions of it"]),
        ((0, 0), ("a", ""), ("c", ""), []),  # One left no record.
    ],
)
def test_a_comparison_says_where_data_or_code_differ(tmp_path, seeds, data, code, remarks):
    """Where they lie is no setting that counts, so that the table has no column for it."""
    folders = []
    for place, strategy in enumerate(("fedavg", "fedif")):
        own = {"strategy": strategy, "seed": seeds[place], "num-server-rounds": 1}
        folder = write_result(tmp_path / strategy, own, [0.5])
        if data[place]:
            provenance = {"data_fingerprint": data[place], "code_sha256": code[place]}
            (folder / "provenance.json").write_text(json.dumps(provenance))
        folders.append(folder)
    compare(folders, tmp_path / "out")
    page = (tmp_path / "out" / "table.md").read_text()
    assert page.count("Not all runs") == len(remarks)
    assert all(remark in page for remark in remarks)


def test_a_comparison_names_the_bounds_of_a_rule_that_has_its_own(tmp_path):
    for bounds in ("none", "full"):
        own = {"strategy": RULE, "rule.bounds": bounds, "num-server-rounds": 1}
        write_result(tmp_path / bounds, own, [0.5])
    write_result(tmp_path / "fedif", {"strategy": "fedif", "num-server-rounds": 1}, [0.5])
    compare([tmp_path / name for name in ("none", "full", "fedif")], tmp_path / "out")
    head, _, *lines = (tmp_path / "out" / "table.md").read_text().splitlines()[2:7]
    place = head.split(" | ").index("bounds")
    assert [line.split(" | ")[place] for line in lines] == [
        "none, by default",
        "rule.bounds = full",
        "Clip(multiple=2.0) + LossBound(tolerance=0.1), by default",
    ]


def test_no_two_of_many_lines_look_alike():
    looks = [tuple(palette.line_style(index).values()) for index in range(49)]
    assert len(set(looks)) == 49
    assert len({colour for colour, _ in looks[:7]}) == len({shape for _, shape in looks[:7]}) == 7
