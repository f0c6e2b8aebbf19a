from __future__ import annotations

from typing import Literal, Self

import pytest
from pydantic import model_validator

from fedif_flower.errors import ConfigError
from fedif_flower.foreign import read_toml
from fedif_flower.settings import RefusedValueError, Settings, setting, take_section

COLOURS = {"red": 1}


class Own(Settings):
    """Two of the four settings below."""

    low: int = setting(1, "the least", ge=0)
    high: int = setting(5, "the most", ge=0)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low > self.high:
            raise RefusedValueError("low", f"<= high = {self.high}")
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


def test_what_a_run_config_needs_is_read_off_the_declarations():
    assert Both.defaults()["learning-rate"] == "auto"
    assert "colour" not in Both().identity()
    allowed, words = "a number > 0 and <= 1 or 'auto'", "of SGD; `auto`: by task"
    assert ("learning-rate", "auto", allowed, words) in Both.describe()


def test_a_settings_file_and_its_sections(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text("low = 2\n[a]\nb = 1\n[a.c]\nd = 3\n")
    content = read_toml(path)
    outer = take_section(content, "a")
    assert (take_section(outer, "c", "a.c"), outer, content) == ({"d": 3}, {"b": 1}, {"low": 2})
    assert take_section(content, "a") == {}
    with pytest.raises(ConfigError, match=r"a\.low = 2; allowed: a section, \[a\.low\]"):
        take_section(content, "low", "a.low")
