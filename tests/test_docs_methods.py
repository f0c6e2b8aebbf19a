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
OMEGA, AFEDSV = "FedIF Omega", "AFedSV Omega"
PATH, TRAPEZOID = "path attribution (simpson)", "path attribution (trapezoid)"
BOUNDED, EXACT = "path attribution, bounded", "exact in-run Shapley"


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


def test_what_games_with_last_steps_bring_with_secret_data_is_what_their_rows_say():
    twice, gradient = "twice its part of the last steps", "own gradient and last step"
    with_secret_data = {"account": "bounded, secret data", "epochs": "1"}

    def three_seeds(game: str, strategy: str) -> list[Row]:
        rows = rows_of("games.csv", game=game, strategy=strategy, **with_secret_data)
        assert len(rows) == 3
        return rows

    rows = {game: three_seeds(game, "influence descent") for game in (twice, gradient)}
    ends = {}
    for game, of_game in rows.items():
        shares = [share_of_twin(row) for row in of_game]
        ends[game] = f"{min(shares):.2f} to {max(shares):.2f}"
    most = max(share_of_twin(row) for game in rows for row in three_seeds(game, "FedIF"))
    honest = [float(row["honest_share"]) for row in rows[twice]]
    assert (
        f"With them and E = 1, {twice} brings {ends[twice]} times the honest share under influence "
        f"descent, and {gradient} {ends[gradient]}. Under FedIF both bring {most:.2f} at most. "
        f"Some honest shares are small there: {min(honest):.3f} to {max(honest):.3f} under "
    ) in words_of("methods/path-attribution.md")
    by_fedif, by_descent = (
        statistics.mean(share_of_twin(row) for row in three_seeds(twice, strategy))
        for strategy in ("FedIF", "influence descent")
    )
    words = f"under influence descent; with secret data {by_fedif:.1f} and {by_descent:.1f};"
    assert words in words_of("security.md")


def test_what_games_bring_beside_the_table_is_what_their_rows_say():
    page = words_of("methods/path-attribution.md")
    strategies = ("FedAvg", "FedIF", "influence descent")

    def shares(game: str, account: str, **values: str) -> list[float]:
        rows = rows_of("games.csv", game=game, account=account, **values)
        ours = [share_of_twin(row) for row in rows if row["strategy"] in strategies]
        return [share for share in ours if not math.isnan(share)]

    one = {"epochs": "1", "seed": "0"}
    again = [f"last step, k = {times}" for times in (1, 2, 4)]
    assert max(max(shares(game, "bounded", **one)) for game in again) < 0.001
    without = range_of(share for game in again for share in shares(game, "today", **one))
    assert f"earns nothing within bounds, and {without} honest shares without them." in page
    game, secret = "trains on the validation split", "bounded, secret data"
    known, hidden = (range_of(shares(game, account, **one)) for account in ("bounded", secret))
    largest, largest_hidden = (max(shares(game, account)) for account in ("bounded", secret))
    assert len(shares(game, secret)) == 17
    assert (
        f"Training on the validation split earns {known} honest shares, and {hidden} with secret "
        f"data. Over all seeds and numbers of local epochs it earns up to {largest:.1f}, and up to "
        f"{largest_hidden:.1f} with secret data. One of 18 cells is not counted"
    ) in page


def test_what_games_bring_in_statements_is_what_their_rows_say():
    pages = [words_of(name) for name in ("methods/path-attribution.md", "security.md")]

    def shares(game: str, **values: str) -> list[float]:
        rows = rows_of("games-statements.csv", game=game, **values)
        return list(map(share_of_twin, rows))

    lost = [1 - kept for kept in shares("its contribution is lowered by another")]
    taken = f"{100 * min(lost):.0f} to {100 * max(lost):.0f} % of the other's share"
    beside = range_of(shares("a synthetic batch of all labels beside its own"))
    descent = {"strategy": "influence-descent", "epochs": "5"}
    game = "a synthetic batch of all labels alone"
    alone, most = max(shares(game, epochs="1")), max(shares(game, **descent))
    for page in pages:
        assert taken in page
        assert f"{beside} shares" in page
    assert f"it gets up to {alone:.1f}, and up to {most:.1f} under influence descent" in pages[0]
    assert f"it brings up to {alone:.1f}, or {most:.1f} under influence descent" in pages[1]
    own = max(shares("lowers another's contribution"))
    assert f"and has up to {own:.1f} times its own" in pages[1]


