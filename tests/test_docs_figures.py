"""Sentences of the pages that follow from committed rows, each written anew from these."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping

import pytest

from fedif_consortium.member.outgoing import LeavesSettings
from fedif_flower.run.rows import read_rows
from fedif_studies.factorial import FactorialCell, effects
from fedif_studies.factorial import read as read_factorial
from fedif_studies.games import table as games_table
from tests.test_docs_names import DOCS, REPOSITORY

RESULTS = DOCS / "results"
PAPER = REPOSITORY / "fedif_studies" / "paper" / "figures.csv"
THREE = ("fedavg", "afedsv", "fedif")
LABEL_NOISE = "label-noise_0.7_0.7-0.8"
DATA_SETS = ("cifar10", "fashion-mnist")
Row = Mapping[str, str]


def words_of(name: str) -> str:
    """Return a page without its line ends."""
    return " ".join((DOCS / name).read_text().split())


def rows_of(name: str, **values: str) -> list[Row]:
    """Return the rows of a file of results that have these values; ``_`` is ``-`` in a column."""
    wanted = {column.replace("_", "-"): value for column, value in values.items()}
    return [row for row in read_rows(RESULTS / name) if wanted.items() <= row.items()]


def of_seed(name: str, seed: int, figure: str = "test-last-ten", **values: str) -> float:
    """Return the figure in percent of the one row of a seed that has these values."""
    [row] = rows_of(name, seed=str(seed), **values)
    return 100 * float(row[figure])


def test_the_page_names_the_row_whose_gamma_is_not_that_of_its_sweep():
    """The sweep leaves gamma at what FedIF has by default on Fashion-MNIST."""
    [row] = rows_of("batch-norm-fashion-mnist.csv", strategy="fedif", num_server_rounds="10")
    of_cells = rows_of("batch-norm-fashion-mnist.csv", strategy="fedif", num_server_rounds="100")
    [gamma] = {other["fedif.gamma"] for other in of_cells}
    assert (
        "FedIF over 10 rounds in `batch-norm-fashion-mnist.csv` has gamma = "
        f"{row['fedif.gamma']}, where the cell has {gamma}."
    ) in words_of("results.md")


def test_leads_within_bounds_are_those_of_each_seed():
    text = words_of("results.md")
    for noise in ("label", "gradient"):
        path = f"cifar10-{noise}-noise-bounds.csv"
        by_method = {}
        for weights in ("fedavg", "fedif", "influence-descent"):
            rule = {"rule.weights": weights, "rule.bounds": "full"}
            by_method[weights] = [of_seed(path, seed, **rule) for seed in range(3)]
        fedavg, fedif = by_method["fedavg"], by_method["fedif"]
        first, second, third = (ours - theirs for ours, theirs in zip(fedif, fedavg, strict=True))
        assert (
            f"FedAvg has {statistics.mean(fedavg):.1f}±{statistics.stdev(fedavg):.1f} and FedIF "
            f"{statistics.mean(fedif):.1f}±{statistics.stdev(fedif):.1f}. Seed by seed FedIF has "
            f"{first:.1f}, {second:.1f} and {third:.1f} points more."
        ) in text
        descent = by_method["influence-descent"]
        first, second, third = (own - theirs for own, theirs in zip(descent, fedif, strict=True))
        assert (
            f"Influence descent has {statistics.mean(descent):.1f}±{statistics.stdev(descent):.1f}"
            f", which is {first:.1f}, {second:.1f} and {third:.1f} points more than FedIF."
        ) in text


def test_fedprox_stands_beside_fedavg_with_the_same_seed():
    columns = (
        ("cifar10.csv", "clean"),
        ("cifar10.csv", LABEL_NOISE),
        ("cifar10.csv", "adversarial_0.5_0.7-0.8"),
        ("cifar10-gradient.csv", "gradient-noise_0.5_0.1"),
    )
    figures = {}
    for method in ("fedprox", "fedavg"):
        figures[method] = [
            f"{of_seed(path, 0, row=method, column=column, normalization='data'):.1f}"
            for path, column in columns
        ]
    clean, label, adversarial, gradient = figures["fedprox"]
    assert (
        f"it has {clean} without attack, {label} under label noise, {adversarial} under "
        f"adversarial samples and {gradient} under gradient noise (seed 0); FedAvg has "
        f"{', '.join(figures['fedavg'][:3])} and {figures['fedavg'][3]} with the same seed."
    ) in words_of("results.md")


def test_how_long_a_cell_took_is_what_the_protocols_rows_say():
    minutes: dict[tuple[str, ...], float] = {}  # The clean cells stand in two tables.
    on_two_threads: list[float] = []
    for data in DATA_SETS:
        for name in (f"{data}.csv", f"{data}-gradient.csv"):
            for row in rows_of(name, gpu=""):
                took = float(row["seconds"]) / 60
                if row["normalization"] == "data":
                    continue
                if row.get("threads") == "2":
                    assert (data, row["row"]) == ("cifar10", "afedsv")
                    on_two_threads.append(took)
                    continue
                key = (data, row["row"], row["column"], row["seed"])
                minutes[key] = took
    shapley = [took for key, took in minutes.items() if key[1] == "afedsv"]
    poisoned = []
    others = []
    for (_, method, column, _), took in minutes.items():
        if method != "afedsv":
            of_kind = poisoned if column.startswith("adversarial") else others
            of_kind.append(took)
    every = poisoned + others
    assert (
        f"A cell took a core {min(every):.0f} to {max(every):.0f} minutes beside other work "
        f"(median: {statistics.median(every):.0f}; with adversarial samples "
        f"{statistics.median(poisoned):.0f}, else {statistics.median(others):.0f}), AFedSV's "
        f"{min(shapley):.0f} to {max(shapley):.0f} (median: {statistics.median(shapley):.0f}); "
        f"{len(on_two_threads)} of its cells on CIFAR-10 took {min(on_two_threads):.0f} to "
        f"{max(on_two_threads):.0f} with `--threads 2`, since two threads share the coalitions."
    ) in words_of("results.md")


def test_the_last_round_under_label_noise_lies_as_far_from_the_last_ten_as_the_rows_say():
    apart = [
        100 * abs(float(row["test-last"]) - float(row["test-last-ten"]))
        for row in rows_of("cifar10.csv", gpu="")
        if row["normalization"] != "data" and row["column"].startswith("label-noise")
    ]
    assert (
        "Under label noise on CIFAR-10 the last round lies up to "
        f"{max(apart):.1f} points from the mean of the last ten."
    ) in words_of("results.md")


def test_quarantine_of_those_who_misbehave_in_some_rounds_is_what_its_rows_say():
    left_out: dict[str, list[int]] = {}
    honest = [0, 0]
    for row in rows_of("quarantine.csv"):
        kind, _, rounds = row["case"].partition(" 40 %, ")
        if not rounds:
            continue
        counts = left_out.setdefault(kind, [0, 0])
        counts[0] += int(row["malicious-left-out"])
        counts[1] += int(row["malicious"])
        honest[0] += int(row["honest-left-out"])
        honest[1] += int(row["honest"])
    label, flipped = left_out["label noise"], left_out["sign flip"]
    assert (
        f"with label noise, {label[0]} of {label[1]} were left out, with flipped signs "
        f"{flipped[0]} of {flipped[1]}, and {honest[0]} of {honest[1]} honest members"
    ) in words_of("methods/quarantine.md")


def test_deep_sight_withstands_the_pixel_trigger_as_far_as_its_rows_say():
    success: dict[str, list[str]] = {}
    for bounds in ("none", "full"):
        of_rule = {"data": "Digits", "rule": "DeepSight", "bounds": bounds}
        for row in rows_of("arena.csv", attack="pixel trigger", **of_rule):
            percent = f"{100 * float(row['attack-success']):.0f}"
            success.setdefault(f"{row['share']} {bounds}", []).append(percent)
    for bounds in ("none", "full"):
        assert set(success[f"0.1 {bounds}"]) == {"0"}
        *low, high = sorted(map(int, success[f"0.2 {bounds}"]))
        assert len(low) == 2
        assert max(low) < 10
        words = f"the trigger succeeds in one of three seeds ({high} %); if 40 % do, in all"
        assert words in words_of("methods/robust-rules.md")
        assert min(map(int, success[f"0.4 {bounds}"])) > 90


def test_momentum_within_a_bound_on_length_brings_what_the_factorial_says():
    means = {}
    for momentum in ("0.0", "0.5"):
        cell = {"data": "fashion-mnist", "attack": "PoisonedFL", "share": "0.4"}
        cell |= {"weights": "fedavg", "bounds": "length", "momentum": momentum}
        means[momentum] = statistics.mean(
            float(row["last-ten"]) for row in rows_of("factorial.csv", **cell)
        )
    gain = means["0.5"] - means["0.0"]
    words = f"Together with *length* it brings {gain:.1f} points under PoisonedFL."
    assert words in words_of("results/factorial.md")


def test_the_factorial_says_how_many_effects_stand():
    accuracies = read_factorial()
    page = words_of("results/factorial.md")
    for data in ("digits", "fashion-mnist"):
        measured = effects(accuracies, data)
        num_standing = sum(effect.p < 0.05 for effect in measured.values())
        assert f"{num_standing} of {len(measured)} effects stand after Holm's correction" in page


def test_the_factorial_says_where_the_arena_has_other_figures():
    accuracies = read_factorial()
    weights = {"FedAvg": "fedavg", "FedIF": "fedif", "FLTrust": "fltrust", "AutoBANT": "autobant"}
    weights["influence descent"] = "influence-descent"
    num_shared = 0
    diverged = []
    others = []
    for row in rows_of("arena.csv", data="Digits"):
        if row["rule"] not in weights:
            continue
        cell = FactorialCell(
            data="digits",
            seed=int(row["seed"]),
            attack=row["attack"],
            share=float(row["share"]),
            weights=weights[row["rule"]],
            bounds=row["bounds"],
            momentum=0.0,
        )
        if cell not in accuracies:
            continue
        num_shared += 1
        again = 100 * float(row["accuracy"])
        gap = abs(again - accuracies[cell])
        if gap < 0.0051:  # Rows have two places.
            continue
        if (cell.weights, cell.bounds, cell.attack) == ("fedavg", "none", "PoisonedFL"):
            diverged.append((again, accuracies[cell]))
        else:
            others.append(gap)
    page = words_of("results/factorial.md")
    number = len(diverged) + len(others)
    assert f"measured {num_shared} of the cells on digits again" in page
    assert f": {number} of them differ" in page
    first, second, third = (f"{again:.1f}" for again, _ in diverged)
    assert f"{first}, {second} and {third} instead of" in page
    assert f"differ by {max(others):.1f} points at most" in page


def test_what_rules_cost_without_attack_is_what_the_arena_says():
    of_rule: dict[tuple[str, str], list[float]] = {}
    for row in rows_of("arena.csv", data="Digits", attack="none"):
        accuracies = of_rule.setdefault((row["rule"], row["bounds"]), [])
        accuracies.append(100 * float(row["accuracy"]))
    control = of_rule.pop(("FedAvg", "none"))
    costs: dict[str, list[list[float]]] = {"FLTrust": [], "SignGuard": [], "others": []}
    for (rule, _), accuracies in of_rule.items():
        name = rule if rule in costs else "others"
        of_seeds = [before - now for before, now in zip(control, accuracies, strict=True)]
        costs[name].append(of_seeds)
    means = {name: [statistics.mean(cost) for cost in by_seed] for name, by_seed in costs.items()}
    most = {name: max(map(max, by_seed)) for name, by_seed in costs.items()}
    ranges = {}
    for name, mean in means.items():
        least, largest = f"{min(mean):.1f}", f"{max(mean):.1f}"
        ranges[name] = least if least == largest else f"{least} to {largest}"
    assert (
        f"in the mean over seeds, FLTrust costs {ranges['FLTrust']} points, SignGuard "
        f"{ranges['SignGuard']}, and the other rules and the bounds {max(means['others']):.1f} at "
        f"most. On a single seed FLTrust costs up to {most['FLTrust']:.1f}, SignGuard up to "
        f"{most['SignGuard']:.1f}, and the others up to {most['others']:.1f}."
    ) in words_of("results/arena.md")


def test_backdoors_succeed_as_the_arena_says():
    successes: dict[tuple[str, ...], list[float]] = {}
    for row in rows_of("arena.csv", data="Digits"):
        if row["attack-success"] and row["attack"] != "none":
            of_attack = (row["rule"], row["bounds"], row["share"], row["attack"])
            successes.setdefault(of_attack, []).append(100 * float(row["attack-success"]))
    worst: dict[str, dict[tuple[str, str], float]] = {}
    for (rule, bounds, share, _), of_seeds in successes.items():
        of_share = worst.setdefault(share, {})
        before = of_share.get((rule, bounds), 0.0)
        of_share[rule, bounds] = max(before, statistics.mean(of_seeds))
    stopping = {rule for (rule, _), success in worst["0.1"].items() if success < 5}
    assert stopping == {"SignGuard"}
    least = [math.floor(min(worst[share].values())) for share in ("0.2", "0.4")]
    words = f"by {least[0]} % or more in the mean at 20 %, and by {least[1]} % at 40 %."
    assert words in words_of("results/arena.md")


def test_the_valuations_that_agree_better_with_retraining_than_the_control_are_named():
    agreement = {}
    for row in read_rows(DOCS / "audit" / "measures-digits" / "findings.csv"):
        if (row["question"], row["case"]) == ("retraining, Pearson", "honest"):
            agreement[row["valuation"]] = float(row["value"])
    control = agreement.pop("number of examples (control)")
    del agreement["another seed's retraining"]
    better = {name: value for name, value in agreement.items() if value > control + 0.01}
    assert better.keys() == {"cosine with the step", "GTG-Shapley", "accumulative influence"}
    assert (
        f"than the number of examples ({control:.2f}): the cosine does "
        f"({better['cosine with the step']:.2f}), GTG-Shapley ({better['GTG-Shapley']:.2f}) and "
        f"accumulative influence ({better['accumulative influence']:.2f})."
    ) in words_of("results/audit.md")


BESIDE_COSTS = {
    "path attribution, bounded, with secret data": "path attribution, bounded, secret data",
    "FedIF's score $\\Omega$": "FedIF Omega",
    "AFedSV's $\\Omega$": "AFedSV Omega",
    "a member's own loss decrease": "own loss decrease",
    "Banzhaf values of the same rounds": "Banzhaf, in-run",
    "another seed's retraining (ceiling)": "another seed's retraining",
}


def test_the_agreement_beside_costs_is_all_of_the_same_rows():
    agreement = {}
    for row in read_rows(DOCS / "audit" / "measures-digits" / "findings.csv"):
        question, _, kind = row["question"].partition(", ")
        if kind == "Pearson":
            agreement[row["valuation"], row["case"], question] = f"{float(row['value']):.2f}"
    for case in ("honest", "label noise"):
        agreement["exact in-run Shapley", case, "in-run"] = "1.00"  # With itself.
    milliseconds: dict[str, list[float]] = {}
    for row in read_rows(DOCS / "audit" / "target.csv"):
        if (row["data"], row["figure"]) == ("digits", "milliseconds"):
            milliseconds.setdefault(row["valuation"], []).append(float(row["value"]))
    _, _, below = (RESULTS / "audit.md").read_text().partition("## Cost beside agreement")
    lines = [line for line in below.partition("\n## ")[0].splitlines() if line.startswith("|")][2:]
    assert len(lines) == 18
    for line in lines:
        shown, cost, *_, honest, noise = (cell.strip() for cell in line.strip("|").split("|"))
        shown = re.sub(r" \((\[|Xu).*\)", "", shown)  # Its source.
        name = BESIDE_COSTS.get(shown, shown)
        if cost != "-":
            taken = statistics.mean(milliseconds[name])
            assert cost == (f"{taken:.1f}" if taken < 100 else f"{taken:.0f}"), name
        for case, pair in (("honest", honest), ("label noise", noise)):
            questions = ("in-run", "retraining")
            expected = [agreement.get((name, case, question), "-") for question in questions]
            assert pair == ", ".join(expected), (name, case)
    control = agreement["number of examples (control)", "label noise", "in-run"]
    path = agreement["path attribution (simpson)", "label noise", "in-run"]
    assert (
        f"Under label noise the number of examples agrees by {control}, and path attribution by "
        f"{path} "
    ) in words_of("methods/path-attribution.md")
    assert f"the control falls to {control} with the in-run" in words_of("results/audit.md")


def test_what_opposed_updates_earn_is_said_of_pairs_and_of_one_against_three():
    earned: dict[tuple[bool, str], list[float]] = {}
    for row in rows_of("games.csv", epochs="1", seed="0"):
        is_relative = row["strategy"].endswith("relative weights")  # The page leaves these out.
        if row["game"].startswith("opposed updates") and not is_relative:
            share = float(row["share"]) / float(row["honest_share"])
            earned.setdefault(("three" in row["game"], row["account"]), []).append(share)

    def range_of(against_three: bool, account: str) -> str:
        shares = earned[against_three, account]
        return f"{min(shares):.1f} to {max(shares):.1f}"

    assert (
        f"Opposed updates earn a pair {range_of(False, 'bounded')} honest shares within bounds, "
        f"and {range_of(False, 'today')} without. If one sends against three, the four earn "
        f"{range_of(True, 'bounded')} within bounds, and {range_of(True, 'today')} without."
    ) in words_of("methods/path-attribution.md")


def test_rows_of_other_methods_are_of_the_revisions_that_the_page_says():
    revisions: dict[str, set[str]] = {}
    for row in rows_of("compared.csv"):
        method = row["local-method"].rpartition(":")[2]
        if row["server-optimizer"] in ("fedadam", "fedyogi"):
            method = row["server-optimizer"]
        elif method not in ("scaffold", "FedCorr"):
            method = "others"
        revisions.setdefault(method, set()).add(row["revision"][:8])
    assert revisions.pop("fedadam") == revisions["fedyogi"]
    [of_optimizers], [of_scaffold] = revisions["fedyogi"], revisions["scaffold"]
    [of_fedcorr] = revisions["FedCorr"]
    *most, last = sorted(revisions["others"])
    assert (
        f"FedAdam's and FedYogi's are of {of_optimizers}, SCAFFOLD's of {of_scaffold}, FedCorr's "
        f"of {of_fedcorr}, and all others of {', '.join(most)} or {last}."
    ) in words_of("results/compared.md")


def test_memory_behind_a_superlink_is_of_the_revision_of_its_rows():
    [revision] = {row["revision"] for row in rows_of("bench-deployed-memory.csv")}
    assert f"These figures are by revision {revision[:8]}, beside" in words_of("speed.md")


def test_the_table_of_games_in_statements_has_the_means_of_its_rows():
    """The page calls strategies and one of the games by other words."""
    text = (DOCS / "methods" / "path-attribution.md").read_text()
    _, _, below = text.partition("These are whole runs with a budget")
    lines = [line for line in below.splitlines() if line.startswith("|")][2:9]
    games = games_table(read_rows(RESULTS / "games-statements.csv"))
    shown = [[cell.strip() for cell in line.split("|")[2:-1]] for line in lines]
    assert shown == [line[1:] for line in games.lines]
    # (0.0216554 / 0.0186722 + 0.0345419 / 0.0295403 + 0.0142671 / 0.0212496) / 3
    assert shown[-1][-1] == "1.00 (0.67\N{EN DASH}1.17), 2"


def test_what_unlearning_costs_on_fashion_mnist_is_what_its_rows_say():
    of_method = {}
    for method in ("FedAvg", "FedAvg; unlearned"):
        rows = rows_of("backdoors.csv", data="Fashion-MNIST", method=method)
        of_method[method] = {row["attack"]: row for row in rows if row["attack"] != "none"}
    before, after = of_method["FedAvg"], of_method["FedAvg; unlearned"]
    assert before.keys() == after.keys()
    costs = [
        100 * (float(before[attack]["accuracy"]) - float(row["accuracy"]))
        for attack, row in after.items()
    ]
    kept = [100 * float(row["success"]) for row in after.values()]
    assert round(max(costs), 2) == 3.21  # 79.75 - 76.5375
    assert (
        f"keeps a success of {min(kept):.0f} to {max(kept):.0f} %, and unlearning costs up to "
        f"{max(costs):.1f} points of accuracy."
    ) in words_of("methods/backdoors.md")


def test_what_is_lost_without_attack_is_of_the_protocols_cells():
    """Not of those with the data's own mean, which results.md has beside them."""

    def last_ten(data: str, method: str) -> float:
        rows = rows_of(f"{data}.csv", row=method, column="clean", gpu="")
        [row] = [row for row in rows if row["normalization"] != "data"]
        return 100 * float(row["test-last-ten"])

    cifar, fashion = (last_ten(data, "fedavg") - last_ten(data, "fedif") for data in DATA_SETS)
    assert round(cifar, 2) == 0.63  # 64.5737 - 63.9387
    assert (
        f"in short runs, {cifar:.1f} and {fashion:.1f} in the paper's 100 rounds on CIFAR-10 and "
        "on Fashion-MNIST."
    ) in words_of("methods/fedif.md")
    krum, fedavg = (last_ten("cifar10", method) for method in ("krum", "fedavg"))
    assert (
        f"On CIFAR-10 without attack it has {krum:.0f} % where FedAvg has {fedavg:.0f} %."
    ) in words_of("methods/robust-rules.md")


