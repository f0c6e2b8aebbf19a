from __future__ import annotations

import pytest

from fedif_flower.errors import ConfigError
from fedif_studies.lab.spec import read_sweep
from tests.studies.lab.small import DEFAULTS


def cells(tmp_path, text: str):
    path = tmp_path / "my-sweep.toml"
    path.write_text(text)
    return read_sweep(path, DEFAULTS, tmp_path / "out")


def test_lists_are_axes_and_seeds_vary_slowest(tmp_path):
    found = cells(
        tmp_path,
        'strategy = ["fedif", "krum"]\nseeds = 2\nlearning-rate = [0.3, 0.5, 0.7]\n'
        "num-clients = 20\n",
    )
    points = [(c.config.seed, c.config.strategy, c.config.learning_rate) for c in found]
    assert points == [
        (seed, strategy, rate)
        for seed in (0, 1)
        for strategy in ("fedif", "krum")
        for rate in (0.3, 0.5, 0.7)
    ]
    first = found[0].config.run_dir
    assert first.parent == tmp_path / "out" / "my-sweep"
    assert first.name == f"strategy-fedif_learning-rate-0.3_seed0-{found[0].digest}"


def test_tables_of_cells_share_what_stands_above_them(tmp_path):
    text = """
        strategy = ["fedavg", "fedif"]
        num-clients = 20
        seeds = 2
        [[cells]]
        attack = "none"
        [[cells]]
        attack = "label-noise"
        malicious-fraction = [0.5, 0.7]
    """
    found = [c.config for c in cells(tmp_path, text)]
    assert [(c.seed, c.strategy, c.attack, c.malicious_fraction) for c in found] == [
        (seed, strategy, attack, fraction)
        for seed in (0, 1)
        for attack, fractions in (("none", (0.5,)), ("label-noise", (0.5, 0.7)))
        for strategy in ("fedavg", "fedif")
        for fraction in fractions
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("strategy = [", "my-sweep.toml"),
        ("", "is empty; allowed: keys of a run config"),
        ("colour = 1", "unknown key 'colour'"),
        ("fedif.gamma = []", "fedif.gamma = .*allowed: a list of one or more values"),
        ("fedif.gamma = [0.1, 0.1]", "names the cell 'fedif.gamma-0.1_seed0' twice"),
        ("fedif.gamma = [0.1, 2.0]", "fedif.gamma = 2.0; allowed: a number > 0 and <= 1"),
        ("seeds = 0", "seeds = 0; allowed: an integer >= 1"),
        ("seeds = 2\nseed = [1]", "seeds = 2; allowed: an integer >= 1, without seed"),
        ('name = "../up"', "name = '../up'; allowed: letters"),
        ("cells = 3", r"cells: allowed: tables \[\[cells\]\]"),
        ("[[cells]]\nseed = 1", "cells: allowed: tables .*; seeds above them"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        cells(tmp_path, text)
