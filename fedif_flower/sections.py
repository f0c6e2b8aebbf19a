"""A registered name's own settings: read off the constructor that makes it, and nowhere else.

``strategy = "fedif"`` is made by ``FedIF``, whose argument ``gamma`` is the run-config key
``fedif.gamma``. An argument is a setting where it is declared ``Annotated[float, Setting(...)]``; a
class that declares none has those of its arguments as settings that are plain values with a
default. Everything else that a constructor names is *offered* to it by whoever makes it: the model,
the validation set, the seed. An argument that is itself an object with settings is named in the
class's ``made_of``: ``{"weighting": Weighting}``; ``None`` there says that an argument is no
setting.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass, replace
from functools import cache, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeVar, get_args, get_type_hints

from pydantic import PrivateAttr, create_model

from fedif_flower.errors import ConfigError
from fedif_flower.registry import Registry
from fedif_flower.settings import AUTO, Scalar, Setting, Settings, unknown_key

Maker = Callable[..., Any]
_T = TypeVar("_T")
_Part = TypeVar("_Part", bound=Settings)
_PLAIN = (bool, int, float, str)


class Argument(NamedTuple):
    """An argument that is a setting: its type, its default, and how it is declared."""

    kind: Any
    default: Any
    setting: Setting


def arguments(maker: Maker, offered: frozenset[str] = frozenset()) -> Mapping[str, Argument]:
    """Return those arguments of a class or function, by name, that are settings.

    Parameters
    ----------
    maker : callable
        What declares them; of a ``partial``, the arguments that are not bound.
    offered : frozenset of str
        Names of arguments that whoever calls it provides.
    """
    function, bound = _unbound(maker)
    parts = _made_of(function)
    found = dict(_arguments(function, offered))
    for part in parts.values():
        found |= {} if part is None else arguments(part, offered)
    left_out = offered | bound | parts.keys()
    return {name: argument for name, argument in found.items() if name not in left_out}


def require_settings(maker: Maker, values: Mapping[str, Any]) -> None:
    """Raise ConfigError if an argument that is declared a setting has a value out of range.

    Parameters
    ----------
    maker : callable
        The class or function that declares them.
    values : mapping
        What it was called with, by name; others than its settings are not looked at.
    """
    declared = _declared(maker)
    given = {
        name: value.item() if hasattr(value, "item") else value
        for name, value in values.items()
        if name in declared and not (value is None and declared[name].default is None)
    }
    _checks(maker)(**given)


def require_fields(made: Any) -> None:
    """Raise ConfigError if a field of a dataclass that is declared a setting is out of range."""
    require_settings(type(made), vars(made))


def setting_of(maker: Maker, argument: str) -> Any:
    """Return a constructor's argument as a field of a :class:`Settings` class."""
    found = _declared(maker)[argument]
    return found.setting.field(found.default)


def section_name(name: str) -> str:
    """Return what the keys of a name begin with: the name, or the last part of an import string."""
    return name.rpartition(":")[2].rpartition(".")[2]


def section(registry: Registry, name: str) -> type[Settings]:
    """Return the settings of what a name stands for, by keys such as ``fedif.gamma``.

    What is not built in is imported.
    """
    auto = tuple((k, words) for k, words in registry.auto.items() if k.startswith(f"{name}."))
    return _settings(registry[name], f"{section_name(name)}.", registry.offered, auto)


def make(
    what: str,
    maker: Callable[..., _T],
    offered: Mapping[str, Any],
    settings: Mapping[str, Any] = MappingProxyType({}),
    rest: Mapping[str, Any] = MappingProxyType({}),
) -> _T:
    """Call a class or function with those arguments that it names.

    Parameters
    ----------
    what : str
        What is called, for errors.
    maker : callable
        The class or function; the parts that it is made of are made first.
    offered : mapping
        Arguments that it gets if it has a parameter of that name.
    settings : mapping
        Values of its settings and of those of its parts; others keep their defaults.
    rest : mapping
        Offered as well; and all of them if it takes any keyword.

    Raises
    ------
    ConfigError
        If it needs an argument that is not offered.
    """
    function, bound = _unbound(maker)
    parts, known = _made_of(function), {**offered, **rest}
    parameters = inspect.signature(function).parameters.values()
    own = _arguments(function, frozenset(known))
    given: dict[str, Any] = {}
    for parameter in parameters:
        name = parameter.name
        named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if not named or name in bound or parts.get(name, function) is None:
            continue
        if name in parts:
            given[name] = make(what, parts[name], offered, settings, rest)  # type: ignore[arg-type]
        elif name in settings and name in own:
            given[name] = settings[name]
        elif name in known:
            given[name] = known[name]
        elif parameter.default is parameter.empty:
            raise ConfigError(f"{what} needs the argument {name!r}; it can have {', '.join(known)}")
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    return maker(**({**rest, **given} if takes_any else given))


