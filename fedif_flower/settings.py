"""How a setting is declared, once: its type, default, range and description.

Every package declares its own settings as a frozen :class:`Settings` class, or at constructors. The
run config, its defaults, its errors and ``docs/configuration.md`` are read off these declarations.
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
_ALIKE = 0.75  # Words at least this similar, on a scale to 1, may be typing errors of each other.
_MOST_LISTED = 40  # The most keys that an error lists.
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
    """Return the range and description of a setting, as pydantic's ``Field``.

    A constructor declares an argument like this, and checks it with
    :func:`~fedif_flower.constructors.require_settings`::

        gamma: Annotated[float, Setting("rate of the smooth update", gt=0, le=1)] = 0.3

    Parameters
    ----------
    words : str
        What the setting means, for the documentation.
    choices : collection of str
        The allowed names. They are looked up whenever a value is checked, since a registry may
        grow. Empty: any name is allowed.
    allowed : str
        The allowed values in words, if they do not follow from type, limits and choices.
    auto : str
        What ``"auto"`` stands for, in words; ``"auto"`` is then the default in a run config. Empty:
        ``"auto"`` is not allowed.
    changes_result : bool
        ``False`` for settings on which no result depends, such as where or when something is
        written, or how long to wait.
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
    """Declare a setting of a :class:`Settings` class with its default; see :func:`Setting`."""
    return Setting(words, default=default, **declared)


def quiet_setting(default: Any, words: str, **declared: Any) -> Any:
    """Declare a setting on which no result depends, such as a path or a time to wait."""
    return setting(default, words, changes_result=False, **declared)


def _nothing_or_at_least_one(bound: float) -> float:
    """Return a bound; raise ValueError if it is in (0, 1), so that usual values would exceed it."""
    if 0 < bound < 1:
        raise ValueError
    return bound


NO_BOUND = "0 (no bound) or a number >= 1"
BoundOfUsual = Annotated[float, Field(ge=0), AfterValidator(_nothing_or_at_least_one)]
"""A bound in multiples of a usual value; its :func:`Setting` has ``allowed=NO_BOUND``."""

MaliciousFraction = Annotated[float, Setting("assumed share of malicious clients", ge=0, le=1)]


class Settings(BaseModel):
    """Settings that belong together; they are checked when the object is made, and immutable.

    A value may be given under the field's name or under its run-config key (``batch_size``,
    ``batch-size``). A validator that compares several values calls
    :func:`~fedif_flower.errors.require` with the fields' names.

    Raises
    ------
    ConfigError
        If a value is not allowed, or a key is missing or unknown. It names the key in the spelling
        that was used.
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
        """Return a value; raise ValueError if its field has choices and it is none of them."""
        assert info.field_name is not None  # It is the validator of a field.
        choices = extra_of(cls.model_fields[info.field_name], "choices")
        if choices and value not in choices:
            raise ValueError
        return value

    def replace(self, **changes: Scalar) -> Self:
        """Return a checked copy with other values."""
        values = self.model_dump(exclude_unset=True)
        values |= changes
        return type(self)(**values)

    def extract(self, wanted: type[_Part]) -> _Part:
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
        """Return the section of the keys, ``"fedif"`` for ``fedif.gamma``; empty: there is none."""
        return cls.key_names()[0].rpartition(".")[0]

    @classmethod
    def defaults(cls) -> dict[str, Scalar]:
        """Return the run config's defaults by key: ``"auto"`` where that is allowed."""
        return {key: _default(field) for key, field in _fields_by_key(cls).items()}

    def identity(self) -> dict[str, Scalar]:
        """Return the values on which a result depends, by key."""
        values = self.model_dump(by_alias=True)
        for key, field in _fields_by_key(type(self)).items():
            if not extra_of(field, "changes_result"):
                del values[key]
        return values

    @classmethod
    def describe(cls) -> list[tuple[str, Scalar | None, str, str]]:
        """Return each setting's key, default (``None``: none), allowed values and meaning."""
        return [
            (key, _default(field), _allowed(field), _words(field))
            for key, field in _fields_by_key(cls).items()
        ]


def in_section(section: str) -> Callable[[str], str]:
    """Return a function that turns a field's name into a key, ``section.field-name``.

    A part of a run declares its settings like this::

        class MetricsSettings(Settings, alias_generator=in_section("metrics")): ...
    """
    return lambda name: f"{section}.{name.replace('_', '-')}"


def parse_overrides(text: str) -> dict[str, Scalar]:
    """Return the values in ``KEY=VALUE ...``, as ``flwr run --run-config`` reads them.

    Text that Flower would skip silently is refused.

    Raises
    ------
    ConfigError
        If the text is not a list of such pairs, or has a key twice.
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
    """Return a value as TOML reads it; a word without quotes is a string."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        # A shell may have removed the quotes.
        is_word = re.fullmatch(r"[A-Za-z_][\w:.+-]*", text)
        value = text if is_word else None
    # TOML's dates and lists are no values of settings.
    if not isinstance(value, Scalar):
        raise ConfigError(
            f"{key} = {text}: not a number, true, false or a word; other strings need quotes"
        )
    return value


def take_section(content: dict[str, Any], name: str) -> dict[str, Any]:
    """Remove a section from a file's content, and return it; empty if there is none.

    Parameters
    ----------
    content : dict
        The content of the file.
    name : str
        The section's key in ``content``.

    Raises
    ------
    ConfigError
        If the key has another value than a section.
    """
    section = content.pop(name, {})
    if not isinstance(section, dict):
        raise ConfigError(f"{name} = {section!r}; allowed: a section, [{name}]")
    return section


