"""Tables of the arena, the factorial and other methods, and the sentences beside them, by rows."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Mapping, Sequence

import pytest

from fedif_flower.run.rows import read_rows
from fedif_studies.arena.tables import write_tables
from fedif_studies.factorial import effects_table, means_table
from fedif_studies.factorial import read as read_factorial
from tests.docs_rows import lines_below, mean_of, range_of, spread
from tests.test_docs_figures import RESULTS, Row, rows_of, words_of

BOTH = ("none", "full")


# The arena.


def test_the_tables_of_the_arena_are_those_of_its_rows(tmp_path):
    page = tmp_path / "arena.md"
    shutil.copy(RESULTS / "arena.md", page)
    write_tables(page, read_rows(RESULTS / "arena.csv"))
    assert page.read_text() == (RESULTS / "arena.md").read_text()


def arena(data: str, attack: str, rule: str, bounds: str, share: str = "0.4") -> float:
    bout = {"data": data, "attack": attack, "rule": rule, "bounds": bounds}
    if attack != "none":
        bout["share"] = share
    rows = rows_of("arena.csv", **bout)
    assert len(rows) == 3
    return mean_of(rows, "accuracy", 100)


def worst(rule: str, bounds: str, share: str) -> float:
    rows = rows_of("arena.csv", data="Digits", rule=rule, bounds=bounds, share=share)
    attacks = {row["attack"] for row in rows}
    return min(arena("Digits", attack, rule, bounds, share) for attack in attacks)


def test_what_bounds_and_weights_bring_at_the_worst_is_what_the_arena_says():
    page = words_of("results/arena.md")
    middle, most = (worst("FedAvg", "full", share) for share in ("0.2", "0.4"))
    without = [worst("FedAvg", "none", share) for share in ("0.2", "0.4")]
    gains = [worst("FedIF", "full", "0.2") - middle, worst("FedIF", "full", "0.4") - most]
    assert (
        f"FedAvg with bounds has {middle:.1f} at 20 % and {most:.1f} at 40 %; without bounds it "
        f"has {without[0]:.1f} and {without[1]:.1f}. FedIF's weights bring {gains[0]:.1f} and "
        f"{gains[1]:.1f} points more"
    ) in page
    fltrust = [worst("FLTrust", bounds, "0.4") for bounds in BOTH]
    assert (
        f"In the worst of nine attacks at 40 % it has {fltrust[0]:.1f} %, where FedAvg has "
        f"{without[1]:.1f}. With bounds it has {fltrust[1]:.1f}, where FedAvg has {most:.1f}."
    ) in words_of("methods/fltrust.md")
    loss = arena("Digits", "none", "FedIF", "full") - worst("FedIF", "full", "0.4")
    words = f"FedIF with its bounds loses {loss:.1f} points at most on digits at 40 %, in the mean"
    assert words in words_of("security.md")


def test_methods_on_images_stand_beside_fedavg_as_the_arena_says():
    page = words_of("results/arena.md")
    images = ("Fashion-MNIST", "CIFAR-10 (JPEG)")

    def beside_fedavg(attack: str, rule: str) -> list[float]:
        """The points ahead of FedAvg with the same bounds, of both data sets and bounds."""
        return [
            arena(data, attack, rule, bounds) - arena(data, attack, "FedAvg", bounds)
            for data in images
            for bounds in BOTH
        ]

    fedif, descent = (beside_fedavg("none", rule) for rule in ("FedIF", "influence descent"))
    behind = range_of(-gain for gain in beside_fedavg("none", "FLTrust"))
    assert (
        f"FedIF is {-fedif[0]:.1f} and {-fedif[2]:.1f} points behind FedAvg, FLTrust {behind}. "
        f"Influence descent gains {descent[0]:.1f} and {descent[2]:.1f}."
    ) in page
    assert max(map(abs, beside_fedavg("label noise", "FedIF"))) < 1
    ahead = range_of(beside_fedavg("label noise", "influence descent"))
    assert f"influence descent is ahead by {ahead} points" in page
    scaled = []
    for data in images:
        pair = (arena(data, "scaling x10", rule, "full") for rule in ("FedIF", "FedAvg"))
        scaled.append(" against ".join(f"{accuracy:.1f}" for accuracy in pair))
    assert f"with the same bounds ({scaled[0]}, {scaled[1]})" in page
    for data in images:  # Under sign flips the weights bring more than the bounds.
        plain, bounded = (arena(data, "sign flip", "FedAvg", bounds) for bounds in BOTH)
        assert arena(data, "sign flip", "FedIF", "none") - plain > bounded - plain


def test_means_of_earlier_arenas_are_of_the_seeds_that_the_page_says():
    rules: dict[str, set[str]] = {}
    for row in rows_of("arena-means.csv"):
        rules.setdefault(row["seeds"], set()).add(row["strategy"])
    assert rules.keys() == {"1", "3"}
    assert rules["3"] == {row["rule"] for row in rows_of("arena.csv", data="Digits")}
    assert rules["1"] - rules["3"]
    assert "those of three seeds are of the rules and attacks on digits above" in words_of(
        "results/arena.md"
    )


# The factorial.


def test_the_tables_of_the_factorial_are_those_of_its_rows():
    accuracies = read_factorial()
    page = (RESULTS / "factorial.md").read_text()
    tables = [means_table(accuracies, data) for data in ("digits", "fashion-mnist")]
    for table in (*tables, effects_table(accuracies, "digits")):
        assert "\n".join(table.to_markdown()) in page


def test_the_factorial_says_how_many_differences_are_between_two_processors():
    processors = {}
    for row in rows_of("factorial.csv", data="fashion-mnist"):
        of_seed = (row["seed"], row["attack"], row["share"], row["bounds"], row["momentum"])
        processors[row["weights"], of_seed] = row["processor"]
    usual = statistics.mode(processors.values())
    others = {cell for cell, processor in processors.items() if processor != usual}
    between = [
        (weights, of_seed)
        for weights, of_seed in processors
        if weights not in ("fedavg", "trimmed-mean")
        and processors[weights, of_seed] != processors["fedavg", of_seed]
    ]
    assert {of_seed[0] for _, of_seed in others} == {"0", "1"}
    assert "PoisonedFL" not in {of_seed[1] for _, of_seed in between}
    assert (
        f"{len(others)} of them, of seeds 0 and 1, ran on another processor than the others, so "
        f"{len(between)} of the 1,650 differences"
    ) in words_of("results/factorial.md")
    assert len([w for w, _ in processors if w not in ("fedavg", "trimmed-mean")]) == 1650


@pytest.fixture(scope="module")
def factorial() -> dict[tuple[str, ...], float]:
    """The means over seeds, by data, attack, share, weights, bounds and momentum."""
    of_cell: dict[tuple[str, ...], list[float]] = {}
    keys = ("data", "attack", "share", "weights", "bounds", "momentum")
    for row in rows_of("factorial.csv"):
        of_cell.setdefault(tuple(row[key] for key in keys), []).append(float(row["last-ten"]))
    return {cell: statistics.mean(values) for cell, values in of_cell.items()}


def gain_of_bounds(means: Mapping[tuple[str, ...], float], data: str, attack: str) -> str:
    without, full = (means[data, attack, "0.4", "fedavg", bounds, "0.0"] for bounds in BOTH)
    return f"{full - without:.0f}"


def gains_of_weights(
    means: Mapping[tuple[str, ...], float],
    data: str,
    attack: str,
    bounds: str,
    rules: Sequence[str],
) -> list[float]:
    control = means[data, attack, "0.4", "fedavg", bounds, "0.0"]
    return [means[data, attack, "0.4", rule, bounds, "0.0"] - control for rule in rules]


def test_what_bounds_momentum_and_weights_bring_on_digits_is_what_the_rows_say(factorial):
    page = words_of("results/factorial.md")
    poisoned, flipped = (
        gain_of_bounds(factorial, "digits", attack) for attack in ("PoisonedFL", "sign flip")
    )
    words = f"At 40 % they bring {poisoned} points under PoisonedFL and {flipped} under sign flips."
    assert words in page
    pairs = []
    for attack in ("sign flip", "PoisonedFL"):
        own, full = (
            factorial["digits", attack, "0.4", "fedavg", bounds, "0.0"]
            for bounds in ("own", "full")
        )
        pairs.append(f"{own:.1f} instead of {full:.1f}")
    assert f"FedAvg has {pairs[0]} under sign flips, and {pairs[1]} under PoisonedFL." in page
    momenta = {}
    for key, mean in factorial.items():
        data, *_, weights, _bounds, momentum = key
        if (data, weights, momentum) == ("digits", "fedavg", "0.5"):
            momenta[key[1:3], key[4]] = mean - factorial[(*key[:5], "0.0")]
    phrases = []
    for share in ("0.4", "0.2"):
        before, after = (
            factorial["digits", "PoisonedFL", share, "fedavg", "none", momentum]
            for momentum in ("0.0", "0.5")
        )
        phrases.append(f"from {before:.1f} to {after:.1f} at {float(share):.0%}".replace("%", " %"))
    assert f"brings FedAvg under PoisonedFL {phrases[0]}, and {phrases[1]}" in page
    usual = [
        gain
        for ((attack, _), bounds), gain in momenta.items()
        if bounds == "none" and attack in ("sign flip", "label noise")
    ]
    assert 1.5 < max(usual) < 2
    costs = [-gain for (_, bounds), gain in momenta.items() if bounds in ("own", "full")]
    assert 3.5 < max(costs) < 4
    brought = momenta[("PoisonedFL", "0.4"), "length"]
    words = f"with *length* alone it still brings {brought:.1f} under PoisonedFL at 40 %."
    assert words in page
    rules = ("fedif", "influence-descent", "afedsv", "autobant", "fltrust")
    ranges = [
        range_of(gains_of_weights(factorial, "digits", attack, bounds, rules), 0)
        for bounds in BOTH
        for attack in ("sign flip", "label noise")
    ]
    assert (
        f"bring {ranges[0]} points under sign flips and {ranges[1]} under label noise, without "
        f"bounds and momentum. With bounds they bring {ranges[2]} and up to "
        f"{ranges[3].split()[-1]}."
    ) in page


def test_what_bounds_momentum_and_weights_bring_on_fashion_mnist_is_what_the_rows_say(factorial):
    page = words_of("results/factorial.md")
    data = "fashion-mnist"
    bounds = [
        gain_of_bounds(factorial, data, attack)
        for attack in ("PoisonedFL", "sign flip", "label noise", "gradient noise")
    ]
    assert (
        f"bring FedAvg {bounds[0]} points under PoisonedFL, {bounds[1]} under sign flips, "
        f"{bounds[2]} under label noise and {bounds[3]} under gradient noise, at 40 %."
    ) in page
    phrases = []
    for share in ("0.4", "0.2"):
        before, after = (
            factorial[data, "PoisonedFL", share, "fedavg", "none", momentum]
            for momentum in ("0.0", "0.5")
        )
        phrases.append(f"{after:.1f} instead of {before:.1f}")
    assert f"({phrases[0]} at 40 %, {phrases[1]} at 20 %)" in page
    rules = ("fedif", "influence-descent")
    poisoned, flipped, noise = (
        gains_of_weights(factorial, data, attack, "none", rules)
        for attack in ("PoisonedFL", "sign flip", "label noise")
    )
    assert (
        f"{poisoned[0]:.0f} and {poisoned[1]:.0f} points under PoisonedFL, {flipped[0]:.0f} and "
        f"{flipped[1]:.0f} under sign flips, and {range_of(noise, 0)} under label noise, all "
        "without bounds."
    ) in page
    poisoned, flipped, noise = (
        gains_of_weights(factorial, data, attack, "full", rules)
        for attack in ("PoisonedFL", "sign flip", "label noise")
    )
    [of_flips] = {f"{gain:.0f}" for gain in flipped}
    assert (
        f"With bounds they bring {poisoned[0]:.0f} and {poisoned[1]:.0f}, {of_flips}, and up to "
        f"{max(noise):.1f}."
    ) in page


@pytest.mark.parametrize(
    ("data", "words", "others"),
    [
        ("digits", "FLTrust costs {} points, the others {} at most", "0.9"),
        ("fashion-mnist", "FLTrust costs {} points without momentum, the median {}, the", "0.2"),
    ],
)
def test_what_weights_cost_without_attack_is_what_the_factorial_says(
    factorial, data, words, others
):
    costs: dict[str, list[float]] = {}
    for (of_data, attack, share, weights, bounds, momentum), mean in factorial.items():
        is_counted = data == "digits" or momentum == "0.0"
        if (of_data, attack) == (data, "none") and is_counted and weights != "fedavg":
            control = factorial[data, attack, share, "fedavg", bounds, momentum]
            costs.setdefault(weights, []).append(control - mean)
    costs.pop("trimmed-mean")  # The median, with these shares.
    fltrust = costs.pop("fltrust")
    if data == "digits":
        expected = words.format(range_of(fltrust), others)
    else:
        median = costs.pop("median")
        expected = words.format(f"{max(fltrust):.1f}", f"{max(median):.1f}")
    assert f"{max(map(max, costs.values())):.1f}" == others
    assert expected in words_of("results/factorial.md")


# Other methods.


def method_of(row: Row) -> str:
    """Return a row's method as the page calls it."""
    optimizers = {"fedavgm": "FedAvgM", "fedadam": "FedAdam", "fedyogi": "FedYogi"}
    if row["server-optimizer"] in optimizers:
        return optimizers[row["server-optimizer"]]
    strategies = {"fedavg": "FedAvg", "fedif": "FedIF", "fedprox": "FedProx"}
    strategy = strategies.get(row["strategy"], "influence descent")
    local = {"scaffold": "SCAFFOLD", "moon": "MOON"}.get(row["local-method"], row["local-method"])
    local = local.rpartition(":")[2]
    if local == "sgd":
        return strategy
    return local if strategy == "FedAvg" else f"{local}, FedIF's weights"


