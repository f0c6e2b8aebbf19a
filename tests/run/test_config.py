from __future__ import annotations

import re
import signal
import tomllib
from pathlib import Path

import pytest
from flwr.app import Context, RecordDict
from flwr.common.config import flatten_dict

from client_app import app as client_app
from fedif_consortium.parts import server_parts
from fedif_flower.client.trust import client_site
from fedif_flower.errors import ConfigError
from fedif_flower.messages.node_config import NodeConfig
from fedif_flower.run.config import RunConfig, with_hyphens
from fedif_flower.run.loaded_task import site_of
from fedif_flower.run.part import RunPart
from fedif_flower.run.parts import run_parts
from fedif_flower.run.preflight import read_config_and_count_nodes
from fedif_flower.run.recorder import RunRecorder
from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.server import nodes
from fedif_flower.settings import Scalar, Settings, in_section, parse_overrides, setting
from server_app import app as server_app
from tests.server.waiting import Clock, LateGrid


def config(**overrides) -> RunConfig:
    values = {key.replace("_", "-"): value for key, value in overrides.items()}
    return RunConfig.from_run_config(values, server_parts())


PAYS = {"attribution": "simpson", "statement.budget": "1000"}


@pytest.mark.parametrize(
    ("given", "resolved"),
    [
        ({"dataset": "digits"}, {"learning-rate": 0.05, "fedif.gamma": 0.3}),
        ({"dataset": "fashion-mnist"}, {"learning-rate": 0.001, "fedif.gamma": 0.4}),
        ({"dataset": "fashion-mnist", "fedif.gamma": 0.5}, {"fedif.gamma": 0.5}),
        ({"strategy": "fedavg"}, {"update-clipping": 0.0}),
        ({"strategy": "fedif"}, {"update-clipping": 2.0}),
        # A run that pays bounds updates.
        ({"strategy": "fedavg", **PAYS}, {"update-clipping": 2.0}),
        (
            {"strategy": "influence-descent", **PAYS},
            {"update-clipping": 2.0, "influence-descent.relative": True},
        ),
        ({"strategy": "influence-descent"}, {"influence-descent.relative": False}),
        (
            {"strategy": "fedif_flower:InfluenceDescent", **PAYS},
            {"InfluenceDescent.relative": True},
        ),
        (
            {
                "strategy": "influence-descent",
                **PAYS,
                "influence-descent.relative": False,
            },
            {"influence-descent.relative": False},
        ),
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
        ("run-name", "october\n", "folder's name of printable characters"),
        ("run-name", "\x1b[2J", "folder's name of printable characters"),
        ("run-name", "october\u202efdp", "folder's name of printable characters"),
        ("pace.quorum", 1.5, "a share below 1, or a whole number"),
        ("pace.grace", 3.0, "0 without a pace.quorum"),
        ("pace.late-rounds", -1, "an integer >= 0"),
        ("dataset", "batch_size", "fashion-mnist"),
        ("dataset", ["digits"], "fashion-mnist"),
        ("strategy", ["fedif"], "fedavg"),
        ("banana", 3, "unknown key"),
    ],
)
def test_error_names_key_value_and_what_is_allowed(key, value, allowed):
    with pytest.raises(ConfigError) as error:
        RunConfig.from_run_config({key: value})
    assert key in str(error.value)
    assert allowed in str(error.value)
    assert repr(value) in str(error.value) or key == "banana"


EIGHT = {"num-clients": 8, "min-valid-replies": 4}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"fraction-train": 0.25}, "<= the 2 clients of a round"),
        (
            {"fraction-train": 1.0, "pace.quorum": 3},
            "<= 3, the replies with which a round closes by pace.quorum = 3",
        ),
        # What comes late counts for the quorum as well; within its grace nobody needs to answer.
        ({"fraction-train": 1.0, "pace.quorum": 3, "pace.late-rounds": 9}, "by pace.quorum = 3"),
        ({"fraction-train": 1.0, "pace.quorum": 3, "pace.grace": 9.0}, "by pace.quorum = 3"),
        ({"fraction-train": 1.0, "pace.quorum": 0.25}, "<= 2, .* by pace.quorum = 0.25"),
        (
            {"pace.rounds": "buffered", "pace.buffer-size": 3},
            "<= 3, the replies with which a round closes by pace.buffer-size = 3",
        ),
    ],
)
def test_more_valid_replies_than_a_round_closes_with_are_refused(settings, words):
    with pytest.raises(ConfigError, match=f"^min-valid-replies = 4; allowed: .*{words}$"):
        RunConfig.from_run_config(EIGHT | settings)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        (
            {"fraction-train": 1.0, "pace.quorum": 4, "pace.grace": 60.0, "pace.timeout": 60.0},
            "pace.grace = 60.0; allowed: less than pace.timeout = 60.0",
        ),
        (
            {"pace.rounds": "buffered", "pace.buffer-size": 9},
            "pace.buffer-size = 9; allowed: <= 8, since num-clients = 8 are at work",
        ),
        (
            {"fraction-train": 0.5, "pace.quorum": 5},
            "pace.quorum = 5.0; allowed: <= the 4 clients that a round asks by num-clients = 8, "
            "fraction-train = 0.5",
        ),
        (
            {"fraction-train": 0.5, "pace.ask-more": 1.5, "pace.quorum": 7},
            "pace.quorum = 7.0; allowed: <= the 6 clients that a round asks by num-clients = 8, "
            "fraction-train = 0.5 and pace.ask-more = 1.5",
        ),
    ],
)
def test_a_round_that_cannot_close_by_its_quorum_is_refused(settings, error):
    with pytest.raises(ConfigError) as raised:
        RunConfig.from_run_config(EIGHT | settings)
    assert str(raised.value) == error