def test_an_empty_policy_lets_as_many_figures_leave_as_the_page_says():
    assert len(LeavesSettings().metrics) == 3
    words = "Nothing may leave but an update with three figures, and answers to queries."
    assert words in words_of("member-policy.md")


def test_afedsv_under_the_heaviest_attacks_is_what_its_rows_say():
    heaviest = {
        "label-noise": {"cifar10": "0.7_0.7-0.8", "fashion-mnist": "0.7_0.6-0.7"},
        "gradient-noise": {"cifar10-gradient": "0.6_0.1", "fashion-mnist-gradient": "0.7_0.1"},
        "adversarial": {"cifar10": "0.7_0.7-0.8", "fashion-mnist": "0.7_0.7-0.8"},
    }
    text = (DOCS / "results.md").read_text()
    _, _, below = text.partition("**AFedSV lies between FedAvg and FedIF under the heaviest noise")
    lines = [line for line in below.splitlines() if line.startswith("|")][2:8]
    expected = []
    seconds = []
    for attack, columns in heaviest.items():
        for table, noise in columns.items():
            rows = rows_of(f"{table}.csv", column=f"{attack}_{noise}", gpu="")
            of = {row["row"]: row for row in rows if row["normalization"] != "data"}
            last_ten = [100 * float(of[name]["test-last-ten"]) for name in THREE]
            in_paper = [
                float(row["value"])
                for name in THREE
                for row in read_rows(PAPER)
                if (row["table"], row["row"], row["column"]) == (table, name, f"{attack}_{noise}")
            ]
            scored = [of[name] for name in THREE[1:]]
            cells = [f"{value:.1f}" for value in last_ten]
            cells.append(", ".join(f"{value:.1f}" for value in in_paper))
            cells.append(", ".join(f"{float(row['detection-auc']):.3f}" for row in scored))
            shares = [100 * float(row["malicious-weight-share"]) for row in scored]
            cells.append(", ".join(f"{share:.0f}" for share in shares))
            expected.append(cells)
            seconds.append(float(of["afedsv"]["aggregation-seconds-per-round"]))
    assert [[cell.strip() for cell in line.split("|")[2:-1]] for line in lines] == expected
    words = f"AFedSV took a core {min(seconds):.0f} to {max(seconds):.0f} s a round in these cells"
    assert words in words_of("results.md")


