"""Sentences of the page of results that follow from the rows of its tables and sweeps."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from fedif_flower.run.rows import read_rows
from tests.test_docs_figures import LABEL_NOISE, PAPER, Row, of_seed, rows_of, words_of

TABLES = ("cifar10", "cifar10-gradient", "fashion-mnist", "fashion-mnist-gradient")
PIXELS = {"normalization": "data"}  # Those of the last column of the tables.
ADVERSARIAL = "adversarial_0.5_0.7-0.8", "adversarial_0.7_0.7-0.8"


def protocol_rows(table: str, **values: str) -> list[Row]:
    """Return the rows of a table's cells: pixels as AFedSV's authors have them, no GPU."""
    rows = rows_of(f"{table}.csv", gpu="", **values)
    return [row for row in rows if row["normalization"] != "data"]


def cell(table: str, row: str, column: str, figure: str = "test-last-ten") -> float:
    """Return a figure of a cell's one row, in percent."""
    [of_cell] = protocol_rows(table, row=row, column=column)
    return 100 * float(of_cell[figure])


def printed(table: str, row: str, column: str) -> tuple[float, float]:
    """Return the paper's figure and its deviation."""
    for line in read_rows(PAPER):
        if (line["table"], line["row"], line["column"]) == (table, row, column):
            return float(line["value"]), float(line["deviation"])
    raise LookupError(table, row, column)


def shown(table: str, row: str, column: str) -> str:
    value, deviation = printed(table, row, column)
    return f"{value:.1f}±{deviation:.1f}"


def columns_of(table: str, kind: str = "") -> list[str]:
    """Return the columns of a table whose attack begins with ``kind``, in the order of the rows."""
    columns = (row["column"] for row in protocol_rows(table))
    return list(dict.fromkeys(column for column in columns if column.startswith(kind)))


def range_of(values: Iterable[float], digits: int = 1) -> str:
    in_order = sorted(values)
    return f"{in_order[0]:.{digits}f} to {in_order[-1]:.{digits}f}"


def aucs(kind: str, *tables: str) -> list[float]:
    return [
        float(row["detection-auc"])
        for table in tables
        for row in protocol_rows(table, row="fedif")
        if row["column"].startswith(kind)
    ]


def leads(kind: str, *tables: str) -> list[float]:
    """Return the points that FedIF is ahead of FedAvg in the columns of an attack."""
    return [
        cell(table, "fedif", column) - cell(table, "fedavg", column)
        for table in tables
        for column in columns_of(table, kind)
    ]


def test_what_fedif_brings_is_what_the_rows_say():
    text = words_of("results.md")
    gradient = aucs("gradient-noise", "cifar10-gradient", "fashion-mnist-gradient")
    assert f"nearly perfectly who is malicious (AUC {range_of(gradient, 3)})" in text
    fashion = aucs("label-noise", "fashion-mnist")
    label = range_of(aucs("label-noise", "cifar10"), 3)
    assert f"({range_of(fashion, 3)}, on CIFAR-10 {label})" in text
    in_paper = [
        printed("fashion-mnist", "fedif", column)[0] - printed("fashion-mnist", "fedavg", column)[0]
        for column in columns_of("fashion-mnist", "label-noise")
    ]
    gains = range_of(leads("label-noise", "fashion-mnist"))
    assert f"little to gain: {gains} points, in the paper {range_of(in_paper)}." in text
    adversarial = [-lead for lead in leads("adversarial", "cifar10", "fashion-mnist")]
    behind = []
    for table in ("cifar10", "fashion-mnist"):
        for column in columns_of(table, "adversarial"):
            fedavg, fedif = (printed(table, row, column)[0] for row in ("fedavg", "fedif"))
            behind.append(fedavg - fedif)
    assert len(adversarial) == 8
    assert sum(gap > 0 for gap in behind) == 7
    assert (
        f"It is {range_of(adversarial)} points behind FedAvg in all eight columns, in the paper "
        f"up to {max(behind):.1f} in seven of them. The scores tell little who is malicious (AUC "
        f"{range_of(aucs('adversarial', 'cifar10', 'fashion-mnist'), 2)})"
    ) in text


def test_an_uncorrected_loss_has_under_label_noise_what_the_rows_say():
    columns = ("label-noise_0.5_0.7-0.8", "label-noise_0.7_0.7-0.8")
    without = " and ".join(f"{cell('cifar10', 'fedif', column):.1f}" for column in columns)
    assert f"FedIF has 58.4 and 51.7 with it, {without} without" in words_of("results.md")


