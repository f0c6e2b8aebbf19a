"""How a setting is declared: its type, default, range and words, once.

Every room declares its own settings as a frozen :class:`Settings` class. Run config, its defaults,
its errors and ``docs/configuration.md`` are read off these declarations.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic.fields import FieldInfo

from fedif_flower.errors import ConfigError

Scalar = bool | int | float | str
AUTO = "auto"
_ALIKE = 0.75  # Of 1: what may have been a slip of the finger.
_MOST_LISTED = 40  # Keys in an error.
_SIGNS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
_Part = TypeVar("_Part", bound="Settings")


def Setting(  # noqa: N802 (like pydantic's Field)
    words: str,
    *,
    choices: Collection[str] = (),
    allowed: str = "",
    auto: str = "",
    changes_result: bool = True,
    **field: Any,
) -> Any:
    """Return the range and words of a setting, as pydantic's ``Field``.

    A constructor declares its argument so, and checks it by :func:`require_settings`::

        gamma: Annotated[float, Setting("rate of the smooth update", gt=0, le=1)] = 0.3

    Parameters
    ----------
    words : str
        What it means, for the documentation.
    choices : collection of str
        The allowed names, read when a value is checked: a registry may grow. Empty: any.
    allowed : str
        What is allowed, where that does not follow from type, limits and choices.
    auto : str
        What ``"auto"`` stands for in a run config, where it then is the default. Empty: ``"auto"``
        is not allowed.
    changes_result : bool
        ``False`` for settings that say where or when something is written, or how long to wait.
    **field
        Limits ``ge``, ``gt``, ``le``, ``lt``, and ``pattern``, as ``Field`` takes them.
    """
    extra: Any = {
        "choices": choices,
        "allowed": allowed,
        "auto": auto,
        "changes_result": changes_result,
    }
    return Field(description=words, json_schema_extra=extra, **field)


def setting(default: Any, words: str, **declared: Any) -> Any:
    """Declare a setting of a :class:`Settings` class: its default, and a :func:`Setting`."""
    return Setting(words, default=default, **declared)


def quiet_setting(default: Any, words: str, **declared: Any) -> Any:
    """Declare a setting on which no result depends: where, when or how long."""
    return setting(default, words, changes_result=False, **declared)


def _nothing_or_at_least_one(bound: float) -> float:
    """Return a bound; raise ValueError for one that what is usual would not keep."""
    if 0 < bound < 1:
        raise ValueError
    return bound


NO_BOUND = "0 (no bound) or a number >= 1"
BoundOfUsual = Annotated[float, Field(ge=0), AfterValidator(_nothing_or_at_least_one)]
"""A bound in multiples of what is usual; its :func:`Setting` says ``allowed=NO_BOUND``."""

MaliciousFraction = Annotated[float, Setting("assumed share of malicious clients", ge=0, le=1)]


class Settings(BaseModel):
    """Settings that belong together: checked when made, immutable after.

    A value may be given under the field's name or under its run-config key (``batch_size``,
    ``batch-size``). A validator that compares several values calls
    :func:`~fedif_flower.errors.require` with the fields' names.

    Raises
    ------
    ConfigError
        Naming the key as it was given, its value and what is allowed.
    """

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        allow_inf_nan=False,
        alias_generator=lambda name: name.replace("_", "-"),
        validate_by_name=True,
        validate_by_alias=True,
    )

    if not TYPE_CHECKING:  # type checkers read the constructor's arguments off the fields

        def __init__(self, **values: Any) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise ConfigError(_explain(type(self), error, values)) from None

    @field_validator("*")
    @classmethod
    def _among_choices(cls, value: object, info: ValidationInfo) -> object:
        assert info.field_name is not None  # It is the validator of a field.
        choices = extra_of(cls.model_fields[info.field_name], "choices")
        if choices and value not in choices:
            raise ValueError
        return value

    def replace(self, **changes: Scalar) -> Self:
        """Return a copy with other values, checked."""
        values = self.model_dump(exclude_unset=True)
        values |= changes
        return type(self)(**values)

    def part(self, wanted: type[_Part]) -> _Part:
        """Return the values that ``wanted``, another class of settings, declares."""
        values = {name: getattr(self, name) for name in wanted.model_fields}
        return wanted(**values)

    def to_mapping(self) -> dict[str, Scalar]:
        """Return the values by run-config key."""
        return self.model_dump(by_alias=True)

    @classmethod
    def key_names(cls) -> list[str]:
        """Return the run-config keys, in the order of their declaration."""
        return [field.alias or name for name, field in cls.model_fields.items()]

    @classmethod
    def section_name(cls) -> str:
        """Return the section in which the keys stand; empty: they stand in none."""
        return cls.key_names()[0].rpartition(".")[0]

    @classmethod
    def defaults(cls) -> dict[str, Scalar]:
        """Return the run config's defaults by key: ``"auto"`` where that is allowed."""
        return {key: _default(field) for key, field in _fields_by_key(cls).items()}

    def identity(self) -> dict[str, Scalar]:
        """Return the values by key on which a result depends."""
        values = self.model_dump(by_alias=True)
        for key, field in _fields_by_key(type(self)).items():
            if not extra_of(field, "changes_result"):
                del values[key]
        return values

    @classmethod
    def describe(cls) -> list[tuple[str, Scalar | None, str, str]]:
        """Return key, default (``None``: none), what is allowed and what it means, of each."""
        return [
            (key, _default(field), _allowed(field), _words(field))
            for key, field in _fields_by_key(cls).items()
        ]


