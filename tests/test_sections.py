"""Settings that are read off constructors."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import pytest
from pydantic import model_validator

from fedif_flower import FedIF, Validation
from fedif_flower.attacks import ATTACKS
from fedif_flower.constructors import arguments
from fedif_flower.errors import ConfigError, require
from fedif_flower.foreign import read_toml
from fedif_flower.making import make
from fedif_flower.registry import Registry
from fedif_flower.run.config import RunConfig
from fedif_flower.sections import section
from fedif_flower.settings import Setting, Settings, setting, take_section
from fedif_flower.stages import FedAdam
from fedif_flower.strategies.registry import STRATEGIES
from fedif_flower.tasks.config import TASKS

if TYPE_CHECKING:
    from somewhere import Maker


class Wheel:
    def __init__(
        self, size: Annotated[int, Setting("in inches", ge=1)] = 26, *, plain: float = 0.5
    ) -> None:
        self.size, self.plain = size, plain


class Bicycle:
    made_of: ClassVar = {"front": Wheel, "back": partial(Wheel, size=28), "bell": None}

    def __init__(
        self,
        rider: str,
        front: Wheel,
        back: Wheel,
        *,
        bell: Annotated[bool, Setting("whether it rings")] = True,
        gears: Annotated[float | None, Setting("how many", gt=0, auto="as built")] = None,
    ) -> None:
        self.rider, self.front, self.back, self.bell, self.gears = rider, front, back, bell, gears


def tandem(riders: int = 2, rider: str = "nobody") -> str:
    return f"{riders} {rider}"


SHOP = Registry("bicycle", {"city": Bicycle, "tandem": tandem}, offered=("rider",))


def test_settings_are_the_declared_arguments_and_those_of_the_parts():
    assert list(arguments(Bicycle)) == ["gears", "size", "plain"]
    assert section(SHOP, "city").describe() == [
        ("city.gears", "auto", "a number > 0 or 'auto'", "how many; `auto`: as built"),
        ("city.size", 26, "an integer >= 1", "in inches"),
        ("city.plain", 0.5, "a number", ""),
    ]


class Racer(Bicycle):
    """Hands on what it does not know, and has an annotation for type checkers alone."""

    def __init__(
        self, rider, front, back, *, weight: float = 7, maker: Maker = None, **base
    ) -> None:
        super().__init__(rider, front, back, **base)
        self.weight, self.maker = weight, maker


def test_a_subclass_has_its_own_settings_and_those_of_its_base():
    assert list(arguments(Racer)) == ["gears", "weight", "size", "plain"]
    racer = make("racer", Racer, {"rider": "Ada"}, {"weight": 6.5, "gears": 2.0, "size": 20})
    assert (racer.weight, racer.gears, racer.front.size) == (6.5, 2.0, 20)

    class Forgetful(Bicycle):
        def __init__(self, rider, **base):
            super().__init__(rider, **base)

    with pytest.raises(ConfigError, match="racer: its base class needs 'front': name the argument"):
        make("racer", Forgetful, {"rider": "Ada"})


class Trimmed(FedIF):
    """A rule as a user writes it."""

    def __init__(self, validation: Validation, *, trim: float = 0.1, **base: Any) -> None:
        super().__init__(validation, **base)
        self.trim = trim


class Slow(FedIF):
    """A rule with a default of its own."""

    def __init__(self, validation: Validation, *, gamma: float = 0.2, **base: Any) -> None:
        super().__init__(validation, gamma=gamma, **base)


TRIMMED, SLOW = (f"{__name__}:{kind.__name__}" for kind in (Trimmed, Slow))


@pytest.mark.parametrize(
    ("strategy", "gamma"),
    [("fedif", 0.4), ("fedif_flower:FedIF", 0.4), (TRIMMED, 0.4), (SLOW, 0.2)],
)
def test_gamma_goes_by_the_class_whatever_it_is_called(strategy, gamma):
    section = strategy.rpartition(":")[2]
    run_config = {"strategy": strategy, "dataset": "fashion-mnist"}
    config = RunConfig.from_run_config(run_config).completed()
    assert config.settings_of("strategy").get("gamma", 0.3) == gamma
    assert config.to_mapping()[f"{section}.gamma"] == gamma
    explicit = RunConfig.from_run_config({**run_config, f"{section}.gamma": 0.3})
    assert explicit.completed().to_mapping()[f"{section}.gamma"] == 0.3


def test_defaults_of_own_parts_are_recorded_and_read_again():
    run_config = {"strategy": TRIMMED, "Trimmed.smooth-update": False}
    config = RunConfig.from_run_config(run_config).completed()
    own_values = {k: v for k, v in config.to_mapping().items() if k.startswith("Trimmed.")}
    assert own_values == {
        **{"Trimmed.gamma": 0.3, "Trimmed.trim": 0.1, "Trimmed.weight-normalization": True},
        **{"Trimmed.round-normalization": True, "Trimmed.smooth-update": False},
        **{"Trimmed.bias-correction": False, "Trimmed.weight-scope": "participants"},
    }
    read = RunConfig.of_records(config.to_mapping())
    assert (read.digest(), read.completed().digest()) == (config.digest(), config.digest())


def make_rule(trim: float = 0.1) -> FedIF:
    raise NotImplementedError


def test_two_own_parts_with_one_section_are_refused():
    run_config = {"strategy": f"{__name__}:make_rule", "attack": f"{__name__}:nested.make_rule"}
    with pytest.raises(ConfigError, match=r"has the section \[make_rule\] as well; name one"):
        RunConfig.from_run_config(run_config).completed()


class nested:  # noqa: N801
    make_rule = staticmethod(make_rule)


def krum(num_selected: int = 3) -> FedIF:
    raise NotImplementedError


def pace(seconds: float = 3.0) -> FedIF:
    raise NotImplementedError


def median(trim: float = 0.1) -> FedIF:
    raise NotImplementedError


@pytest.mark.parametrize(
    ("run_config", "refused", "section"),
    [
        # The value is the built-in krum's default: it would be left out.
        ({"strategy": f"{__name__}:krum", "krum.num-selected": 1}, "strategy", "krum"),
        ({"strategy": f"{__name__}:krum", "krum.num-selected": 2}, "strategy", "krum"),
        ({"attack": f"{__name__}:krum"}, "attack", "krum"),
        ({"attack": f"{__name__}:pace"}, "attack", "pace"),
        ({"attack": f"{__name__}:median", "strategy": "median"}, "attack", "median"),
    ],
)
def test_an_own_part_whose_section_is_there_already_is_refused(run_config, refused, section):
    words = f"{refused} = '{__name__}:{section}': there is a section [{section}] already"
    with pytest.raises(ConfigError, match=re.escape(words)):
        RunConfig.from_run_config(run_config)


@pytest.mark.parametrize("field", ["strategy", "attack"])
def test_an_own_part_may_be_called_like_a_built_in_one_that_has_no_settings(field):
    run_config = {field: f"{__name__}:median", "median.trim": 0.2}
    assert RunConfig.from_run_config(run_config).settings_of(field) == {"trim": 0.2}


def test_settings_of_own_parts_come_as_text_where_flwr_run_takes_no_others():
    run_config = {"strategy": TRIMMED, "own-settings": "Trimmed.trim=0.2 Trimmed.gamma=0.5"}
    config = RunConfig.from_run_config(run_config)
    assert config.settings_of("strategy") == {"trim": 0.2, "gamma": 0.5}
    direct = {"strategy": TRIMMED, "Trimmed.trim": 0.2, "Trimmed.gamma": 0.5}
    assert config == RunConfig.from_run_config(direct)
    assert config.digest() == RunConfig.from_run_config(direct).digest()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Trimmed.trim", "own-settings: cannot read 'Trimmed.trim'; expected KEY=VALUE"),
        ("seed=3", "own-settings = 'seed'; allowed: a key with a section, like 'Scaled.factor'"),
        ("Trimmed.trim=1.0", "own-settings = 'Trimmed.trim'; allowed: a key with"),
        ("Trimed.trim=1.0", "unknown key 'Trimed.trim'|no part with a section .Trimed."),
        (3, "own-settings = 3; allowed: a string"),
    ],
)
def test_what_is_wrong_with_settings_as_text_is_named(text, message):
    run_config = {"strategy": TRIMMED, "Trimmed.trim": 0.1, "own-settings": text}
    with pytest.raises(ConfigError, match=message):
        RunConfig.from_run_config(run_config)


class OwnStep:
    """A rule that returns a step, as own-parts.md has them: without ``gives_weights``."""

    def __call__(self, updates):
        return updates.client_updates.median(dim=0).values


class Adaptive(FedAdam):
    """A server optimizer that moves each parameter by itself."""


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"strategy": "median"}, "strategy 'median'"),
        ({"strategy": f"{__name__}:OwnStep"}, f"strategy '{__name__}:OwnStep'"),
        ({"server-optimizer": f"{__name__}:Adaptive"}, f"server-optimizer '{__name__}:Adaptive'"),
    ],
)
def test_what_gives_no_coefficients_is_refused_with_attribution_by_its_class(settings, named):
    with pytest.raises(ConfigError, match=f"attribution = 'simpson'; allowed: 'off' with {named}"):
        RunConfig.from_run_config({**settings, "attribution": "simpson"})
    RunConfig.from_run_config(settings)


def test_parts_are_made_first_and_what_is_bound_stays():
    bicycle = make("city", Bicycle, {"rider": "Ada", "model": 3}, {"size": 20, "gears": 7.0})
    assert (bicycle.rider, bicycle.front.size, bicycle.back.size) == ("Ada", 20, 28)
    assert (bicycle.bell, bicycle.gears, bicycle.front.plain) == (True, 7.0, 0.5)
    with pytest.raises(
        ConfigError, match="city needs the argument 'rider', which nobody provides; provided: model"
    ):
        make("city", Bicycle, {"model": 3})


def test_a_function_gets_what_it_names_and_any_keyword_gets_the_rest():
    def function(validation, *flower, extra=1, **base):
        return validation, extra, base

    offered = {"validation": "v", "model": "m"}
    rest = {"seed": 3}
    assert make("it", function, offered, {}, rest) == ("v", 1, {"seed": 3})
    assert make("it", lambda model: model, offered, {}, rest) == "m"


@pytest.mark.parametrize("registry", [STRATEGIES, ATTACKS, TASKS], ids=lambda r: r.kind)
def test_every_built_in_setting_has_words_and_a_default(registry):
    for name in registry.built_in:
        for key, default, allowed, words in section(registry, name).describe():
            assert key.startswith(f"{name}.")
            assert default is not None
            assert allowed
            assert words.partition(";")[0]


@pytest.mark.parametrize(
    ("run_config", "message"),
    [
        ({"strategy": "shapfed", "fedif.gamma": 0.5}, "fedif.gamma = 0.5; allowed: only with str"),
        ({"strategy": "fedsv", "fedsv.gamma": 0.5}, "unknown key 'fedsv.gamma'"),
        ({"strategy": "krum", "krum.distance": "state"}, "did you mean krum.distances?"),
        ({"attack": "label-noise", "fang.distance": 2.0}, "allowed: only with attack 'fang'"),
        ({"cloud.height": 3}, "cloud.height = 3: this app has no part with a section [cloud]"),
    ],
)
def test_a_key_that_the_chosen_one_does_not_take_is_refused(run_config, message):
    with pytest.raises(ConfigError) as caught:
        RunConfig.from_run_config(run_config)
    assert message in str(caught.value)


def test_a_section_survives_copies_parts_and_text():
    config = RunConfig.from_run_config({"strategy": "krum", "krum.distances": "state"})
    assert config.settings_of("strategy") == {"distances": "state"}
    for copy in (config.replace(seed=3), RunConfig.from_json(config.to_json())):
        assert copy.to_mapping()["krum.distances"] == "state"
    assert "krum.distances" not in config.replace(strategy="fedif").to_mapping()
    assert json.loads(config.to_json())["krum.num-selected"] == 1


def test_what_is_at_its_default_is_not_part_of_what_a_run_is():
    plain = RunConfig()
    explicit = RunConfig(**{"fedif.gamma": 0.3, "krum.distances": "parameters"})
    assert (plain, plain.digest()) == (explicit, explicit.digest())


COLOURS = {"red": 1}


class Own(Settings):
    """Two of the four settings below."""

    low: int = setting(1, "the least", ge=0)
    high: int = setting(5, "the most", ge=0)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        require(self.low <= self.high, "low", self.low, f"<= high = {self.high}")
        return self


class Both(Own):
    """All of them."""

    learning_rate: float = setting(0.1, "of SGD", gt=0, le=1, auto="by task")
    colour: str = setting("red", "of the plot", choices=COLOURS, changes_result=False)
    kind_of_noise: Literal["white", "pink"] = setting("white", "of the labels")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"low": -1}, "low = -1; allowed: an integer >= 0"),
        ({"low": 6}, "low = 6; allowed: <= high = 5"),
        ({"learning_rate": 0}, "learning_rate = 0; allowed: a number > 0 and <= 1 or 'auto'"),
        ({"learning-rate": 0}, "learning-rate = 0; allowed: a number > 0 and <= 1 or 'auto'"),
        ({"colour": "blue"}, "colour = 'blue'; allowed: red"),
        ({"kind_of_noise": "red"}, "kind_of_noise = 'red'; allowed: white, pink"),
        ({"loud": 1}, "unknown key 'loud'; known keys: low, high, learning_rate"),
    ],
)
def test_an_error_speaks_as_the_caller_does(settings, message):
    with pytest.raises(ConfigError) as error:
        Both(**settings)
    assert str(error.value).startswith(message)


def test_a_copy_is_checked_and_a_part_keeps_its_values():
    settings = Both(high=9, learning_rate=0.5)
    assert settings.replace(low=9).high == 9
    with pytest.raises(ConfigError, match="low = 10"):
        settings.replace(low=10)
    assert settings.extract(Own) == Own(high=9)


def test_a_settings_file_and_its_sections(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text("\ufefflow = 2\n[a]\nb = 1\n[a.c]\nd = 3\n")
    content = read_toml(path)
    assert take_section(content, "a") == {"b": 1, "c": {"d": 3}}
    assert content == {"low": 2}
    assert take_section(content, "a") == {}
    with pytest.raises(ConfigError, match=r"^low = 2; allowed: a section, \[low\]$"):
        take_section(content, "low")