@pytest.mark.parametrize(
    ("settings", "fewest", "most"),
    [
        ({"fraction-train": 0.5}, 4, 4),
        ({"fraction-train": 0.25, "pace.ask-more": 4.0}, 8, 8),
        ({"fraction-train": 1.0, "pace.quorum": 4}, 4, 4),
        ({"fraction-train": 1.0, "pace.quorum": 0.5, "pace.grace": 9.0}, 4, 8),
        ({"pace.rounds": "buffered", "pace.buffer-size": 4}, 4, 4),
    ],
)
def test_how_many_replies_a_round_of_eight_clients_may_have(settings, fewest, most):
    parsed = RunConfig.from_run_config(EIGHT | settings)
    assert (parsed.fewest_replies, parsed.most_replies) == (fewest, most)


def test_digest_ignores_where_results_go_and_patience_and_nothing_else():
    parsed = config()
    patient = {"max_failed_rounds": 7, "checkpoint_every": 1, "pace.timeout": 60.0}
    assert config(output_dir="elsewhere", run_name="x", **patient).digest() == parsed.digest()
    for key, value in {"seed": 1, "fedif.gamma": 0.9, "eval_every": 2}.items():
        assert config(**{key: value}).digest() != parsed.digest()


@pytest.mark.parametrize(
    "text",
    [
        *("seed", "seed=", "seed = 5", "data-dir=a/b", 'a="b"c', "seed=5,", "seed=5 seed=6"),
        # In TOML these are a date, a time and a list.
        *("run-name=2026-11-28", "run-name=12:30:00", "strategy=[1,2]"),
    ],
)
def test_overrides_that_flwr_would_skip_or_misread_are_refused(text):
    with pytest.raises(ConfigError):
        parse_overrides(text)


def test_node_config():
    node = NodeConfig.from_node_config({"partition-id": 3, "num-partitions": 10, "attack": "none"})
    assert (node.partition_id, node.num_partitions, node.attack) == (3, 10, "none")
    own = NodeConfig.from_node_config({"partition-id": 12, "data-dir": "somewhere"})
    assert own == NodeConfig.from_node_config({"partition-id": 12, "data-path": "somewhere"})