def test_three_seeds_say_the_same():
    text = words_of("results.md")
    phrases = []
    for path, column in (
        ("cifar10.csv", LABEL_NOISE),
        ("cifar10-gradient.csv", "gradient-noise_0.5_0.1"),
    ):
        gains = [
            of_seed(path, seed, row="fedif", column=column, **PIXELS)
            - of_seed(path, seed, row="fedavg", column=column, **PIXELS)
            for seed in range(3)
        ]
        each = ", ".join(f"{gain:.1f}" for gain in gains)
        phrases.append(f"{statistics.mean(gains):.1f} points ({each})")
    label, gradient = phrases
    assert f"under label noise {label}, and under gradient noise {gradient}." in text


def test_bounds_on_one_seed_are_what_the_rows_say():
    text = words_of("results.md")
    fashion = []
    without = []
    for rule in ("fedavg", "fedif"):
        path = "fashion-mnist-gradient-noise-bounds.csv"
        fashion.append(f"{of_seed(path, 0, **{'rule.weights': rule}):.1f}")
        of_rule = {"row": rule, "column": "gradient-noise_0.5_0.1", **PIXELS}
        without.append(f"{of_seed('fashion-mnist-gradient.csv', 0, **of_rule):.1f}")
    assert (
        f"FedAvg has {fashion[0]} and FedIF {fashion[1]}. Without bounds they have "
        f"{' and '.join(without)}."
    ) in text
    path = "cifar10-label-noise-bounds.csv"
    full, own = (
        of_seed(path, 0, **{"rule.weights": "fedavg", "rule.bounds": bounds})
        for bounds in ("full", "own")
    )
    fedavg = of_seed("cifar10.csv", 0, row="fedavg", column=LABEL_NOISE, **PIXELS)
    assert (
        f"FedAvg has {fedavg:.1f} without bounds and {full:.1f} with all of them. It has {own:.1f} "
        "if lengths are bounded"
    ) in text
    of_column = {"column": LABEL_NOISE, **PIXELS}
    [afedsv] = rows_of("cifar10.csv", row="afedsv", **of_column)
    [fedif] = rows_of("cifar10.csv", row="fedif", seed="0", **of_column)
    figures = [f"{100 * float(row['test-last-ten']):.1f}" for row in (afedsv, fedif)]
    areas = [f"{float(row['detection-auc']):.3f}" for row in (afedsv, fedif)]
    assert (
        f"**AFedSV** had {figures[0]} % under label noise on CIFAR-10, where FedIF had "
        f"{figures[1]} % (seed 0), with an AUC of {' and '.join(areas)}."
    ) in text
    assert f"AFedSV has {figures[0]} on one seed, where FedIF has {figures[1]}." in text


def test_the_ablation_has_the_shape_that_the_page_says():
    column = {"column": "gradient-noise", **PIXELS}
    accuracy = {}
    for row in rows_of("ablation.csv", seed="0", **column):
        accuracy[row["row"]] = float(row["test-last-ten"])
    fedavg = of_seed(
        "cifar10-gradient.csv", 0, row="fedavg", column="gradient-noise_0.5_0.1", **PIXELS
    )
    assert max(accuracy, key=lambda row: accuracy[row]) == "wn+su"
    assert 100 * max(accuracy["rn+su"], accuracy["su"]) < fedavg


def test_fedavg_and_fedprox_are_apart_from_the_paper_as_the_rows_say():
    text = words_of("results.md")
    column = "label-noise_0.7_0.7-0.8"
    three = [
        cell("cifar10", "fedavg", column, name)
        for name in ("test-last", "test-last-ten", "test-best")
    ]
    apart = max(three) - min(three)
    assert f"its last, mean and best round lie up to {apart:.0f} points apart" in text
    light, middle, heavy = (
        printed("cifar10", "fedavg", f"label-noise_{name}")[0]
        for name in ("0.5_0.5-0.6", "0.5_0.7-0.8", "0.7_0.7-0.8")
    )
    here = [cell("cifar10", "fedavg", f"label-noise_0.5_{name}") for name in ("0.5-0.6", "0.7-0.8")]
    assert 1 < middle - heavy < 2
    assert (
        f"the paper's FedAvg is {light - middle:.0f} points below its own 0.5 (0.5, 0.6), and "
        f"within 2 points of 0.7 (0.7, 0.8); here it is {here[0] - here[1]:.0f} points below."
    ) in text
    gaps: dict[str, list[float]] = {"cifar10": [], "fashion-mnist": []}
    paper_gaps = []
    for table in TABLES:
        for name in columns_of(table):
            fedprox, fedavg = (cell(table, row, name) for row in ("fedprox", "fedavg"))
            gaps[table.removesuffix("-gradient")].append(abs(fedprox - fedavg))
            theirs = [printed(table, row, name)[0] for row in ("fedprox", "fedavg")]
            paper_gaps.append(abs(theirs[0] - theirs[1]))
    assert max(gaps["cifar10"]) < 0.5
    assert max(gaps["fashion-mnist"]) < 0.1
    assert f"In the paper the two are up to {max(paper_gaps):.1f} points apart." in text
    names = ("0.6_0.5-0.6", "0.6_0.6-0.7", "0.7_0.6-0.7")
    noise = [f"label-noise_{name}" for name in names]
    ours = [f"{cell('fashion-mnist', 'fedavg', name):.1f}" for name in noise]
    paper = [f"{printed('fashion-mnist', 'fedavg', name)[0]:.1f}" for name in noise]
    assert f"FedAvg has {ours[0]}, {ours[1]} and {ours[2]} where the noise grows" in text
    assert f"The paper has {paper[0]}, {paper[1]} and {paper[2]}: its second" in text