def compared() -> dict[tuple[str, str, str], list[float]]:
    """Return accuracies by seed of each data set, attack and method, with the chosen settings."""
    chosen = {
        "learning-rate": "0.05",
        "fedavgm.learning-rate": "0.3",
        "fedadam.learning-rate": "0.01",
        "fedyogi.learning-rate": "0.01",
        "moon.mu": "0.1",
    }
    figures: dict[tuple[str, str, str], list[float]] = {}
    for row in sorted(rows_of("compared.csv"), key=lambda row: row["seed"]):
        if all(row[key] in ("", value) for key, value in chosen.items()):
            of_method = figures.setdefault((row["data"], row["attack"], method_of(row)), [])
            of_method.append(100 * float(row["test-last-ten"]))
    assert {len(values) for values in figures.values()} == {3}
    return figures


def beside_fedavg(
    figures: Mapping[tuple[str, str, str], Sequence[float]], data: str, attack: str, method: str
) -> list[float]:
    ours, control = figures[data, attack, method], figures[data, attack, "FedAvg"]
    return [accuracy - other for accuracy, other in zip(ours, control, strict=True)]


@pytest.mark.parametrize("data", ["CIFAR-10", "Fashion-MNIST"])
def test_the_tables_of_other_methods_are_those_of_their_rows(data):
    figures = compared()
    lines = lines_below("results/compared.md", f"### {data}")
    assert len(lines) == 14
    for method, *cells in lines:
        expected = []
        for attack in ("none", "label-noise"):
            gains = beside_fedavg(figures, data, attack, method)
            beside = f"{statistics.mean(gains):+.1f}±{statistics.stdev(gains):.1f}"
            expected.append(spread(figures[data, attack, method]))
            expected.append("-" if method == "FedAvg" else beside)
        assert cells == expected, method