def test_data_in_a_home_folder_lie_there_for_server_and_client(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    config = RunConfig.from_run_config({"data-dir": "~/x"})
    node = NodeConfig.from_node_config({"partition-id": 0, "num-partitions": 100})
    assert site_of(config).data_dir == Path("/home/ada/x")
    assert client_site(config, node).data_dir == Path("/home/ada/x")
    own = NodeConfig.from_node_config({"partition-id": 0, "data-dir": "~/own"})
    assert client_site(config, own).data_dir == Path("/home/ada/own")


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


MANIFEST = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
FLWR_RUN = flatten_dict(MANIFEST["tool"]["flwr"]["app"]["config"])  # What a ServerApp is handed.


@pytest.fixture(autouse=True)
def clock(monkeypatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(nodes, "time", found)
    return found


def small(output_dir: Path, **changed: Scalar) -> dict[str, Scalar]:
    own = {"num-server-rounds": 2, "local-epochs": 1, "output-dir": str(output_dir)}
    return {**FLWR_RUN, **own, "device": "cpu", **changed}


def through_the_door(grid: LocalGrid, run_config: dict[str, Scalar]) -> None:
    server_app(grid, Context(1, 1, {}, RecordDict(), run_config))


def test_a_wrong_setting_is_a_sentence_in_the_log_before_any_traceback(tmp_path, caplog):
    """Flower shows the lines of code that an error came from, and its words behind them."""
    with pytest.raises(ConfigError, match="learning-rate = -1"):
        through_the_door(LateGrid(client_app, 2), small(tmp_path, **{"learning-rate": -1.0}))
    told = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert told == ["learning-rate = -1.0; allowed: a number > 0 or 'auto'"]


@pytest.mark.parametrize(("wanted", "there"), [(100, 2), (2, 3)])
def test_another_number_than_is_simulated_ends_the_run_before_it_begins(tmp_path, wanted, there):
    told = f"num-clients = {wanted}, but {there} .* set num-clients = {there}, or .*nodes={wanted}"
    with pytest.raises(ConfigError, match=told):
        through_the_door(LateGrid(client_app, there), small(tmp_path, **{"num-clients": wanted}))
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (
            {"pace.rounds": "buffered", "pace.buffer-size": 2},
            "pace.rounds = 'buffered'; allowed: 'synchronous' in a simulation",
        ),
        ({"pace.late-rounds": 1}, "pace.late-rounds = 1; allowed: 0 in a simulation"),
    ],
)
def test_late_replies_are_refused_where_clients_are_simulated(tmp_path, settings, told):
    with pytest.raises(ConfigError, match=re.escape(told)):
        through_the_door(LateGrid(client_app, 2), small(tmp_path, **settings, **{"num-clients": 2}))
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("settings", "fewest"),
    [
        ({}, 2),
        ({"min-valid-replies": 3}, 30),
        ({"min-valid-replies": 3, "fraction-train": 0.29}, 11),
        # One of three would be asked, and three times as many are; a quarter of nine is three.
        ({"min-valid-replies": 3, "pace.ask-more": 3.0}, 3),
        ({"min-valid-replies": 3, "fraction-train": 1.0, "pace.quorum": 0.25}, 9),
        # All are at work, whatever the share that a round would draw.
        ({"min-valid-replies": 3, "pace.rounds": "buffered", "pace.buffer-size": 3}, 3),
        # Of fewer no round closes with its buffer, or with a quorum of its tenth.
        ({"min-valid-replies": 3, "pace.rounds": "buffered", "pace.buffer-size": 5}, 5),
        ({"pace.quorum": 4}, 40),
    ],
)
def test_real_nodes_are_waited_for_until_a_round_can_have_enough(settings, fewest, clock):
    class Coming(LocalGrid):
        """One more real node every second."""

        def get_node_ids(self):
            return super().get_node_ids()[: int(clock.now)]

    assert read_config_and_count_nodes(Coming(client_app, 50), settings).num_clients == fewest


def test_a_share_that_is_no_number_is_an_error_of_its_own_key():
    with pytest.raises(ConfigError, match=r"^malicious-fraction = True; allowed: a number"):
        RunConfig.from_run_config({"malicious-fraction": True})


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"fedif.gamma": 2.0}, "fedif.gamma = 2.0"),
        ({"num-clients": 0}, "num-clients = 0; allowed: an integer >= 1 or 'auto'"),
        ({"resume": "auto"}, "num-clients = 'auto' with resume = 'auto'; allowed: the number"),
        # Though it would switch something off: somebody has written it down.
        ({"own-settings": "Foo.on=false"}, "Foo.on = False: this app has no part with a section"),
        ({"own-settings": "Foo.on=false", "num-clients": 4}, "Foo.on = False: this app has no"),
    ],
)
def test_what_is_wrong_is_said_before_anyone_is_waited_for(settings, error, clock):
    with pytest.raises(ConfigError, match=re.escape(error)):
        read_config_and_count_nodes(LocalGrid(client_app, 0), settings)
    assert clock.now == 0


def test_a_run_that_is_stopped_says_how_it_goes_on(tmp_path, caplog):
    class Stopped(LateGrid):
        def push_messages(self, messages):
            sent = list(messages)
            trains = any(message.metadata.message_type == "train" for message in sent)
            self.rounds = getattr(self, "rounds", 0) + trains
            if self.rounds == 3:
                raise SystemExit(signal.SIGTERM)  # As Ray makes of it.
            return super().push_messages(sent)

    few = {"attack": "sign-flip", "malicious-fraction": 0.1}
    settings = small(tmp_path, **{"num-server-rounds": 5, **few})
    with pytest.raises(SystemExit):
        through_the_door(Stopped(client_app, 3), settings)
    nobody = "malicious-fraction = 0.1 rounds to 0 of 3 clients, so no client attacks"
    assert nobody in caplog.messages
    (run_dir,) = tmp_path.iterdir()
    (told,) = (m for m in caplog.messages if m.startswith("stopped after"))
    said, _, keys = told.partition(" with ")
    assert said == "stopped after round 2 of 5; it goes on at round 3"
    through_the_door(LateGrid(client_app, 3), settings | parse_overrides(keys))
    assert [row["round"] for row in read_rows(run_dir / "rounds.csv")] == list("012345")