@pytest.mark.parametrize(
    ("malicious", "ratios"), [("0.5", "0.5-0.6"), ("0.5", "0.7-0.8"), ("0.7", "0.5-0.6")]
)
def test_afedsv_where_clients_send_adversarial_samples_is_what_its_row_says(malicious, ratios):
    low, high = ratios.split("-")
    rows = rows_of("cifar10.csv", column=f"adversarial_{malicious}_{ratios}", gpu="")
    of = {row["row"]: row for row in rows if row["normalization"] != "data"}
    fedavg, afedsv, fedif = (f"{100 * float(of[name]['test-last-ten']):.1f}" for name in THREE)
    shares = [f"{100 * float(of[name]['malicious-weight-share']):.0f}" for name in THREE[1:]]
    auc = float(of["afedsv"]["detection-auc"])
    assert (
        f"Under adversarial samples {malicious} ({low}, {high}) on CIFAR-10 it has {afedsv}, "
        f"FedAvg {fedavg} and FedIF {fedif}, with an AUC of {auc:.3f}, and "
        f"malicious clients have {shares[0]} % of the steps, with FedIF {shares[1]} %."
    ) in words_of("results.md")


def test_how_far_the_values_of_gamma_lie_apart_is_what_their_rows_say():
    """In each column of Fashion-MNIST whose four values of gamma are measured."""
    here = []
    paper = []
    for column in ("clean", "label-noise", "gradient-noise"):
        rows = rows_of("gamma-fashion-mnist.csv", column=column, gpu="")
        of = {row["row"]: row for row in rows if row["normalization"] != "data"}
        assert len(of) == 4
        accuracies = [100 * float(row["validation-last-ten"]) for row in of.values()]
        here.append(f"{max(accuracies) - min(accuracies):.1f}")
        printed = [
            float(row["value"])
            for row in read_rows(PAPER)
            if (row["table"], row["column"]) == ("gamma-fashion-mnist", column)
        ]
        paper.append(f"{max(printed) - min(printed):.1f}")
    words = (
        f"lie {here[0]}, {here[1]} and {here[2]} points apart without attack, under label noise "
        f"and under gradient noise (in the paper {paper[0]}, {paper[1]} and {paper[2]})"
    )
    assert words in words_of("results.md")


