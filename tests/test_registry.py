"""Names from outside of the package, resolved in one place."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest
from flwr.app import ArrayRecord, Context, Message, RecordDict
from torch import Tensor

from fedif_flower.attacks import ATTACKS, AttackConfig, build_behaviour
from fedif_flower.attacks.label_noise import LabelNoise
from fedif_flower.client.app import app
from fedif_flower.client.reply import train_round
from fedif_flower.client.trust import require_trusted
from fedif_flower.errors import ConfigError
from fedif_flower.listing import line_of
from fedif_flower.local_methods import LOCAL_METHODS
from fedif_flower.messages.client_config import ClientConfig
from fedif_flower.messages.instructions import ROUND_KEY, instructions
from fedif_flower.messages.node_config import NodeConfig
from fedif_flower.registry import IN_PROCESS, _installed
from fedif_flower.round import RoundUpdates
from fedif_flower.run.config import RunConfig
from fedif_flower.run.federation import run_federation
from fedif_flower.run.loaded_task import load_task
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.strategies.config import SCREENS, default_clipping
from fedif_flower.strategies.registry import STRATEGIES
from fedif_flower.tasks.config import TASKS, TaskConfig
from fedif_flower.tasks.registry import build_task
from tests.client.test_preflight import make_task

MODULE = """
import torch

from fedif_flower import Task
from fedif_flower.attacks import Behaviour
from fedif_flower.strategies import ScreenedStrategy

class Rotate(Behaviour):
    def __init__(self, ratio): self.ratio = ratio

def make(config, ratio, turns: int = 1): return Rotate(turns)

class Plain(ScreenedStrategy):
    def __init__(self, trim: float = 0.1, **base): super().__init__(**base)

def task(named: str = "t"):
    splits = dict.fromkeys(("client_data", "validation_data", "test_data"), data)
    return Task(name=named, model=torch.nn.Identity, **splits)

def data(site):
    inputs = torch.randn(8, 2, generator=torch.Generator().manual_seed(1))
    return inputs, (inputs[:, 0] > 0).long()

line = Task(
    name="line",
    model=lambda: torch.nn.Linear(2, 2),
    client_data=data,
    validation_data=data,
    test_data=data,
)

