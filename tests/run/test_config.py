from __future__ import annotations

import pytest

from fedif_consortium.parts import server_parts
from fedif_flower.errors import ConfigError
from fedif_flower.messages.node_config import NodeConfig
from fedif_flower.run.config import RunConfig
from fedif_flower.settings import parse_overrides


def config(**overrides) -> RunConfig:
    values = {key.replace("_", "-"): value for key, value in overrides.items()}
    return RunConfig.from_run_config(values, server_parts())


@pytest.mark.parametrize(
    ("given", "resolved"),
    [
        ({"dataset": "digits"}, {"learning-rate": 0.05, "fedif.gamma": 0.3}),
        ({"dataset": "fashion-mnist"}, {"learning-rate": 0.001, "fedif.gamma": 0.4}),
        ({"dataset": "fashion-mnist", "fedif.gamma": 0.5}, {"fedif.gamma": 0.5}),
        ({"strategy": "fedavg"}, {"update-clipping": 0.0}),
        ({"strategy": "fedif"}, {"update-clipping": 2.0}),
        # A run that pays bounds updates, where they have coefficients.
        ({"strategy": "fedavg", "statement.budget": "1000"}, {"update-clipping": 2.0}),
        ({"strategy": "median", "statement.budget": "1000"}, {"update-clipping": 0.0}),
    ],
)
def test_what_auto_stands_for(given, resolved):
    assert config(**given).to_mapping().items() >= resolved.items()


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("fraction-train", float("nan"), "a number"),
        ("learning-rate", "fast", "a number > 0 or 'auto'"),
        ("fedif.gamma", 0, "> 0 and <= 1 or 'auto'"),
        ("dataset", "mnist", "fashion-mnist"),
        ("device", "gpu", "cuda:N"),
        ("poison-ratio-min", 0.9, "poison-ratio-max"),
        ("min-valid-replies", 11, "10 clients"),
        ("run-name", "../elsewhere", "folder"),
        ("banana", 3, "unknown key"),
    ],
)
def test_error_names_key_value_and_what_is_allowed(key, value, allowed):
    with pytest.raises(ConfigError) as error:
        RunConfig.from_run_config({key: value})
    assert key in str(error.value)
    assert allowed in str(error.value)
    assert repr(value) in str(error.value) or key == "banana"


def test_digest_ignores_where_results_go_and_nothing_else():
    parsed = config()
    assert config(output_dir="elsewhere", run_name="x").digest() == parsed.digest()
    for key, value in {"seed": 1, "fedif.gamma": 0.9, "eval_every": 2}.items():
        assert config(**{key: value}).digest() != parsed.digest()


@pytest.mark.parametrize("text", ["seed", "seed=", "seed = 5", "data-dir=a/b", 'a="b"c', "seed=5,"])
def test_overrides_that_flwr_would_skip_or_misread_are_refused(text):
    with pytest.raises(ConfigError):
        parse_overrides(text)


def test_node_config():
    node = NodeConfig.from_node_config({"partition-id": 3, "num-partitions": 10, "attack": "none"})
    assert (node.partition_id, node.num_partitions, node.attack) == (3, 10, "none")
    own = NodeConfig.from_node_config({"partition-id": 12, "data-dir": "somewhere"})
    assert own == NodeConfig.from_node_config({"partition-id": 12, "data-path": "somewhere"})


@pytest.mark.parametrize(
    ("node_config", "reason"),
    [
        ({"partition-id": 0, "data-dir": "a", "data-path": "b"}, "are both given"),
        ({"data-dir": "x"}, "partition-id is missing"),
        ({"partition-id": 1}, "needs num-partitions .* or data-dir"),
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
    read = RunConfig.of_records(written.to_mapping())
    assert read.settings_of("strategy") == {"distances": "state"}
    assert read.digest() == written.digest()
    with pytest.raises(ConfigError, match=r"metrics.port = 9100: this app has no part"):
        written.require_heard(())