class SectionedSettings(Settings):
    """Settings some of whose keys belong to what others name: ``fedif.gamma`` to ``fedif``.

    A key of a section that is not the chosen one is refused, unless its value is the default:
    ``flwr run`` sends every key that it knows along.
    """

    # By the key that names an entry.
    registries: ClassVar[Mapping[str, Registry]] = MappingProxyType({})
    # By such a key: the name with which the choice is left to others, and all sections count.
    undecided: ClassVar[Mapping[str, str]] = MappingProxyType({})
    _own: dict[str, Scalar] = PrivateAttr(default_factory=dict)

    if not TYPE_CHECKING:

        def __init__(self, **values: Any) -> None:
            own = {key: values.pop(key) for key in list(values) if "." in key}
            super().__init__(**values)
            self._own = self._checked(own)

    def settings_of(self, key: str) -> dict[str, Any]:
        """Return what the chosen entry is set to, by the names of its constructor's arguments.

        Parameters
        ----------
        key : str
            That which names the entry: ``"strategy"``.

        Raises
        ------
        ConfigError
            If an entry that is not built in does not have a setting, or a value is not allowed.
        """
        registry, name = self.registries[key], getattr(self, key)
        given = {k: v for k, v in self._own.items() if k.startswith(f"{section_name(name)}.")}
        if not given:
            return {}
        return section(registry, name)(**given).model_dump(exclude_unset=True)

    def replace(self, **changes: Scalar) -> Self:
        """Return a copy with other values, checked; sections that are no longer chosen go."""
        own = {
            key: value
            for key, value in self._own.items()
            if (field := self._field_of(key)) not in changes
            or section_name(str(changes[field])) == key.partition(".")[0]
        }
        return type(self)(
            **{**self.model_dump(exclude_unset=True), **own, **self._beside(), **changes}
        )

    def part(self, wanted: type[_Part]) -> _Part:
        """Return those of the values that ``wanted``, another class of settings, declares."""
        values = {name: getattr(self, name) for name in wanted.model_fields}
        if issubclass(wanted, SectionedSettings):
            kept = wanted.registries
            values |= {k: v for k, v in self._own.items() if self._field_of(k) in kept}
        return wanted(**values)

    def to_mapping(self) -> dict[str, Scalar]:
        """Return the values by run-config key, with those of the chosen sections."""
        chosen: dict[str, Scalar] = {}
        for key, registry in self.registries.items():
            if (name := getattr(self, key)) in registry.built_in:
                chosen |= section(registry, name)().to_mapping()
        return {**super().to_mapping(), **chosen, **self._own}

    def identity(self) -> dict[str, Scalar]:
        """Return the values by key on which a result depends; of sections, what is no default."""
        return {**super().identity(), **self._own}

    @classmethod
    def defaults(cls) -> dict[str, Scalar]:
        """Return the run config's defaults by key, with those of every built-in section."""
        own = {key: value for s in cls.sections().values() for key, value in s.defaults().items()}
        return {**super().defaults(), **own}

    @classmethod
    def sections(cls) -> dict[str, type[Settings]]:
        """Return the built-in sections that have settings, by name."""
        found = {
            name: section(registry, name)
            for registry in cls.registries.values()
            for name in registry.built_in
        }
        return {name: keys for name, keys in found.items() if keys.model_fields}

    def _refuse_unknown(self, key: str, value: Scalar) -> None:  # noqa: ARG002
        """Raise ConfigError for a key of a section that nothing has."""
        raise ConfigError(unknown_key(key, list(self.defaults())))

    def _beside(self) -> dict[str, Any]:
        """Return what a copy is made with beside the values of fields and of chosen names."""
        return {}

    def _field_of(self, key: str) -> str | None:
        """Return which key names the entry that a section's key belongs to."""
        name = key.partition(".")[0]
        for field, registry in self.registries.items():
            chosen = getattr(self, field)
            is_own = registry.is_own(chosen) and name == section_name(chosen)
            if is_own or name in registry.built_in:
                return field
        return None

    def _checked(self, own: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """Return the keys of sections that are not their defaults, or raise ConfigError."""
        kept: dict[str, Scalar] = {}
        for key, value in own.items():
            name, field = key.partition(".")[0], self._field_of(key)
            if field is None:
                self._refuse_unknown(key, value)
                continue
            registry, chosen = self.registries[field], getattr(self, field)
            if name not in registry.built_in:
                kept[key] = value  # Nothing is imported before it is made.
                continue
            is_chosen, keys = name == chosen, section(registry, name)
            if value == keys.defaults().get(key) == AUTO:
                continue
            given = keys(**{key: value}).to_mapping()
            if given == keys().to_mapping():
                continue
            if not is_chosen and chosen != self.undecided.get(field):
                raise ConfigError(f"{key} = {value!r}; allowed: only with {registry.key} {name!r}")
            kept[key] = given[key]
        return kept


def _unbound(maker: Maker) -> tuple[Maker, frozenset[str]]:
    """Return what a ``partial`` calls, and the names that it binds."""
    if isinstance(maker, partial):
        names = list(inspect.signature(maker.func).parameters)
        return maker.func, frozenset(maker.keywords) | set(names[: len(maker.args)])
    return maker, frozenset()


def _made_of(maker: Maker) -> Mapping[str, Maker | None]:
    """Return the makers of those arguments that are objects with settings of their own."""
    parts: Mapping[str, Maker | None] = getattr(maker, "made_of", {})
    return {name: parts[name] for name in inspect.signature(maker).parameters if name in parts}


@cache
def _declared(maker: Maker) -> Mapping[str, Argument]:
    """Return the arguments that are declared settings."""
    found: dict[str, Argument] = {}
    for name, hint in _hints(maker).items():
        settings = [
            extra for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, Setting)
        ]
        parameter = inspect.signature(maker).parameters.get(name)
        if settings and parameter is not None:
            found[name] = Argument(get_args(hint)[0], parameter.default, settings[0])
    return found