def test_identities_and_free_riders_have_what_the_rows_of_contributions_say():
    page = words_of("methods/path-attribution.md")
    split = rows_of(
        "contributions.csv",
        experiment="five identities",
        strategy="fedif",
        figure=f"share after / before, {PATH}",
    )
    shares = range_of(float(row["value"]) for row in split)
    assert f"five identities had {shares} times the share of their owner." in page
    assert f"several identities under FedIF's weights: {shares};" in words_of("security.md")
    rider = {"experiment": "free-rider", "strategy": "fedif"}
    [score] = {
        f"{float(row['value']):.1f}"
        for row in rows_of("contributions.csv", figure="marked / honest, Omega", **rider)[:2]
    }
    nats = rows_of("contributions.csv", figure="marked / honest, nats", **rider)
    assert {float(row["value"]) for row in nats} == {0}
    assert f"still has {score} of an honest member's weight score" in page


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
    words = f"Above 0.97 lie all {len(marked)} identities that hide their data"
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


def revisions_of(path: str, column: str) -> dict[str, set[str]]:
    """Return the values of a column of an audit's file, by the revision of their rows."""
    by_revision: dict[str, set[str]] = {}
    for row in read_rows(DOCS / "audit" / path):
        by_revision.setdefault(row["revision"][:8], set()).add(row[column])
    return by_revision


def test_rows_of_audits_are_of_the_revisions_that_the_page_says():
    page = words_of("results/audit.md")
    [since] = revisions_of("since/values.csv", "case")
    assert f"[attacks published since](#what-else-came-out) are of {since}." in page
    [usual] = revisions_of("measures-digits/values.csv", "case")
    seeds = revisions_of("measures-digits/retraining.csv", "seed")
    assert seeds.pop(usual) == {"2"}
    [(earlier, of_seeds)] = seeds.items()
    assert of_seeds == {"0", "1"}
    cases = revisions_of("measures-fashion-mnist/values.csv", "case")
    assert cases.pop(usual) == {"honest", "label noise"}
    [later] = cases
    assert revisions_of("measures-fashion-mnist/retraining.csv", "seed").keys() == {usual}
    assert (
        f"are of {usual}, except for retraining on digits with seeds 0 and 1, which is of "
        f"{earlier}, and for gradient noise, free riders and games on Fashion-MNIST, which are of "
        f"{later}."
    ) in page


def found(folder: str, question: str, case: str, valuation: str) -> float:
    """Return a finding of an audit."""
    for row in read_rows(DOCS / "audit" / folder / "findings.csv"):
        if (row["question"], row["case"], row["valuation"]) == (question, case, valuation):
            return float(row["value"])
    raise LookupError(folder, question, case, valuation)


def gained(folder: str, game: str, valuation: str) -> float:
    return found(folder, "share after / before", game, valuation)


def test_what_manipulation_brings_is_what_the_audits_found():
    page = words_of("results/audit.md")
    split = [gained("digits", "five identities", name) for name in (PATH, OMEGA, AFEDSV)]
    assert split[0] == pytest.approx(1)
    words = f"it becomes {split[1]:.1f} times as large, by AFedSV {split[2]:.1f} times."
    assert words in page
    longer = gained("digits", "update times 10", TRAPEZOID)
    assert gained("digits", "update times 10", PATH) == 0
    words = f"An update ten times as long earns {longer:.1f} shares by the trapezoid rule, and 0 by"
    assert words in page
    opposed = "opposed updates, k = 1000"
    exact, left_out = (gained("games", opposed, name) for name in (EXACT, "leave-one-out"))
    words = f"opposed pairs of updates get {exact:.1f} shares, and leave-one-out gives them "
    assert f"{words}{left_out:.0f}." in page
    deceived = [
        gained("games", "all labels wrong, predicted step (ACE)", name)
        for name in ("cosine with the step", AFEDSV, OMEGA, PATH, BOUNDED)
    ]
    [both] = {f"{share:.1f}" for share in deceived[:2]}
    assert deceived[4] == 0
    assert (
        f"This earns {both} honest shares by the cosine and by AFedSV, {deceived[2]:.1f} by "
        f"FedIF's $\\Omega$, {deceived[3]:.1f} by path attribution, and nothing within bounds."
    ) in page


def test_what_attacks_published_since_bring_is_what_their_audit_found():
    page = words_of("results/audit.md")

    def shares(game: str, *names: str) -> list[str]:
        return [f"{gained('since', game, name):.2f}" for name in names]

    [both] = set(shares("its contribution is lowered by another", EXACT, PATH))
    omega, afedsv = shares("its contribution is lowered by another", OMEGA, AFEDSV)
    exact, path, of_omega, of_afedsv = shares(
        "lowers another's contribution", EXACT, PATH, OMEGA, AFEDSV
    )
    assert (
        f"The victim keeps {both} of its share by exact in-run values and by path attribution, "
        f"{omega} by FedIF's $\\Omega$ and {afedsv} by AFedSV's. The attacker has {exact} by exact "
        f"in-run values, {path} by path attribution, {of_omega} by FedIF's $\\Omega$, and "
        f"{of_afedsv} by AFedSV's."
    ) in page
    beside = "a synthetic batch of all labels beside its own"
    [both] = set(shares(beside, PATH, EXACT))
    omega, afedsv, secret = shares(beside, OMEGA, AFEDSV, f"{BOUNDED}, secret data")
    alone = shares("a synthetic batch of all labels alone", PATH, EXACT, OMEGA, AFEDSV)
    assert (
        f"This brings {both} by path attribution and exact values, {omega} by FedIF's $\\Omega$, "
        f"{afedsv} by AFedSV's. Without its own examples it brings {alone[0]} and {alone[1]}, but "
        f"{alone[2]} and {alone[3]} by the two scores. Secret data change little ({secret} with"
    ) in page


