from __future__ import annotations

import pytest

from fedif_flower.attacks import ATTACKS as REGISTERED_ATTACKS
from fedif_flower.errors import ConfigError
from fedif_flower.run.config import default_run_config
from fedif_flower.strategies.registry import STRATEGIES as REGISTERED_STRATEGIES
from fedif_studies.arena.experiments import (
    AT_EVERY_SHARE,
    ATTACKS,
    MIDDLE,
    SHARES,
    STRATEGIES,
    Experiment,
    arena_cells,
    choose_experiments,
    experiments,
    find_setup,
)
from tests.sweeps.small import make_cifar10_folder


def test_every_strategy_meets_every_attack_at_every_share():
    wanted = experiments()
    assert len(set(wanted)) == len(wanted)
    assert len(wanted) == len(STRATEGIES) * (1 + len(ATTACKS) * len(SHARES))
    assert {s["strategy"] for s in STRATEGIES.values()} <= set(REGISTERED_STRATEGIES)
    assert {a["attack"] for a in ATTACKS.values()} <= set(REGISTERED_ATTACKS)


def test_unless_attacks_or_shares_are_named_some_bouts_are_left_out():
    wanted, chosen = experiments(), choose_experiments()
    left_out = [one for one in wanted if one not in chosen]
    assert chosen == [one for one in wanted if one not in left_out]
    assert {one.share for one in left_out} == set(SHARES) - {MIDDLE}
    assert {one.attack for one in left_out} == set(ATTACKS) - set(AT_EVERY_SHARE)
    assert set(AT_EVERY_SHARE) < set(ATTACKS)
    assert choose_experiments(shares="0.1,0.2,0.4") == wanted
    assert choose_experiments(attacks=",".join(ATTACKS)) == wanted


def test_bouts_are_chosen_by_name_and_share():
    assert choose_experiments("NNM + RFA, Krum", "ALIE", "0.3") == [
        Experiment("NNM + RFA", "none", 0.0),
        Experiment("Krum", "none", 0.0),
        Experiment("NNM + RFA", "ALIE", 0.3),
        Experiment("Krum", "ALIE", 0.3),
    ]


@pytest.mark.parametrize(
    ("lists", "words"),
    [
        (("FedAvg,Kram", "", ""), "strategies = 'Kram'; allowed: FedAvg, FedIF"),
        (("", "aliee", ""), "attacks = 'aliee'; allowed: label noise"),
        (("", "", "0.2;0.4"), "shares = '0.2;0.4'; allowed: numbers above 0 and below 1"),
        (("", "", "0.2,1"), "shares = '0.2,1'; allowed: numbers above 0 and below 1"),
        (("", "", "0"), "shares = '0'; allowed: numbers above 0 and below 1"),
    ],
)
def test_a_name_or_share_that_is_not_known_is_refused(lists, words):
    with pytest.raises(ConfigError, match=words):
        choose_experiments(*lists)


def test_a_cells_settings_are_those_of_its_bout(tmp_path):
    wanted = experiments(["NNM + RFA"], ["ALIE"], [0.4])
    cells = arena_cells(wanted, 2, default_run_config(), tmp_path, find_setup())
    assert [(experiment.attack, seed) for experiment, seed in cells] == [
        ("none", 0),
        ("ALIE", 0),
        ("none", 1),
        ("ALIE", 1),
    ]
    config = cells[Experiment("NNM + RFA", "ALIE", 0.4), 1].config
    assert (config.strategy, config.attack, config.seed) == ("rfa", "alie", 1)
    assert config.neighbour_mixing
    assert config.malicious_fraction == 0.4
    assert (config.dataset, config.num_clients, config.clients_per_round) == ("digits", 50, 10)
    # Told beforehand, whatever the true share is.
    assert cells[Experiment("NNM + RFA", "none", 0.0), 0].config.assumed_malicious_fraction == 0.4


def test_contributions_are_attributed_where_a_strategy_has_coefficients(tmp_path):
    wanted = experiments(attacks=[])
    cells = arena_cells(wanted, 1, default_run_config(), tmp_path, find_setup())
    rules = {
        experiment.strategy: cell.config.attribution for (experiment, _), cell in cells.items()
    }
    assert rules.pop("median") == "off"
    assert set(rules.values()) == {"simpson"}


def test_other_data_sets_are_fought_for_by_a_hundred_clients(tmp_path):
    setup = find_setup("cifar10", str(make_cifar10_folder(tmp_path)))
    assert (setup.title, setup.clients_per_round) == ("CIFAR-10 (JPEG)", 10)
    wanted = experiments(["FedIF"], [], [])
    (cell,) = arena_cells(wanted, 1, default_run_config(), tmp_path, setup).values()
    assert cell.config.dataset == "image-folder"
    assert (cell.config.num_clients, cell.config.model) == (100, "lenet5")
    assert cell.data == "CIFAR-10 (JPEG)"


def test_names_of_fedif_list_enter_the_arena(tmp_path):
    own = "fedif_flower.strategies:FedProx"
    wanted = choose_experiments(f"Krum, rfa, {own}", "ipm", "0.2")
    cells = arena_cells(wanted, 1, default_run_config(), tmp_path, find_setup())
    chosen = [(c.config.strategy, c.config.attack) for c in cells.values()]
    assert chosen == [(s, a) for a in ("none", "ipm") for s in ("krum", "rfa", own)]
    assert all(":" not in cell.config.run_name for cell in cells.values())
    for wrong in ("none", "Krumm", "nowhere.at:all"):
        with pytest.raises(ConfigError, match=wrong.partition(":")[0]):
            choose_experiments(wrong)