number = 3
"""


@pytest.fixture
def package(tmp_path, monkeypatch) -> Iterator[str]:
    """A package that is installed and has an entry point of each kind."""
    name = "fedif_names_example"
    (tmp_path / f"{name}.py").write_text(MODULE)
    (tmp_path / f"{name}_broken.py").write_text("1 / 0")
    information = tmp_path / f"{name}-1.2.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    (information / "entry_points.txt").write_text(
        f"[fedif_flower.attacks]\nrotate = {name}:Rotate\n"
        f"[fedif_flower.tasks]\nt = {name}:task\n"
        f"[fedif_flower.strategies]\nplain = {name}:Plain\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    _installed.cache_clear()
    yield name
    sys.modules.pop(name, None)
    _installed.cache_clear()


def test_a_name_is_built_in_or_an_entry_point_or_an_import(package):
    config = AttackConfig(attack="rotate", poison_ratio_min=0.4, poison_ratio_max=0.4)
    assert build_behaviour(config, partition_id=0, seed=0).ratio == pytest.approx(0.4)
    made = build_behaviour(
        config.replace(**{"attack": f"{package}:make", "make.turns": 7}), partition_id=0, seed=0
    )
    assert made.ratio == 7
    assert ATTACKS["label-noise"] is LabelNoise
    assert build_task(RunConfig(task="t")).name == "t"
    assert build_task(RunConfig(task=f"{package}:task")).name == "t"
    named = RunConfig(**{"task": f"{package}:task", "task.named": "u"})
    assert build_task(named.extract(TaskConfig)).name == "u"
    assert default_clipping("plain") == 0.0
    for section in ("plain", "Plain"):  # As the entry point, and as the class.
        own_settings = {"own-settings": f"{section}.trim=0.2"}
        for settings in ({f"{section}.trim": 0.2}, own_settings):
            chosen = RunConfig.from_run_config({"strategy": "plain", **settings})
            assert chosen.settings_of("strategy") == {"trim": 0.2}
            assert chosen.to_mapping()["plain.trim"] == 0.2
    with pytest.raises(ConfigError, match=r"Plain.trim = 0.3: plain.trim is the same setting"):
        RunConfig.from_run_config({"strategy": "plain", "plain.trim": 0.2, "Plain.trim": 0.3})
    assert ATTACKS.sources()["rotate"] == f"{package} 1.2: {package}:Rotate"


def test_a_name_of_several_things_is_refused_and_listed_with_all_of_them(
    package, tmp_path, monkeypatch
):
    more = tmp_path / "more" / "fedif_more_example-2.0.dist-info"
    more.mkdir(parents=True)
    (more / "METADATA").write_text("Metadata-Version: 2.1\nName: more\nVersion: 2.0\n")
    (more / "entry_points.txt").write_text(
        "[fedif_flower.attacks]\nrotate = more:Rotate\nsign-flip = more:Rotate\n"
    )
    monkeypatch.syspath_prepend(more.parent)
    _installed.cache_clear()
    first, second = f"{package} 1.2: {package}:Rotate", "more 2.0: more:Rotate"
    for name, origins in {
        "rotate": f"{second}; {first}",
        "sign-flip": f"built in; {second}",
    }.items():
        refusal = f"attack = '{name}' stands for several: {origins}; allowed: module:object"
        with pytest.raises(ConfigError, match=re.escape(refusal)):
            RunConfig.from_run_config({"attack": name})
        assert ATTACKS.sources()[name] == origins
        assert refusal in line_of(ATTACKS, name)
    with pytest.raises(ConfigError, match="stands for several"):
        ATTACKS.load("rotate")
    assert RunConfig.from_run_config({"attack": "scaling"}).attack == "scaling"
    assert ATTACKS.sources()["scaling"] == "built in"


@pytest.mark.parametrize(
    ("key", "name", "sentence"),
    [
        ("attack", "nowhere", r"attack = 'nowhere'; allowed: none, label-noise, .*, module:object"),
        (
            "attack",
            "no_such:Attack",
            "attack = .*No module named 'no_such'; is its package installed .*PYTHONPATH names$",
        ),
        ("attack", "{0}_broken:X", r"cannot import '{0}_broken:X': ZeroDivisionError: [a-z ]*$"),
        ("attack", "{0}:Missing", r"cannot import '{0}:Missing': AttributeError: .*'Missing'$"),
        ("attack", "{0}:number", r"attack = '{0}:number' is of type int; allowed: a fedif_flower"),
        (
            "attack",
            "{0}:Plain",
            r"attack = '{0}:Plain' is the class Plain; allowed: a fedif_flower",
        ),
        (
            "attack",
            "builtins:dict",
            r"attack = 'builtins:dict' is the class dict; allowed: a fedif_",
        ),
        (
            "attack",
            "math:hypot",
            r"its signature cannot be read, .*: no signature .*; allowed",
        ),
        ("task", "{0}:number", r"is of type int; allowed: a fedif_flower\."),
        ("task", "my task", r"task = 'my task'; allowed: images, t, module:object"),
        ("task", "this-app:hospitals", "this app brings no task along"),
    ],
)
def test_a_name_that_leads_nowhere_is_one_sentence_that_says_what_was_tried(
    package, key, name, sentence
):
    name = name.format(package)

    def build() -> object:
        if key == "task":
            return build_task(RunConfig(task=name))
        return build_behaviour(AttackConfig(attack=name), partition_id=0, seed=0)

    with pytest.raises(ConfigError, match=sentence.format(package)) as caught:
        build()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "key", ["strategy", "attack", "local-method", "screen", "server-optimizer"]
)
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "json:loads",
            "{0} 'json:loads' needs the argument 's', which nobody provides; provided: ",
        ),
        (
            "json:JSONDecoder",
            "{0} = 'json:JSONDecoder' is the class JSONDecoder; allowed: a fedif_",
        ),
        ("math:pi", "{0} = 'math:pi' is of type float; allowed: a fedif_flower"),
    ],
)
def test_what_cannot_be_what_a_key_names_is_refused_before_data_are_read(key, name, sentence):
    def read_nothing(site):
        raise AssertionError("data are read")

    task = replace(make_task(), validation_data=read_nothing, test_data=read_nothing)
    with pytest.raises(ConfigError, match=f"^{sentence.format(key)}"):
        load_task(RunConfig.from_run_config({key: name, "task": "this-app:line"}), task)


@pytest.mark.parametrize("key", ["task", "attack"])
def test_a_node_imports_only_from_packages_that_its_operator_allows(key, monkeypatch):
    monkeypatch.delitem(sys.modules, "ray", raising=False)  # No simulation is at work here.
    config = ClientConfig(**{key: "os.path:join"}, num_clients=2)
    node = NodeConfig(partition_id=0, num_partitions=2)
    LocalGrid(app, 0)  # Messages need a task that sends them.
    told = instructions(config, make_task(), run="r")
    told[ROUND_KEY] = 1
    message = Message(RecordDict({"config": told, "arrays": ArrayRecord()}), 1, "train")
    context = Context(1, 1, {"partition-id": 0, "num-partitions": 2}, RecordDict(), {})
    with pytest.raises(ConfigError, match=rf"{key} = 'os.path:join': this node imports nothing"):
        train_round(message, context)
    require_trusted(config, node.replace(import_from="json os"))
    require_trusted(ClientConfig(task="images", attack="none"), node)


def test_clients_in_this_very_process_import_what_its_user_names(tmp_path, package):
    settings = {
        **{"task": f"{package}:line", "attack": f"{package}:Rotate", "num-clients": 2},
        **{"strategy": "fedif_flower.aggregators:Median", "fraction-train": 1.0, "device": "cpu"},
        **{"num-server-rounds": 1, "output-dir": str(tmp_path / "runs")},
    }
    config = RunConfig.from_run_config(settings)
    run_dir = run_federation(LocalGrid(app, 2), config)
    assert run_dir.name.startswith("fedif_flower.aggregators-Median-line-")
    assert not IN_PROCESS.get()


@pytest.mark.parametrize("registry", [TASKS, ATTACKS, LOCAL_METHODS, SCREENS, STRATEGIES])
def test_every_name_has_one_line_of_its_own(registry):
    lines = [line_of(registry, name) for name in registry.sources()]
    assert len(set(lines)) == len(lines)
    for line in lines:
        assert 5 < len(line) < 120
        assert not {"`", "\n", "\\"} & set(line), line
        assert not re.search(r"\b(odot|sim|lVert|Return|mu|sigma|Delta)\b|\| [a-z]+ \||  ", line), (
            line
        )


def test_a_rule_that_is_there_already_is_taken_as_it_is():
    """It can be called, but with updates: nothing is made by that."""
    assert STRATEGIES[f"{__name__}:NEAREST"]() is NEAREST
    config = RunConfig.from_run_config({"strategy": f"{__name__}:NEAREST"}).completed()
    assert config.build("strategy", Nearest, {}) is NEAREST
    with pytest.raises(ConfigError, match="NEAREST' is of type Nearest; allowed: a fedif_flower"):
        ATTACKS.load(f"{__name__}:NEAREST")


def test_what_another_package_brings_is_described_and_an_error_hides_nothing():
    assert line_of(STRATEGIES, "tests.test_registry:Nearest") == "Take the nearest"
    gone = "tests.nowhere:Nearest"
    assert f"cannot import '{gone}'" in line_of(STRATEGIES, gone)


class Nearest:
    """Take the nearest."""

    def __call__(self, updates: RoundUpdates) -> Tensor:
        return updates.client_updates[0]


NEAREST = Nearest()