def unknown_key(key: str, known: Sequence[str]) -> str:
    """Return an error message for an unknown key, with similar keys, or else all keys."""
    near = similar_words(key, known)
    if near:
        return f"unknown key {key!r}; did you mean {' or '.join(near)}?"
    if len(known) > _MOST_LISTED:
        return f"unknown key {key!r}; docs/configuration.md lists all"
    return f"unknown key {key!r}; known keys: {', '.join(known)}"


def require_known(cls: type[Settings], values: Mapping[str, object]) -> None:
    """Raise ConfigError if a file has a key that is none of a class of settings.

    The error lists the known keys with hyphens, as files spell them.
    """
    keys = cls.key_names()
    unknown_keys = values.keys() - {*keys, *cls.model_fields}
    if unknown_keys:
        raise ConfigError(unknown_key(min(unknown_keys), keys))


def similar_words(word: str, known: Iterable[str]) -> list[str]:
    """Return the known words for which a word may be a typing error; case does not count."""
    by_lower = {name.lower(): name for name in known}
    matches = get_close_matches(word.lower(), by_lower, cutoff=_ALIKE)
    return [by_lower[match] for match in matches]


def _fields_by_key(cls: type[Settings]) -> dict[str, FieldInfo]:
    """Return the fields of a class by their run-config keys."""
    return {str(field.alias): field for field in cls.model_fields.values()}


def _explain(cls: type[Settings], error: ValidationError, values: Mapping[str, object]) -> str:
    """Return the first error in one line: key, value and what is allowed.

    Keys are spelt as the caller did: either as fields' names, or as their run-config keys.
    """
    spelling = {name: name for name in cls.model_fields}
    if any("-" in key or "." in key for key in values):
        spelling = {name: str(field.alias) for name, field in cls.model_fields.items()}

    def spell(text: str) -> str:
        # All names at once: a key such as pace.late-rounds, once put in, contains the name of
        # another field, ``rounds``.
        names = "|".join(spelling)
        return re.sub(rf"\b(?:{names})\b", lambda match: spelling[match[0]], text)

    first = error.errors()[0]
    refusal = first.get("ctx", {}).get("error")
    if isinstance(refusal, ConfigError) and not first["loc"]:  # A validator of several values.
        return spell(str(refusal))
    key = str(first["loc"][0])
    name = _field_name(cls, key)
    if name is None:
        return unknown_key(key, list(spelling.values()))
    field = cls.model_fields[name]
    if first["type"] == "extra_forbidden":  # Given by its name and by its key.
        return f"{name} and {field.alias} are one key; allowed: one of them"
    if first["type"] == "missing":
        return spell(f"{name} is missing; allowed: {_allowed(field)}")
    where = spelling[name]
    entries = values.get(key)
    if isinstance(entries, Mapping) and len(first["loc"]) > 1:  # An entry of a mapping.
        where += f".{first['loc'][1]}"
    words = f"{where} = {first['input']!r}; allowed: {spell(_allowed(field))}"
    choices = [str(choice) for choice in extra_of(field, "choices") or ()]
    near = similar_words(str(first["input"]), choices)
    if near:
        words += f" (did you mean {near[0]!r}?)"
    return words


def _field_name(cls: type[Settings], key: str) -> str | None:
    """Return the name of the field that has a key as its name or alias; ``None``: there is none."""
    for name, field in cls.model_fields.items():
        if key in (name, field.alias):
            return name
    return None


def _default(field: FieldInfo) -> Any:
    """Return a setting's default in a run config; ``None``: there is none."""
    if extra_of(field, "auto"):
        return AUTO
    if field.is_required():
        return None
    return field.get_default()


def _allowed(field: FieldInfo) -> str:
    """Return the allowed values of a setting in words: ``a number > 0 and <= 1 or 'auto'``."""
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
    """Return the names that a setting may be, as errors list them; empty: any value."""
    declared = extra_of(field, "choices")
    choices = list(declared)
    if not choices:
        # The type may be `Literal[...] | None`.
        for kind in (field.annotation, *get_args(field.annotation)):
            if get_origin(kind) is Literal:
                choices = list(get_args(kind))
    more = getattr(declared, "also", None)  # A registry accepts module:object as well.
    if choices and more:
        choices.append(more)
    return choices


def _kind(field: FieldInfo) -> str:
    """Return a setting's type in words; for a union, the words of its first known type."""
    words: dict[Any, str] = {bool: "true, false", int: "an integer", float: "a number"}
    for kind in (field.annotation, *get_args(field.annotation)):
        if kind in words:
            return words[kind]
    return "a string"


def _limits(field: FieldInfo) -> list[str]:
    """Return the limits of a setting's number: ``> 0``, ``<= 1``."""
    limits: list[str] = []
    for name, sign in _SIGNS.items():
        bounds = [getattr(limit, name) for limit in field.metadata if hasattr(limit, name)]
        limits += [f"{sign} {bound:g}" for bound in bounds]
    return limits


def _words(field: FieldInfo) -> str:
    """Return a setting's description, with what ``"auto"`` stands for."""
    auto = extra_of(field, "auto")
    if not auto:
        return str(field.description)
    return f"{field.description}; `auto`: {auto}"


def extra_of(field: FieldInfo, name: str) -> Any:
    """Return an argument of :func:`Setting` that pydantic does not know, such as ``"auto"``."""
    return (field.json_schema_extra or {}).get(name)  # type: ignore[union-attr]