@pytest.mark.parametrize(
    ("table", "called"), [("cifar10", "CIFAR-10"), ("fashion-mnist", "Fashion-MNIST")]
)
def test_afedsv_without_attack_is_what_its_rows_say(table, called):
    column = rows_of(f"{table}.csv", column="clean", gpu="")
    of = {row["row"]: row for row in column if row["normalization"] != "data"}
    fedavg, afedsv, fedif = (f"{100 * float(of[name]['test-last-ten']):.1f}" for name in THREE)
    printed = {}
    for row in read_rows(PAPER):
        if (row["table"], row["column"]) == (table, "clean"):
            printed[row["row"]] = f"{float(row['value']):.1f}"
    words = (
        f"Without attack on {called} it has {afedsv}, FedAvg {fedavg} and FedIF {fedif} (in the "
        f"paper {printed['afedsv']}, {printed['fedavg']} and {printed['fedif']})"
    )
    assert words in words_of("results.md")


def test_how_much_a_round_moves_with_few_members_by_afedsv_s_authors_draw():
    """The mean number of K members that come, where two do at least, over K C."""
    chance = 0.1
    sums = {}
    for members in (100, 20, 3):
        alone = members * chance * (1 - chance) ** (members - 1)
        come = 1 - (1 - chance) ** members - alone
        sums[members] = (members * chance - alone) / come / (members * chance)
    words = (
        f"the sum of a round's weights is {sums[100]:.4f} in the mean with 100 members, "
        f"{sums[20]:.2f} with 20, and {sums[3]:.2f} with 3"
    )
    assert words in words_of("methods/shapley.md")


def test_afedsv_with_its_authors_draw_is_what_its_row_says():
    (drawn,) = rows_of("afedsv-draw.csv", gpu="")
    column = rows_of("fashion-mnist.csv", column="label-noise_0.7_0.6-0.7", row="afedsv", gpu="")
    (usual,) = (row for row in column if row["normalization"] != "data")
    for key in ("afedsv.sampling", "afedsv.weight-scope"):
        assert drawn[key] != usual[key]
    authors, here = (f"{100 * float(row['test-last-ten']):.1f}" for row in (drawn, usual))
    words = (
        f"AFedSV has {authors} % (mean of the last ten rounds, seed {drawn['seed']}) with its "
        f"authors' draw and weights, and {here} % with those here; the paper has 87.0."
    )
    assert words in words_of("methods/shapley.md")
    aucs = " and ".join(f"{float(row['detection-auc']):.3f}" for row in (drawn, usual))
    assert f"The ROC-AUC of its scores is {aucs}." in words_of("methods/shapley.md")