def truth(figure: str, **values: str) -> dict[str, list[float]]:
    """Return a figure of the rows of the truth that have these values, by valuation."""
    by_valuation: dict[str, list[float]] = {}
    wanted = {"figure": figure, **values}
    for row in read_rows(DOCS / "audit" / "truth.csv"):
        if wanted.items() <= row.items():
            by_valuation.setdefault(row["valuation"], []).append(float(row["value"]))
    return by_valuation


def test_what_finds_members_is_what_the_rows_of_the_truth_say():
    def area(case: str, valuation: str, members: str = "10", rounds: str = "10") -> str:
        areas = truth("AUC", data="digits", members=members, rounds=rounds, case=case)
        return f"{statistics.mean(areas[valuation]):.2f}"

    labels, amounts, noise = "graded label noise", "graded amounts", "gradient noise"
    few, few_of_hundred = area(amounts, OMEGA), area(amounts, OMEGA, "100", "50")
    assert (
        f"finds wrong labels and gradient noise (AUC {area(labels, OMEGA)}, {area(noise, OMEGA)}), "
        f"but not members with few examples ({few}; with a hundred members and 50 rounds "
        f"{few_of_hundred}). Path attribution finds wrong labels and few examples "
        f"({area(labels, PATH)}, {area(amounts, PATH)}). It finds noise only within bounds "
        f"({area(noise, PATH)}, bounded {area(noise, BOUNDED)})."
    ) in words_of("results/audit.md")


def test_what_leaving_out_members_brings_is_what_the_rows_of_the_truth_say():
    hundred = {"data": "digits", "members": "100", "rounds": "50"}
    accuracy = truth("gated accuracy", **hundred, case="graded label noise")
    nobody = accuracy["nobody left out"]

    def gains(valuation: str) -> list[float]:
        pairs = zip(accuracy[valuation], nobody, strict=True)
        return [100 * (after - before) for after, before in pairs]

    path, omega = gains(f"{PATH}, per round"), gains(OMEGA)
    best = statistics.mean(gains("the bad left out"))
    afedsv, gtg = (-statistics.mean(gains(name)) for name in (AFEDSV, "GTG-Shapley, per round"))
    assert (
        f"it brings {statistics.mean(path):.1f} points by path attribution per draw "
        f"({range_of(path)}), {statistics.mean(omega):.1f} by $\\Omega$ ({range_of(omega)}), and "
        f"{best:.1f} by the truth. AFedSV and GTG-Shapley lose {afedsv:.1f} and {gtg:.1f} points."
    ) in words_of("results/audit.md")


def test_path_attribution_on_more_images_agrees_with_retraining_as_its_rows_say():
    def agreement(valuation: str) -> list[str]:
        wanted = {"data": "fashion-mnist", "figure": "Pearson, test_loss", "valuation": valuation}
        rows = read_rows(DOCS / "audit" / "target.csv")
        by_case = {row["case"]: row["value"] for row in rows if wanted.items() <= row.items()}
        return [f"{float(by_case[case]):.2f}" for case in ("honest", "label noise")]

    path, control = agreement(PATH), agreement("number of examples (control)")
    influence = agreement("accumulative influence")
    assert (
        f"path attribution agrees with retraining by {' and '.join(path)}, the number of examples "
        f"by {' and '.join(control)}. Accumulative influence falls to {' and '.join(influence)}."
    ) in words_of("results/audit.md")


def test_ranks_agree_between_seeds_and_rules_as_the_audit_found():
    stability = {}
    for case in ("between seeds", "between aggregation rules"):
        for valuation in (PATH, OMEGA):
            agreement = found("digits", "stability, Spearman", case, valuation)
            stability.setdefault(case, []).append(f"{agreement:.2f}")
    path, omega = stability["between seeds"]
    assert (
        f"({path} for path attribution, {omega} for $\\Omega$) and between FedAvg, FedIF and RFA "
        f"({', '.join(stability['between aggregation rules'])})."
    ) in words_of("results/audit.md")


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
