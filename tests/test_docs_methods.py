"""Tables and sentences of the pages of methods, audits and speed that follow from rows."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import pytest

from fedif_flower.run.rows import read_rows
from tests.docs_rows import count, lines_below, mean_of, range_of, spread
from tests.test_docs_figures import RESULTS, Row, rows_of, words_of
from tests.test_docs_names import DOCS

AVERAGES = ("fedavg", "fedif")


# Methods.


def test_the_table_of_quarantine_is_that_of_its_rows():
    names = {"none": "honest"}
    for name, honest, malicious, accuracy in lines_below("methods/quarantine.md", "The control is"):
        rows = rows_of("quarantine.csv", case=names.get(name, name), strategy="fedavg")
        assert honest == f"{count(rows, 'honest-left-out')} of {count(rows, 'honest')}"
        if name != "none":
            assert malicious == f"{count(rows, 'malicious-left-out')} of {count(rows, 'malicious')}"
        figures = ("test-last-ten-without", "test-last-ten")
        assert accuracy == ", ".join(f"{mean_of(rows, figure, 100):.1f}" for figure in figures)
    changes = [
        abs(float(row["test-last-ten"]) - float(row["test-last-ten-without"]))
        for row in rows_of("quarantine.csv", strategy="fedif")
    ]
    words = f"Under FedIF, accuracy changes by {100 * max(changes):.1f} at most in all the rows."
    assert words in words_of("methods/quarantine.md")


def test_the_table_of_rounds_that_wait_for_nobody_is_that_of_its_rows():
    noise = {"case": "label noise 20 %"}
    for name, seconds, accuracy in lines_below("methods/late-replies.md", "## What it brings"):
        of_pace = {"strategy": "fedif", "pace": name.removesuffix(" (control)")}
        rows = rows_of("pace.csv", **of_pace, **noise)
        assert [row["seed"] for row in rows] == ["0", "1"]
        assert seconds == ", ".join(f"{float(row['seconds-to-goal']):.0f}" for row in rows)
        assert accuracy == ", ".join(f"{100 * float(row['last-ten']):.1f}" for row in rows)
    fedavg = []
    for pace in ("wait for all", "buffered, steps of 5"):
        rows = rows_of("pace.csv", strategy="fedavg", pace=pace, **noise)
        fedavg.append(" and ".join(f"{float(row['seconds-to-goal']):.0f}" for row in rows))
    assert (
        f"FedAvg takes {fedavg[0]} seconds to 90 % if it waits for all, and {fedavg[1]} seconds if"
    ) in words_of("methods/late-replies.md")


def test_the_table_of_unlearning_is_that_of_its_rows():
    attacks = ("pixel trigger", "distributed trigger", "neurotoxin", "descending backdoor")
    methods = ("FedAvg", "FedAvg; trained", "FedAvg; unlearned")
    lines = lines_below("methods/backdoors.md", "There are two\ncontrols")
    for method, (_, *cells) in zip(methods, lines, strict=True):
        for attack, cell in zip(attacks, cells, strict=True):
            rows = rows_of("backdoors.csv", data="digits", method=method, attack=attack)
            assert len(rows) == 3
            figures = ("accuracy", "success")
            assert cell == ", ".join(f"{mean_of(rows, figure, 100):.1f}" for figure in figures)
    screened = {"method": "FedAvg, trigger screen", "attack": "pixel trigger"}
    page = words_of("methods/backdoors.md")
    plain = {"method": "FedAvg", "attack": "pixel trigger"}
    of_digits, without = (rows_of("backdoors.csv", data="digits", **m) for m in (screened, plain))
    before, after = (f"{mean_of(rows, 'success', 100):.1f}" for rows in (without, of_digits))
    accuracy = f"{mean_of(of_digits, 'accuracy', 100):.1f}"
    assert f"falls from {before} to {after} %, at {accuracy} % accuracy." in page
    fashion = (
        rows_of("backdoors.csv", data="Fashion-MNIST", **method) for method in (plain, screened)
    )
    before, after = (f"{mean_of(rows, 'success', 100):.1f}" for rows in fashion)
    assert f"with one seed it falls from {before} to {after} %." in page


def test_the_table_of_estimators_is_that_of_their_rows():
    for name, *_, error, resolution, _ in lines_below("methods/shapley.md", "## Estimators"):
        rows = rows_of("estimators.csv", estimator=name.strip("`"))
        assert len(rows) == 9
        for cell, column in ((error, "error"), (resolution, "resolution")):
            percent = mean_of(rows, column, 100)
            digits = 1 if column == "error" else 0
            assert cell == (f"{percent:.{digits}f} %" if percent else "0"), (name, column)
    alike = mean_of(rows_of("estimators.csv", estimator="permutation"), "alike", 100)
    words = f"With `permutation` this happened in {alike:.0f} % of the measured rounds"
    assert words in words_of("methods/shapley.md")


def test_the_table_of_the_theorem_is_that_of_its_rows():
    lines = lines_below("methods/fedif.md", "with which the proof of the theorem begins.")
    rows = rows_of("theorem.csv", rate="0.1")
    assert len(rows) == len(lines) == 4
    for (case, weights, *cells), row in zip(lines, rows, strict=True):
        assert case == ("0.1, none" if row["noise"] == "0" else "0.1, four of ten")
        assert weights == row["weights"]
        change, theorem, lemma = (float(row[n]) for n in ("change", "theorem", "descent_lemma"))
        assert cells == [f"{change:.4f}", f"{theorem:+.3f}", f"{lemma:.4f}"]
    least = min(float(row["theorem"]) / -float(row["change"]) for row in rows)
    assert math.floor(least) == 8  # "eight times the measured fall or more"


def test_the_quickstart_without_attack_has_what_its_rows_say():
    def shown(case: str, strategy: str, bounds: str) -> str:
        rows = rows_of("bounds.csv", case=f"quickstart-{case}", strategy=strategy, bounds=bounds)
        assert len(rows) == 5
        return f"{mean_of(rows, 'last'):.1f}"

    cnn = "cnn, lr 0.1"
    slow, fast = "mlp, lr 0.03", "mlp, lr 0.1"
    gaps = []
    for seed in map(str, range(5)):
        of_seed = {"case": f"quickstart-{cnn}", "seed": seed}
        [fedif] = rows_of("bounds.csv", strategy="fedif", bounds="on", **of_seed)
        [fedavg] = rows_of("bounds.csv", strategy="fedavg", **of_seed)
        gaps.append(float(fedavg["last"]) - float(fedif["last"]))
    assert (
        f"with its CNN FedIF has {shown(cnn, 'fedif', 'on')} % with them and "
        f"{shown(cnn, 'fedif', 'off')} without in the last round; FedAvg has "
        f"{shown(cnn, 'fedavg', 'off')} (mean of five seeds; the worst seed is {max(gaps):.1f} "
        "below FedAvg's). With a perceptron in its place no figure changes by the limits; there "
        f"FedIF has {shown(slow, 'fedif', 'on')} and {shown(fast, 'fedif', 'on')} with learning "
        f"rates of 0.03 and 0.1, FedAvg {shown(slow, 'fedavg', 'off')} and "
        f"{shown(fast, 'fedavg', 'off')} ("
    ) in words_of("methods/clipping.md")
    for case in (slow, fast):
        of_case = {"case": f"quickstart-{case}", "strategy": "fedif"}
        bounded, free = (rows_of("bounds.csv", bounds=name, **of_case) for name in ("on", "off"))
        assert [row["last"] for row in bounded] == [row["last"] for row in free]


def test_influence_descent_at_full_size_has_what_its_rows_say():
    tables = {
        "label noise at 70 %": ("cifar10.csv", "label-noise_0.7_0.7-0.8", "label-noise-heavy"),
        "gradient noise at 50 %": (
            "cifar10-gradient.csv",
            "gradient-noise_0.5_0.1",
            "gradient-noise",
        ),
    }
    lines = lines_below("methods/influence-descent.md", "**Compared like with like**")
    for (name, *cells), (table, column, sweep) in zip(lines, tables.values(), strict=True):
        of_column = {"column": column, "normalization": "data"}
        runs = {row: rows_of(table, row=row, **of_column) for row in AVERAGES}
        path = f"influence-descent-cifar10-{sweep}.csv"
        of_method = {"strategy": "influence-descent", "server_optimizer": "off"}
        runs["influence descent"] = rows_of(path, **of_method)
        by_rule = {}
        for rule, rows in runs.items():
            in_order = sorted(rows, key=lambda row: row["seed"])
            assert [row["seed"] for row in in_order] == ["0", "1", "2"]
            by_rule[rule] = [100 * float(row["test-last-ten"]) for row in in_order]
        descent, fedif, fedavg = (by_rule[n] for n in ("influence descent", "fedif", "fedavg"))
        ahead = ", ".join(f"{ours - other:.1f}" for ours, other in zip(descent, fedif, strict=True))
        assert cells == [spread(descent), spread(fedif), spread(fedavg), ahead], name


def test_a_member_that_mends_its_labels_has_what_its_rows_say():
    rows = rows_of("mislabelled.csv", dataset="digits", strategy="fedavg", flipped="0.3")
    assert len(rows) == 3
    loss, influence, cleanlab = (mean_of(rows, name) for name in ("loss", "influence", "cleanlab"))
    before, after, others = (
        mean_of(rows, name) for name in ("contribution", "largest_loss_mended", "others")
    )
    page = words_of("methods/local-methods.md")
    assert (
        f"the precision is {loss:.2f} by loss and {influence:.2f} by influence (controls: "
        f"cleanlab {cleanlab:.2f}, chance 0.30)."
    ) in page
    assert (
        f"contribution rises from {before:.2f} to {after:.2f} nats with FedAvg's weights (the "
        f"others have {others:.2f})."
    ) in page


# Path attribution.


def test_how_near_path_attribution_comes_to_exact_values_is_what_its_rows_say():
    page = words_of("methods/path-attribution.md")
    near = {}
    for data in ("fashion-mnist", "cifar10"):
        rows = rows_of("attribution.csv", dataset=data, method="simpson")
        correlations = [float(row["pearson"]) for row in rows]
        near[data] = (sum(value >= 0.99 for value in correlations), len(rows), min(correlations))
    most, number, least = near["fashion-mnist"]
    assert f"by 0.99 in {most} of {number} rounds (least: {least:.3f})" in page
    assert near["cifar10"][:2] == (4, 9)
    assert f"in four of nine rounds (least: {near['cifar10'][2]:.3f})" in page
    first = [float(row["pearson"]) for row in rows_of("attribution.csv", method="first order")]
    assert f"The first order alone correlates by {range_of(first, 2)}." in page


def share_of_twin(row: Row) -> float:
    """Return a player's share over that of the same player without the game; NaN if that is 0."""
    without = float(row["honest_share"])
    return float(row["share"]) / without if without else math.nan