def in_section(section: str) -> Callable[[str], str]:
    """Return how the fields of a class are called in a run config: ``section.field-name``.

    A part of a run declares its settings so::

        class MetricsSettings(Settings, alias_generator=in_section("metrics")): ...
    """
    return lambda name: f"{section}.{name.replace('_', '-')}"


def parse_overrides(text: str) -> dict[str, Scalar]:
    """Parse ``KEY=VALUE ...`` as ``flwr run --run-config`` does, but refuse what it would skip.

    Raises
    ------
    ConfigError
        If the text is not a list of pairs, strings being quoted, or has a key twice.
    """
    pair = re.compile(r"""\s*([\w.-]+)=("[^"]*"|'[^']*'|[^\s"']\S*)(?=\s|$)""")
    values: dict[str, Scalar] = {}
    text = text.strip()
    position = 0
    while position < len(text):
        match = pair.match(text, position)
        if match is None:
            raise ConfigError(
                f"cannot read {text[position:].strip()!r}; expected KEY=VALUE pairs separated by "
                "spaces, strings in quotes: 'num-server-rounds=5 strategy=\"fedif\"'"
            )
        key, value = match.groups()
        if key in values:
            raise ConfigError(f"{key} = {value}: the key is given twice; allowed: once")
        values[key] = _parse_value(key, value)
        position = match.end()
    return values