def test_krum_is_apart_from_the_paper_as_the_rows_say():
    text = words_of("results.md")
    table = "fashion-mnist-gradient"
    columns = columns_of(table, "gradient-noise")
    here = [f"{cell(table, 'krum', name):.1f}" for name in columns]
    theirs = [shown(table, "krum", name) for name in columns]
    assert (
        f"{here[0]} and {here[1]} with 50 % malicious clients (0.05 and 0.1) beside {theirs[0]} "
        f"and {theirs[1]}, {here[2]} and {here[3]} with 70 % beside {theirs[2]} and {theirs[3]}"
    ) in text
    chosen = [cell(table, "krum", name, "malicious-weight-share") for name in columns]
    assert chosen[:2] == [0, 0]
    [often] = set(chosen[2:])
    assert f"with 70 % it does in {often:.0f} % of the rounds." in text
    clean = cell("fashion-mnist", "krum", "clean")
    words = f"{clean:.1f} beside {shown('fashion-mnist', 'krum', 'clean')}, and under adversarial"
    assert words in text
    spreads = []
    for name in columns_of("cifar10", "label-noise"):
        figures = ("test-last", "test-last-ten", "test-best")
        three = [cell("cifar10", "krum", name, figure) for figure in figures]
        spreads.append(max(three) - min(three))
    assert f"best round are {range_of(spreads, 0)} points apart in each column." in text
    few, many = (cell("cifar10", "krum", name) for name in ADVERSARIAL)
    fewer, more = (printed("cifar10", "krum", name)[0] for name in ADVERSARIAL)
    assert f"with 70 %: {fewer:.1f} and {more:.1f}, here {few:.1f} and {many:.1f}." in text
    adversarial = columns_of("fashion-mnist", "adversarial")
    means = range_of(cell("fashion-mnist", "krum", name) for name in adversarial)
    best = range_of(cell("fashion-mnist", "krum", name, "test-best") for name in adversarial)
    paper = range_of(printed("fashion-mnist", "krum", name)[0] for name in adversarial)
    assert (
        f"the mean of its last ten rounds is {means} in all four columns of such samples and its "
        f"best round {best}, where the paper has {paper}."
    ) in text


def test_other_models_and_pixels_have_what_the_rows_of_their_sweeps_say():
    text = words_of("results.md")
    lenet = {"model": "lenet5"}
    fedavg, krum = (
        of_seed("model-fashion-mnist.csv", 0, strategy=name, **lenet) for name in ("fedavg", "krum")
    )
    fedif = of_seed("fedif-model-fashion-mnist.csv", 0, **lenet)
    assert f"FedAvg has {fedavg:.1f}, FedIF {fedif:.1f} and Krum {krum:.1f}." in text
    noise = {"attack": "label-noise", "num_server_rounds": "100"}
    fedavg, fedif, krum = (
        of_seed("batch-norm-fashion-mnist.csv", 0, strategy=name, **noise)
        for name in ("fedavg", "fedif", "krum")
    )
    assert f"FedAvg has {fedavg:.1f} %, FedIF {fedif:.1f} % and Krum {krum:.1f} %." in text
    [usual] = rows_of("batch-norm-fashion-mnist.csv", strategy="krum", **noise)
    [blind] = rows_of("krum-distances.csv", **noise)
    accuracy, often, before = (
        100 * float(value)
        for value in (
            blind["test-last-ten"],
            blind["malicious-weight-share"],
            usual["malicious-weight-share"],
        )
    )
    assert (
        f"it then has {accuracy:.1f} %, and chooses a malicious client in {often:.0f} % of the "
        f"rounds instead of {before:.0f} %."
    ) in text
    shorter = of_seed("normalization-ablation.csv", 0, strategy="fedif")
    assert f"it had {shorter:.1f} after 60 rounds with the authors'." in text