def test_the_table_of_games_has_the_means_of_its_rows():
    columns = [
        {"strategy": strategy, "epochs": epochs}
        for strategy in ("FedAvg", "FedIF", "influence descent")
        for epochs in ("1", "5")
    ]
    lines = lines_below("methods/path-attribution.md", "**What bounds stop least.**")
    assert len(lines) == 6
    for game, *cells in lines:
        for cell, column in zip(cells, columns, strict=True):
            rows = rows_of("games.csv", game=game, account="bounded", **column)
            shares = [share_of_twin(row) for row in rows]
            assert len(shares) == 3
            mean = f"{statistics.mean(shares):.2f}"
            if statistics.mean(shares) > 1.25:
                mean = f"**{mean}**"
            ends = f"{min(shares):.2f}\N{EN DASH}{max(shares):.2f}"
            assert cell == f"{mean} ({ends})", (game, column)


def test_what_is_not_stopped_brings_what_the_games_say():
    page = words_of("security.md")

    def brought(game: str, strategy: str) -> str:
        of_game = {"game": game, "strategy": strategy, "epochs": "1", "account": "bounded"}
        return f"{statistics.mean(map(share_of_twin, rows_of('games.csv', **of_game))):.1f}"

    for words, game in (
        ("twice its part of the last steps", "twice its part of the last steps"),
        ("its own gradient and the last step", "own gradient and last step"),
    ):
        fedif, descent = (brought(game, name) for name in ("FedIF", "influence descent"))
        assert f"{words}: {fedif} under FedIF, {descent} under influence descent" in page
    claims = "first 10 rounds, claims twice, update times 1.2"
    descent = brought(claims, "influence descent")
    of_game = {"game": claims, "strategy": "FedAvg", "epochs": "5", "account": "bounded"}
    fedavg = statistics.mean(map(share_of_twin, rows_of("games.csv", **of_game)))
    words = f"for ten rounds: {fedavg:.1f} under FedAvg, {descent} under influence descent;"
    assert words in page