def test_what_other_methods_bring_is_what_their_rows_say():
    figures = compared()
    page = words_of("results/compared.md")

    def gains(attack: str, method: str, *data: str) -> list[float]:
        names = data or ("CIFAR-10", "Fashion-MNIST")
        return [gain for name in names for gain in beside_fedavg(figures, name, attack, method)]

    descent = gains("none", "influence descent")
    assert min(descent) > 0
    fedif = gains("none", "FedIF", "CIFAR-10")
    scaffold = gains("none", "SCAFFOLD")
    assert sum(gain > 0 for gain in scaffold) == 2
    assert (
        f"influence descent gains {range_of(descent)} points in all six runs. FedIF gains "
        f"{range_of(fedif)} on CIFAR-10 alone. SCAFFOLD gains in two of six runs "
        f"({range_of(scaffold)})."
    ) in page
    noise = {data: gains("label-noise", "FedNoRo", data) for data in ("CIFAR-10", "Fashion-MNIST")}
    assert (
        f"FedNoRo gains {range_of(noise['CIFAR-10'])} points on CIFAR-10 and "
        f"{range_of(noise['Fashion-MNIST'])} on Fashion-MNIST."
    ) in page
    fedif, descent = (gains("label-noise", name) for name in ("FedIF", "influence descent"))
    words = f"FedIF gains {range_of(fedif)} points and influence descent {range_of(descent)}."
    assert words in page
    assert (
        f"SCAFFOLD lies between {-min(scaffold):.1f} points below it and {max(scaffold):.1f} above."
    ) in words_of("methods/local-methods.md")
