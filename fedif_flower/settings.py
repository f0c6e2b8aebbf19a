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
    told: Any = {"choices": choices, "allowed": allowed, "auto": auto}
    told["changes_result"] = changes_result
    return Field(description=words, json_schema_extra=told, **field)


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
        choices = extra_of(cls.model_fields[info.field_name or ""], "choices")
        if choices and value not in choices:
            raise ValueError
        return value

    def replace(self, **changes: Scalar) -> Self:
        """Return a copy with other values, checked."""
        return type(self)(**{**self.model_dump(exclude_unset=True), **changes})

    def part(self, wanted: type[_Part]) -> _Part:
        """Return those of the values that ``wanted``, another class of settings, declares."""
        return wanted(**{name: getattr(self, name) for name in wanted.model_fields})

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
        return {str(field.alias): _default(field) for field in cls.model_fields.values()}

    def identity(self) -> dict[str, Scalar]:
        """Return the values by key on which a result depends."""
        fields = {str(field.alias): field for field in type(self).model_fields.values()}
        return {
            key: value
            for key, value in self.model_dump(by_alias=True).items()
            if extra_of(fields[key], "changes_result")
        }

    @classmethod
    def describe(cls) -> list[tuple[str, Scalar | None, str, str]]:
        """Return key, default (``None``: none), what is allowed and what it means, of each."""
        return [
            (str(field.alias), _default(field), _allowed(field), _words(field))
            for field in cls.model_fields.values()
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
        If the text is not a list of pairs, strings being quoted.
    """
    pair = re.compile(r"""\s*([\w.-]+)=("[^"]*"|'[^']*'|[^\s"']\S*)(?=\s|$)""")
    values: dict[str, Scalar] = {}
    position, text = 0, text.strip()
    while position < len(text):
        match = pair.match(text, position)
        if match is None:
            raise ConfigError(
                f"cannot read {text[position:].strip()!r}; expected KEY=VALUE pairs separated by "
                "spaces, strings in quotes: 'num-server-rounds=5 strategy=\"fedif\"'"
            )
        try:
            values[match[1]] = tomllib.loads(f"value = {match[2]}")["value"]
        except tomllib.TOMLDecodeError:
            if not re.fullmatch(r"[A-Za-z_][\w:.+-]*", match[2]):
                raise ConfigError(
                    f"{match[1]} = {match[2]}: not a number, true, false or a word; other strings "
                    "need quotes"
                ) from None
            values[match[1]] = match[2]  # A shell took the quotes away.
        position = match.end()
    return values


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
    found = content.pop(name, {})
    if not isinstance(found, dict):
        raise ConfigError(f"{called or name} = {found!r}; allowed: a section, [{called or name}]")
    return found


def unknown_key(key: str, known: Sequence[str]) -> str:
    """Return that there is no such key, with those that look like it, else with all."""
    if near := alike(key, known):
        return f"unknown key {key!r}; did you mean {' or '.join(near)}?"
    if len(known) > _MOST_LISTED:
        return f"unknown key {key!r}; docs/configuration.md lists all {len(known)}"
    return f"unknown key {key!r}; known keys: {', '.join(known)}"


def alike(word: str, known: Iterable[str]) -> list[str]:
    """Return the known words of which one may be a slip of the finger, or of the shift key."""
    by_lower = {name.lower(): name for name in known}
    return [by_lower[n] for n in get_close_matches(word.lower(), by_lower, cutoff=_ALIKE)]


def _explain(cls: type[Settings], error: ValidationError, given: Mapping[str, object]) -> str:
    """Return the first error in one line: key, value and what is allowed, as the caller spells."""
    first = error.errors()[0]
    aliases = {name: str(field.alias) for name, field in cls.model_fields.items()}
    by_alias = any("-" in key or "." in key for key in given)

    def spell(text: str) -> str:
        for name, alias in aliases.items() if by_alias else ():
            text = re.sub(rf"\b{name}\b", alias, text)
        return text

    refused = first.get("ctx", {}).get("error")
    if isinstance(refused, ConfigError) and not first["loc"]:  # Of several values.
        return spell(str(refused))
    key = str(first["loc"][0])
    name = next((name for name, alias in aliases.items() if key in (name, alias)), None)
    if name is None:
        return unknown_key(key, list(aliases.values() if by_alias else aliases))
    field = cls.model_fields[name]
    if first["type"] == "missing":
        return spell(f"{name} is missing; allowed: {_allowed(field)}")
    choices = [str(choice) for choice in extra_of(field, "choices") or ()]
    near = alike(str(first["input"]), choices)
    meant = f" (did you mean {near[0]!r}?)" if near else ""
    return spell(f"{name} = {first['input']!r}; allowed: {_allowed(field)}") + meant


def _default(field: FieldInfo) -> Any:
    """Return a setting's default in a run config; ``None``: it has none."""
    if extra_of(field, "auto"):
        return AUTO
    return None if field.is_required() else field.get_default()


def _allowed(field: FieldInfo) -> str:
    """Return what a setting may be: ``a number > 0 and <= 1 or 'auto'``."""
    if allowed := extra_of(field, "allowed"):
        return str(allowed)
    choices = list(extra_of(field, "choices"))
    if not choices and get_origin(field.annotation) is Literal:
        choices = list(get_args(field.annotation))
    if choices:
        # A registry has more than it lists.
        also = getattr(extra_of(field, "choices"), "also", None)
        return ", ".join([*choices, *([also] if also else [])])
    kinds: dict[Any, str] = {bool: "true, false", int: "an integer", float: "a number"}
    known = (kinds.get(kind) for kind in (field.annotation, *get_args(field.annotation)))
    limits = [
        f"{sign} {getattr(limit, name):g}"
        for name, sign in _SIGNS.items()
        for limit in field.metadata
        if hasattr(limit, name)
    ]
    auto = " or 'auto'" if extra_of(field, "auto") else ""
    return f"{next(filter(None, known), 'a string')} {' and '.join(limits)}".rstrip() + auto


def _words(field: FieldInfo) -> str:
    """Return what a setting means, with what ``"auto"`` stands for."""
    auto = extra_of(field, "auto")
    return f"{field.description}; `auto`: {auto}" if auto else str(field.description)


def extra_of(field: FieldInfo, name: str) -> Any:
    """Return what a :func:`Setting` says beside its limits, by the argument's name."""
    return (field.json_schema_extra or {}).get(name)  # type: ignore[union-attr]
