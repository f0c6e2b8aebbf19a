"""Settings that are read off constructors."""

from __future__ import annotations

import json
from functools import partial
from typing import Annotated, ClassVar, Literal, Self

import pytest
from pydantic import model_validator

from fedif_flower.attacks import ATTACKS
from fedif_flower.errors import ConfigError, require
from fedif_flower.foreign import read_toml
from fedif_flower.registry import Registry
from fedif_flower.run.config import RunConfig
from fedif_flower.sections import arguments, make, section
from fedif_flower.settings import Setting, Settings, setting, take_section
from fedif_flower.strategies.registry import STRATEGIES
from fedif_flower.tasks.config import TASKS


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
    assert list(arguments(Bicycle)) == ["gears", "size"]
    assert section(SHOP, "city").describe() == [
        ("city.gears", "auto", "a number > 0 or 'auto'", "how many; `auto`: as built"),
        ("city.size", 26, "an integer >= 1", "in inches"),
    ]


def test_parts_are_made_first_and_what_is_bound_stays():
    made = make("city", Bicycle, {"rider": "Ada", "model": 3}, {"size": 20, "gears": 7.0})
    assert (made.rider, made.front.size, made.back.size) == ("Ada", 20, 28)
    assert (made.bell, made.gears, made.front.plain) == (True, 7.0, 0.5)
    with pytest.raises(ConfigError, match="city needs the argument 'rider'; it can have model"):
        make("city", Bicycle, {"model": 3})


def test_a_function_gets_what_it_names_and_any_keyword_gets_the_rest():
    def wanted(validation, *flower, extra=1, **base):
        return validation, extra, base

    offered, rest = {"validation": "v", "model": "m"}, {"seed": 3}
    assert make("it", wanted, offered, {}, rest) == ("v", 1, {"seed": 3})
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
    ("given", "message"),
    [
        ({"strategy": "shapfed", "fedif.gamma": 0.5}, "fedif.gamma = 0.5; allowed: only with str"),
        ({"strategy": "fedsv", "fedsv.gamma": 0.5}, "unknown key 'fedsv.gamma'"),
        ({"strategy": "krum", "krum.distance": "state"}, "did you mean krum.distances?"),
        ({"attack": "label-noise", "fang.distance": 2.0}, "allowed: only with attack 'fang'"),
        ({"cloud.height": 3}, "cloud.height = 3: this app has no part with a section [cloud]"),
    ],
)
def test_a_key_that_the_chosen_one_does_not_take_is_refused(given, message):
    with pytest.raises(ConfigError) as caught:
        RunConfig.from_run_config(given)
    assert message in str(caught.value)


def test_a_section_survives_copies_parts_and_text():
    config = RunConfig.from_run_config({"strategy": "krum", "krum.distances": "state"})
    assert config.settings_of("strategy") == {"distances": "state"}
    for copy in (config.replace(seed=3), RunConfig.from_json(config.to_json())):
        assert copy.to_mapping()["krum.distances"] == "state"
    assert "krum.distances" not in config.replace(strategy="fedif").to_mapping()
    assert json.loads(config.to_json())["krum.num-selected"] == 1


def test_what_is_at_its_default_is_not_part_of_what_a_run_is():
    plain, told = RunConfig(), RunConfig(**{"fedif.gamma": 0.3, "krum.distances": "parameters"})
    assert (plain, plain.digest()) == (told, told.digest())


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
    ("given", "message"),
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
def test_an_error_speaks_as_the_caller_does(given, message):
    with pytest.raises(ConfigError) as error:
        Both(**given)
    assert str(error.value).startswith(message)


def test_a_copy_is_checked_and_a_part_keeps_its_values():
    settings = Both(high=9, learning_rate=0.5)
    assert settings.replace(low=9).high == 9
    with pytest.raises(ConfigError, match="low = 10"):
        settings.replace(low=10)
    assert settings.part(Own) == Own(high=9)


def test_a_settings_file_and_its_sections(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text("\ufefflow = 2\n[a]\nb = 1\n[a.c]\nd = 3\n")
    content = read_toml(path)
    outer = take_section(content, "a")
    assert (take_section(outer, "c", "a.c"), outer, content) == ({"d": 3}, {"b": 1}, {"low": 2})
    assert take_section(content, "a") == {}
    with pytest.raises(ConfigError, match=r"a\.low = 2; allowed: a section, \[a\.low\]"):
        take_section(content, "low", "a.low")