def _arguments(maker: Maker, offered: frozenset[str]) -> Mapping[str, Argument]:
    """Return the declared settings; where there are none, the plain values that are not offered."""
    if declared := _declared(maker):
        return declared
    return {
        name: Argument(type(parameter.default), parameter.default, Setting(""))
        for name, parameter in inspect.signature(maker).parameters.items()
        if name not in offered and type(parameter.default) in _PLAIN
    }


def _hints(maker: Maker) -> dict[str, Any]:
    """Return the annotations of a constructor's or a function's arguments."""
    function: Any = maker
    if isinstance(maker, type) and not is_dataclass(maker):
        function = function.__init__
    try:
        return get_type_hints(function, include_extras=True)
    except NameError:  # Imported for type checkers alone.
        return {}


@cache
def _checks(maker: Maker) -> type[Settings]:
    """Return a class of settings that checks what a constructor is called with."""
    fields: dict[str, Any] = {
        name: (kind, setting.field(None, name))
        for name, (kind, _, setting) in _declared(maker).items()
    }
    return create_model("Settings", __base__=Settings, **fields)


@cache
def _settings(
    maker: Maker, prefix: str, offered: frozenset[str], auto: tuple[tuple[str, str], ...] = ()
) -> type[Settings]:
    """Return a class of settings whose fields are a constructor's arguments."""
    fields: dict[str, Any] = {}
    for name, (kind, default, declared) in arguments(maker, offered).items():
        key = prefix + name.replace("_", "-")
        if words := dict(auto).get(key):
            declared = replace(declared, auto=words)
        given = ... if default is inspect.Parameter.empty else default
        fields[name] = (kind, declared.field(given, key))
    return create_model("Settings", __base__=Settings, **fields)
