from __future__ import annotations

import pytest

from fedif_consortium.parts import server_parts
from fedif_flower.errors import ConfigError
from fedif_flower.messages.node_config import NodeConfig
from fedif_flower.run.config import RunConfig, default_run_config
from fedif_flower.settings import parse_overrides

DEFAULTS = default_run_config()


def config(**overrides) -> RunConfig:
    return RunConfig.from_run_config(
        DEFAULTS | {key.replace("_", "-"): value for key, value in overrides.items()},
        server_parts(),
    )


@pytest.mark.parametrize(
    ("overrides", "learning_rate", "gamma"),
    [
        ({"dataset": "digits"}, 0.05, 0.3),
        ({"dataset": "cifar10"}, 0.001, 0.3),
        ({"dataset": "fashion-mnist"}, 0.001, 0.4),
        ({"dataset": "fashion-mnist", "fedif.gamma": 0.5, "learning_rate": 1}, 1.0, 0.5),
    ],
)
def test_auto_depends_on_the_data_set(overrides, learning_rate, gamma):
    parsed = config(**overrides)
    assert (parsed.learning_rate, parsed.settings_of("strategy").get("gamma", 0.3)) == (
        learning_rate,
        gamma,
    )


@pytest.mark.parametrize(
    ("overrides", "multiple"),
    [
        ({"strategy": "fedavg"}, 0.0),
        ({"strategy": "fedif"}, 2.0),
        ({"strategy": "fedavg", "statement.budget": "1000", "attribution": "simpson"}, 2.0),
        ({"strategy": "median", "statement.budget": "1000"}, 0.0),
    ],
)
def test_a_run_that_pays_bounds_updates(overrides, multiple):
    assert config(**overrides).update_clipping == multiple


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("num-server-rounds", True, "an integer"),
        ("fraction-train", 0, "> 0 and <= 1"),
        ("fraction-train", float("nan"), "a number"),
        ("learning-rate", "fast", "a number > 0 or 'auto'"),
        ("fedif.gamma", 0, "> 0 and <= 1 or 'auto'"),
        ("dataset", "mnist", "fashion-mnist"),
        ("strategy", "fedsgd", "fedif, fedavg"),
        ("fedif.weight-normalization", 1, "true, false"),
        ("device", "gpu", "cuda:N"),
        ("data-dir", 3, "a string"),
        ("poison-ratio-min", 0.9, "poison-ratio-max"),
        ("assumed-malicious-fraction", 1.5, "<= 1 or 'auto'"),
        ("min-valid-replies", 11, "10 clients"),
        ("run-name", "../elsewhere", "folder"),
    ],
)
def test_error_names_key_value_and_what_is_allowed(key, value, allowed):
    with pytest.raises(ConfigError) as error:
        RunConfig.from_run_config(DEFAULTS | {key: value})
    assert key in str(error.value)
    assert repr(value) in str(error.value)
    assert allowed in str(error.value)


def test_unknown_keys_are_named_and_missing_ones_have_their_defaults():
    with pytest.raises(ConfigError, match="unknown key 'banana'"):
        RunConfig.from_run_config(DEFAULTS | {"banana": 3})
    assert RunConfig.from_run_config({}, server_parts()) == config()


def test_digest_ignores_where_results_go_and_nothing_else():
    parsed = config()
    assert config(output_dir="elsewhere", run_name="x").digest() == parsed.digest()
    for key, value in {"seed": 1, "fedif.gamma": 0.9, "eval_every": 2, "batch_size": 8}.items():
        assert config(**{key: value}).digest() != parsed.digest()


@pytest.mark.parametrize("text", ["seed", "seed=", "seed = 5", "data-dir=a/b", 'a="b"c', "seed=5,"])
def test_overrides_that_flwr_would_skip_or_misread_are_refused(text):
    with pytest.raises(ConfigError):
        parse_overrides(text)


def test_node_config():
    node = NodeConfig.from_node_config({"partition-id": 3, "num-partitions": 10, "attack": "none"})
    assert (node.partition_id, node.num_partitions, node.attack) == (3, 10, "none")
    own = NodeConfig.from_node_config({"partition-id": 12, "data-dir": "somewhere"})
    assert (own.partition_id, own.num_partitions, own.data_dir) == (12, None, "somewhere")
    hub = NodeConfig.from_node_config({"partition-id": 12, "data-path": "somewhere"})
    assert hub == own


@pytest.mark.parametrize(
    ("node_config", "reason"),
    [
        (
            {"partition-id": 0, "data-dir": "a", "data-path": "b"},
            "data-dir and data-path are both given",
        ),
        ({"data-dir": "x"}, "partition-id is missing"),
        ({"partition-id": 1}, "needs num-partitions .* or data-dir"),
        ({"partition-id": -1, "data-dir": "x"}, "partition-id = -1; allowed: an integer >= 0"),
        ({"partition-id": 5, "num-partitions": 5}, "0 <= partition-id < 5"),
        ({"partition-id": 0, "data-dirs": "x"}, "unknown key 'data-dirs'; did you mean data-dir"),
    ],
)
def test_node_config_errors(node_config, reason):
    with pytest.raises(ConfigError, match=reason):
        NodeConfig.from_node_config(node_config)


def test_records_are_read_without_the_parts_that_wrote_them():
    settings = {"strategy": "krum", "krum.distances": "state", "metrics.port": 9100}
    written = RunConfig.from_run_config(settings, server_parts())
    assert written.to_mapping()["metrics.port"] == 9100
    read = RunConfig.of_records(written.to_mapping())
    assert read.settings_of("strategy") == {"distances": "state"}
    assert read.digest() == written.digest()


def test_a_section_that_no_part_of_a_run_has_is_refused():
    config = RunConfig.from_run_config({"metrics.port": 9100}, server_parts())
    with pytest.raises(ConfigError, match=r"metrics.port = 9100: this app has no part"):
        config.require_heard(())
    assert config.replace(seed=3).to_mapping()["metrics.port"] == 9100