def test_what_bounds_change_among_honest_members_is_what_the_rows_say():
    changes: dict[tuple[str, str], list[float]] = {}
    for row in rows_of("games-agreement.csv", account="bounded"):
        kind, _, of_today = row["figure"].partition(" change of shares of today")
        if not of_today and row["figure"].endswith("change of shares of today"):
            method = row["strategy"].removeprefix("influence descent") or "descent"
            changes.setdefault((method, kind), []).append(100 * float(row["value"]))
    relative = ", relative weights"
    usual = [*changes["FedAvg", "median"], *changes["FedIF", "median"]]
    most = max(*changes["FedAvg", "largest"], *changes["FedIF", "largest"])
    [descent], [largest] = changes["descent", "median"], changes["descent", "largest"]
    [shared], [most_shared] = changes[relative, "median"], changes[relative, "largest"]
    page = words_of("methods/path-attribution.md")
    assert (
        f"change a share by {min(usual):.1f} (five local epochs) to {max(usual):.0f} % in the "
        f"median under FedAvg and FedIF, and by {most:.0f} % at most."
    ) in page
    assert f"by {descent:.0f} % in the median and {largest:.0f} % at most;" in page
    assert f"by {shared:.0f} and {most_shared:.0f} % (seed 0;" in page


def test_the_table_of_intervals_is_that_of_its_rows():
    lines = lines_below("methods/path-attribution.md", "The first three lines are digits")
    assert len(lines) == 7
    for number, (held_out, others, *cells, _attainable) in enumerate(lines):
        sizes = {"examples": held_out, "others": others.replace(",", "")}
        data = "digits" if number < 3 else "fashion-mnist"
        for strategy, cell in zip(("FedAvg", "FedIF", "influence descent"), cells, strict=True):
            rows = rows_of("coverage.csv", data=data, strategy=strategy, **sizes)
            assert len(rows) == 20
            members = count(rows, "members")
            held = [100 * count(rows, name) / members for name in ("covered", "shares_covered")]
            assert cell == ", ".join(f"{percent:.0f}" for percent in held)