def test_a_run_that_is_stopped_behind_its_last_round_does_not_speak_of_another_one(
    tmp_path, caplog, monkeypatch
):
    def interrupt(*_):
        raise KeyboardInterrupt

    settings = small(tmp_path, **{"num-clients": 2})
    with monkeypatch.context() as patched:
        patched.setattr(RunRecorder, "on_end", interrupt)
        with pytest.raises(KeyboardInterrupt):
            through_the_door(LateGrid(client_app, 2), settings)
    (told,) = (m for m in caplog.messages if m.startswith("stopped after"))
    said, _, keys = told.partition(" with ")
    again = "model, report and summary are written again"
    assert said == f"stopped after round 2 of 2; all rounds are done; {again}"
    through_the_door(LateGrid(client_app, 2), settings | parse_overrides(keys))
    (run_dir,) = tmp_path.iterdir()
    assert (run_dir / "summary.json").is_file()


RULE = "fedif_studies.lab.bounded:rule"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"vlidation.vet": False}, "did you mean validation.vet"),
        ({"Validation.vet": False}, "did you mean validation.vet"),
        ({"attribution": "simpson", "Credit.length": 0}, "did you mean credit.length"),
        ({"maskin.mode": "off"}, "did you mean masking.mode?"),
        ({"strategy": RULE, "Rule.bounds": "off"}, "did you mean rule.bounds?"),
        ({"own-settings": "Foo.bar=false"}, "Foo.bar = False: this app has no part with a section"),
    ],
)
def test_a_slip_in_a_key_is_refused_though_it_switches_something_off(settings, words):
    """What would be switched off would stay on."""
    for parse in (RunConfig.from_run_config, RunConfig.from_flower):
        with pytest.raises(ConfigError, match=re.escape(words)):
            parse(settings, server_parts())


OF_OTHERS = {
    "others.mode": "off",
    "masking.mode": "off",
    "bounds.clip": 0.0,
    "x.y": "",
    "x.z": False,
}


def test_a_key_of_a_part_that_is_not_there_may_be_off_where_flower_sends_it_along():
    """Flower sends every key that an app lists along, and takes no others."""
    config = RunConfig.from_flower(OF_OTHERS)
    assert not OF_OTHERS.keys() & config.to_mapping().keys()
    with pytest.raises(ConfigError, match=r"unknown key 'fedavg\.mode'"):
        RunConfig.from_flower({"fedavg.mode": "off"})


@pytest.mark.parametrize("key", OF_OTHERS)
@pytest.mark.parametrize("parts", [None, run_parts()])
def test_a_key_of_a_part_that_is_not_there_is_refused_where_somebody_has_written_it(key, parts):
    """Whoever sets ``bounds.clip = 0.0`` would keep the bounds, which are called otherwise."""
    section = key.partition(".")[0]
    with pytest.raises(ConfigError, match=f"this app has no part with a section .{section}."):
        RunConfig.from_run_config({key: OF_OTHERS[key]}, parts)


def scaled_by(some_factor: float = 2.0):
    """Return an attack; its section has an underscore, as functions' names do."""
    raise NotImplementedError


def label_noise(some_share: float = 0.5):
    """Return an attack; but for the underscore it is called like a built-in one."""
    raise NotImplementedError


class Marked(RunPart):
    """A part whose section has an underscore."""

    class Marks(Settings, alias_generator=in_section("own_marks")):
        in_red: bool = setting(False, "their colour")

    settings = Marks


@pytest.mark.parametrize(
    ("settings", "keys"),
    [
        ({"num_clients": 4, "run-name": "x"}, {"num-clients": 4, "run-name": "x"}),
        ({"sign_guard.some_share": 0.2}, {"sign-guard.some-share": 0.2}),
        ({"label_noise.some_share": 0.2}, {"label-noise.some-share": 0.2}),
        (
            {"attack": f"{__name__}:scaled_by", "scaled_by.some_factor": 3.0},
            {"attack": f"{__name__}:scaled_by", "scaled_by.some-factor": 3.0},
        ),
        (
            {"attack": f"{__name__}:label_noise", "label_noise.some_share": 0.2},
            {"attack": f"{__name__}:label_noise", "label_noise.some-share": 0.2},
        ),
        ({"own_marks.in_red": True}, {"own_marks.in-red": True}),
    ],
)
def test_underscores_of_keywords_are_hyphens_but_in_a_name_of_ones_own(settings, keys):
    assert with_hyphens(settings, [Marked()]) == keys


def test_what_a_keyword_sets_of_a_function_of_ones_own_arrives():
    settings = {"attack": f"{__name__}:scaled_by", "scaled_by.some_factor": 3.0}
    config = RunConfig.from_run_config(with_hyphens(settings))
    assert config.settings_of("attack") == {"some_factor": 3.0}