def _parse_value(key: str, text: str) -> Any:
    """Return what a value stands for in TOML; a word without quotes is a string."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        # A shell takes the quotes away.
        is_word = re.fullmatch(r"[A-Za-z_][\w:.+-]*", text)
        value = text if is_word else None
    # TOML has dates and lists as well.
    if not isinstance(value, Scalar):
        raise ConfigError(
            f"{key} = {text}: not a number, true, false or a word; other strings need quotes"
        )
    return value


def take_section(content: dict[str, Any], name: str, called: str = "") -> dict[str, Any]:
    """Take a section out of a file's content; empty if it has none.

    Parameters
    ----------
    content : dict
        Of the file, or of the section that this one is part of.
    name, called : str
        Its key, and its whole name if that differs.

    Raises
    ------
    ConfigError
        If it is no section.
    """
    section = content.pop(name, {})
    if not isinstance(section, dict):
        whole_name = called or name
        raise ConfigError(f"{whole_name} = {section!r}; allowed: a section, [{whole_name}]")
    return section


def unknown_key(key: str, known: Sequence[str]) -> str:
    """Return that there is no such key, with those that look like it, else with all."""
    near = alike(key, known)
    if near:
        return f"unknown key {key!r}; did you mean {' or '.join(near)}?"
    if len(known) > _MOST_LISTED:
        return f"unknown key {key!r}; docs/configuration.md lists all"
    return f"unknown key {key!r}; known keys: {', '.join(known)}"


def require_known(cls: type[Settings], values: Mapping[str, object]) -> None:
    """Refuse a key of a file that a class does not have; files spell keys with hyphens.

    Raises
    ------
    ConfigError
        Naming the key, and those that there are as a file spells them.
    """
    keys = cls.key_names()
    unknown_keys = values.keys() - {*keys, *cls.model_fields}
    if unknown_keys:
        raise ConfigError(unknown_key(min(unknown_keys), keys))


def alike(word: str, known: Iterable[str]) -> list[str]:
    """Return those known words for which a word may be a slip of the finger, or the shift key."""
    by_lower = {name.lower(): name for name in known}
    matches = get_close_matches(word.lower(), by_lower, cutoff=_ALIKE)
    return [by_lower[match] for match in matches]


def _fields_by_key(cls: type[Settings]) -> dict[str, FieldInfo]:
    """Return the fields of a class by their run-config keys."""
    return {str(field.alias): field for field in cls.model_fields.values()}


def _explain(cls: type[Settings], error: ValidationError, values: Mapping[str, object]) -> str:
    """Return the first error in one line: key, value and what is allowed, as the caller spells."""
    # The caller spells either fields' names, or their aliases, which are the run config's keys.
    spelling = {name: name for name in cls.model_fields}
    if any("-" in key or "." in key for key in values):
        spelling = {name: str(field.alias) for name, field in cls.model_fields.items()}

    def spell(text: str) -> str:
        # All at once: the key pace.late-rounds holds the name of the field ``rounds``.
        names = "|".join(spelling)
        return re.sub(rf"\b(?:{names})\b", lambda match: spelling[match[0]], text)

    first = error.errors()[0]
    refusal = first.get("ctx", {}).get("error")
    if isinstance(refusal, ConfigError) and not first["loc"]:  # Of several values.
        return spell(str(refusal))
    key = str(first["loc"][0])
    name = _field_name(cls, key)
    if name is None:
        return unknown_key(key, list(spelling.values()))
    field = cls.model_fields[name]
    if first["type"] == "extra_forbidden":  # By its name and by its alias.
        return f"{name} and {field.alias} are one key; allowed: one of them"
    if first["type"] == "missing":
        return spell(f"{name} is missing; allowed: {_allowed(field)}")
    where = spelling[name]
    entries = values.get(key)
    if isinstance(entries, Mapping) and len(first["loc"]) > 1:  # Of a section of its own.
        where += f".{first['loc'][1]}"
    words = f"{where} = {first['input']!r}; allowed: {spell(_allowed(field))}"
    choices = [str(choice) for choice in extra_of(field, "choices") or ()]
    near = alike(str(first["input"]), choices)
    if near:
        words += f" (did you mean {near[0]!r}?)"
    return words


def _field_name(cls: type[Settings], key: str) -> str | None:
    """Return the field that a key stands for, by its name or its alias."""
    for name, field in cls.model_fields.items():
        if key in (name, field.alias):
            return name
    return None


def _default(field: FieldInfo) -> Any:
    """Return a setting's default in a run config; ``None``: it has none."""
    if extra_of(field, "auto"):
        return AUTO
    if field.is_required():
        return None
    return field.get_default()


def _allowed(field: FieldInfo) -> str:
    """Return what a setting may be: ``a number > 0 and <= 1 or 'auto'``."""
    allowed = extra_of(field, "allowed")
    if allowed:
        return str(allowed)
    choices = _choices(field)
    if choices:
        return ", ".join(choices)
    words = _kind(field)
    limits = _limits(field)
    if limits:
        words += f" {' and '.join(limits)}"
    if extra_of(field, "auto"):
        words += " or 'auto'"
    return words


def _choices(field: FieldInfo) -> list[str]:
    """Return the names that a setting may have; empty: any."""
    declared = extra_of(field, "choices")
    choices = list(declared)
    if not choices and get_origin(field.annotation) is Literal:
        choices = list(get_args(field.annotation))
    more = getattr(declared, "also", None)  # A registry has more than it lists.
    if choices and more:
        choices.append(more)
    return choices


def _kind(field: FieldInfo) -> str:
    """Return a setting's type in words; of several, the first that has some."""
    words: dict[Any, str] = {bool: "true, false", int: "an integer", float: "a number"}
    for kind in (field.annotation, *get_args(field.annotation)):
        if kind in words:
            return words[kind]
    return "a string"


def _limits(field: FieldInfo) -> list[str]:
    """Return what a setting's number is bounded by: ``> 0``, ``<= 1``."""
    limits: list[str] = []
    for name, sign in _SIGNS.items():
        bounds = [getattr(limit, name) for limit in field.metadata if hasattr(limit, name)]
        limits += [f"{sign} {bound:g}" for bound in bounds]
    return limits


def _words(field: FieldInfo) -> str:
    """Return what a setting means, with what ``"auto"`` stands for."""
    auto = extra_of(field, "auto")
    if not auto:
        return str(field.description)
    return f"{field.description}; `auto`: {auto}"


def extra_of(field: FieldInfo, name: str) -> Any:
    """Return what a :func:`Setting` says beside its limits, by the argument's name."""
    return (field.json_schema_extra or {}).get(name)  # type: ignore[union-attr]