def test_members_of_the_same_data_are_told_apart_as_the_rows_say():
    marked, honest = (
        rows_of("twins-noise.csv", marked="1"),
        rows_of("twins-noise.csv", case="honest"),
    )
    assert min(float(row["likeness"]) for row in marked) > 0.97
    most = max(float(row["likeness"]) for row in honest)
    page = words_of("methods/path-attribution.md")
    words = f"These are all {len(marked)} identities that hide their data"
    assert words in page
    assert f"and none of {len(honest)} honest members" in page
    assert f"The highest honest member has {most:.2f}." in page


# Audits.


def test_the_table_of_members_that_are_drawn_sometimes_is_that_of_its_rows():
    names = {"mean of path attribution per draw": "its mean per draw"}
    names["another seed's retraining (ceiling)"] = "another seed's retraining"
    columns = [
        {"drawn": drawn, "members": members, "case": case}
        for drawn, members in (("10", "100"), ("4", "12"))
        for case in ("honest", "label noise")
    ]
    lines = lines_below("results/audit.md", "## Members that are drawn sometimes")
    for name, *cells in lines:
        for cell, column in zip(cells, columns, strict=True):
            rows = rows_of("drawn.csv", valuation=names.get(name, name), **column)
            values = [float(row["pearson"]) for row in rows]
            expected = "-"
            if values:
                expected = f"{statistics.mean(values):.2f}"
                if min(values) < max(values) and "ceiling" not in name:
                    expected += f" ({min(values):.2f}, {max(values):.2f})"
            assert cell == expected, (name, column)


@pytest.mark.parametrize(
    "folder", ["digits", "fashion-mnist", "games", "measures-digits", "measures-fashion-mnist"]
)
def test_what_five_identities_gain_follows_from_the_values_of_the_same_federations(folder):
    """A player's first identity is at its own place, and the others come last."""
    shares: dict[tuple[str, str], dict[str, list[tuple[bool, float]]]] = {}
    for row in read_rows(DOCS / "audit" / folder / "values.csv"):
        if row["rule"] == "FedAvg" and row["case"] in ("honest", "five identities"):
            of_case = shares.setdefault((row["valuation"], row["seed"]), {})
            value = (row["marked"] == "1", max(float(row["value"]), 0.0))
            of_case.setdefault(row["case"], []).append(value)
    gains: dict[str, list[float]] = {}
    for (valuation, _seed), of_case in shares.items():
        if len(of_case) < 2:
            continue
        after = of_case["five identities"]
        before = [value for _, value in of_case["honest"]]
        player = [is_player for is_player, _ in after].index(True)
        if before[player] > 0:
            own = sum(value for is_player, value in after if is_player)
            after_share = own / sum(value for _, value in after)
            gains.setdefault(valuation, []).append(after_share / (before[player] / sum(before)))
    findings = {}
    for row in read_rows(DOCS / "audit" / folder / "findings.csv"):
        if (row["question"], row["case"]) == ("share after / before", "five identities"):
            findings[row["valuation"]] = float(row["value"])
    medians = {name: statistics.median(values) for name, values in gains.items()}
    assert len(findings) > 5
    assert medians == pytest.approx(findings, abs=1e-5)


# Speed.


def has_figures(row: Row, shown: Sequence[float], unit: str) -> bool:
    """Return whether what is ours, the peer's and the ratio are those shown, as far as shown."""
    thousand = 1000 if (row["unit"], unit) == ("ms", "s") else 1
    ours, peer, ratio = (float(row[key] or "nan") for key in ("ours", "peer", "ratio"))
    return [ours / thousand, peer / thousand, ratio] == pytest.approx(shown, rel=5.1e-3)


def test_the_table_of_speed_has_the_figures_of_its_rows():
    rows = [row for path in RESULTS.glob("bench-*.csv") for row in read_rows(path)]
    lines = lines_below("speed.md", "*Peer* is what we compare with")
    assert len(lines) == 22
    for name, *cells, _aim in lines:
        shown = [float(cell.split()[0].replace(",", "")) for cell in cells]
        unit = cells[0].split()[-1]
        assert any(has_figures(row, shown, unit) for row in rows), name
