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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, TypeVar, get_type_hints

from pydantic import Field, PrivateAttr, create_model
from pydantic.fields import FieldInfo

from fedif_flower.errors import ConfigError
from fedif_flower.registry import Registry
from fedif_flower.settings import AUTO, Scalar, Setting, Settings, extra_of, in_section, unknown_key

Maker = Callable[..., Any]
_T = TypeVar("_T")
_Part = TypeVar("_Part", bound=Settings)


def arguments(maker: Maker, offered: frozenset[str] = frozenset()) -> dict[str, tuple[Any, Any]]:
    """Return type and default of those arguments of a class or function that are settings.

    Parameters
    ----------
    maker : callable
        What declares them; of a ``partial``, the arguments that are not bound.
    offered : frozenset of str
        Names of arguments that whoever calls it provides.
    """
    function, bound = _unbound(maker)
    parts = _made_of(function)
    found = _own_arguments(function, offered)
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
        if name in declared and not (value is None and declared[name][1] is None)
    }
    _checks(maker)(**given)


class CheckedFields:
    """A dataclass's base: raises ConfigError for a field that is a setting and out of range."""

    def __post_init__(self) -> None:
        """Check the fields."""
        require_settings(type(self), vars(self))


def setting_of(maker: Maker, argument: str) -> Any:
    """Return a constructor's argument as a field of a :class:`Settings` class."""
    return FieldInfo.from_annotated_attribute(*_declared(maker)[argument])


def section_name(name: str) -> str:
    """Return what the keys of a name begin with: the name, or the last part of an import string."""
    return name.rpartition(":")[2].rpartition(".")[2]


def section(registry: Registry, name: str) -> type[Settings]:
    """Return the settings of what a name stands for, by keys such as ``fedif.gamma``.

    What is not built in is imported.
    """
    return _section(registry[name], name, registry.offered, tuple(registry.auto.items()))


@cache
def _section(
    maker: Maker, name: str, offered: frozenset[str], auto: tuple[tuple[str, str], ...]
) -> type[Settings]:
    fields = arguments(maker, offered)
    for key, words in auto:
        if (own := key.removeprefix(f"{name}.")) in fields:
            kind, default = fields[own]
            fields[own] = Annotated[kind, Field(json_schema_extra={"auto": words})], default
    return _model(fields, in_section(section_name(name)))


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
    own = _own_arguments(function, frozenset(known))
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

    # By the field that names an entry: its choices.
    registries: ClassVar[Mapping[str, Registry]] = MappingProxyType({})
    # By such a key: the name with which the choice is left to others, and all sections count.
    undecided: ClassVar[Mapping[str, str]] = MappingProxyType({})
    _more: tuple[type[Settings], ...] = PrivateAttr(default=())  # Sections that nothing names.
    _own: dict[str, Scalar] = PrivateAttr(default_factory=dict)  # By key, what is no default.

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        known = {k: v for base in cls.__bases__ for k, v in getattr(base, "registries", {}).items()}
        choices = {name: extra_of(field, "choices") for name, field in cls.model_fields.items()}
        cls.registries = known | {k: v for k, v in choices.items() if isinstance(v, Registry)}

    if not TYPE_CHECKING:

        def __init__(self, *, sections: Sequence[type[Settings]] = (), **values: Any) -> None:
            own: dict[str, dict[str, Scalar]] = {}
            for key in [key for key in values if "." in key]:
                own.setdefault(key.partition(".")[0], {})[key] = values.pop(key)
            super().__init__(**values)
            self._more = tuple(sections)
            for name, given in own.items():
                self._own |= self._checked(name, given)

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
        return section(registry, name)(**given).model_dump(exclude_unset=True) if given else {}

    def build(self, key: str, kind: type[_T], offered: Mapping[str, Any]) -> _T:
        """Return what the chosen entry makes.

        Parameters
        ----------
        key : str
            That which names the entry: ``"attack"``.
        kind : type
            Of what it has to make.
        offered : mapping
            As :func:`make` takes it.

        Raises
        ------
        ConfigError
            If it makes something else, needs more, or has no such setting.
        """
        registry, name = self.registries[key], getattr(self, key)
        made = make(f"{registry.key} {name!r}", registry[name], offered, self.settings_of(key))
        if not isinstance(made, kind):
            raise ConfigError(
                f"{registry.key} = {name!r} is of type {type(made).__name__}; allowed: a "
                f"{kind.__module__}.{kind.__name__}, or a function that returns one"
            )
        return made

    def replace(self, **changes: Scalar) -> Self:
        """Return a copy with other values, checked; sections that are no longer chosen go."""
        own = {
            key: value
            for key, value in self._own.items()
            if (field := self._field_of(key)) not in changes
            or section_name(str(changes[field])) == key.partition(".")[0]
        }
        values: dict[str, Any] = {**self.model_dump(exclude_unset=True), **own, **changes}
        return type(self)(sections=self._more, **values)  # type: ignore[call-arg]

    def part(self, wanted: type[_Part]) -> _Part:
        """Return those of the values that ``wanted``, another class of settings, declares."""
        values = {name: getattr(self, name) for name in wanted.model_fields}
        if issubclass(wanted, SectionedSettings):
            kept = wanted.registries
            values |= {k: v for k, v in self._own.items() if self._field_of(k) in kept}
        return wanted(**values)

    def section(self, kind: type[_Part]) -> _Part:
        """Return a section that nothing names; its defaults where there is none."""
        return kind(**{k: v for k, v in self._own.items() if k in kind.key_names()})

    def to_mapping(self) -> dict[str, Scalar]:
        """Return the values by run-config key, with those of the chosen sections."""
        chosen = [
            section(registry, name)
            for key, registry in self.registries.items()
            if (name := getattr(self, key)) in registry.built_in
        ]
        usual = {k: v for kind in (*chosen, *self._more) for k, v in kind().to_mapping().items()}
        return {**super().to_mapping(), **usual, **self._own}

    def identity(self) -> dict[str, Scalar]:
        """Return the values by key on which a result depends; of sections, what is no default."""
        quiet = {k for kind in self._more for k in kind().to_mapping().keys() - kind().identity()}
        return {**super().identity(), **{k: v for k, v in self._own.items() if k not in quiet}}

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

    def _field_of(self, key: str) -> str | None:
        """Return which key names the entry that a section's key belongs to."""
        name = key.partition(".")[0]
        for field, registry in self.registries.items():
            chosen = getattr(self, field)
            is_own = registry.is_own(chosen) and name == section_name(chosen)
            if is_own or name in registry.built_in:
                return field
        return None

    def _checked(self, name: str, given: Mapping[str, Scalar]) -> Mapping[str, Scalar]:
        """Return those keys of a section that are not their defaults, or raise ConfigError."""
        keys = next((kind for kind in self._more if kind.section_name() == name), None)
        field = None if keys else self._field_of(name)
        if field is None and keys is None:
            for key, value in given.items():
                self._refuse_unknown(key, value)
            return {}
        if keys is None and field is not None:
            if name not in self.registries[field].built_in:
                return given  # Nothing is imported before it is made.
            keys = section(self.registries[field], name)
        assert keys is not None
        automatic = {key for key, value in keys.defaults().items() if value == AUTO}
        values = {k: v for k, v in given.items() if k not in automatic or v != AUTO}
        usual = keys().to_mapping()
        kept = {k: v for k, v in keys(**values).to_mapping().items() if v != usual[k]}
        if kept and field and getattr(self, field) not in (name, self.undecided.get(field)):
            key, value = next(iter(kept.items()))
            only = f"only with {self.registries[field].key} {name!r}"
            raise ConfigError(f"{key} = {value!r}; allowed: {only}")
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
def _declared(maker: Maker) -> Mapping[str, tuple[Any, Any]]:
    """Return the arguments that are declared settings."""
    parameters = inspect.signature(maker).parameters
    return {
        name: (hint, _default(parameters[name]))
        for name, hint in _hints(maker).items()
        if name in parameters
        and any(isinstance(extra, FieldInfo) for extra in getattr(hint, "__metadata__", ()))
    }


def _own_arguments(maker: Maker, offered: frozenset[str]) -> dict[str, tuple[Any, Any]]:
    """Return the declared settings; where there are none, the plain values that are not offered."""
    plain = {
        name: (Annotated[type(parameter.default), Setting("")], parameter.default)
        for name, parameter in inspect.signature(maker).parameters.items()
        if name not in offered and isinstance(parameter.default, Scalar)
    }
    return dict(_declared(maker) or plain)


def _default(parameter: inspect.Parameter) -> Any:
    return ... if parameter.default is parameter.empty else parameter.default


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
    return _model({name: (hint, None) for name, (hint, _) in _declared(maker).items()}, str)


def _model(fields: Mapping[str, tuple[Any, Any]], alias: Callable[[str], str]) -> type[Settings]:
    own: Any = dict(fields)
    named = {"alias_generator": alias}
    return create_model("Settings", __base__=Settings, __cls_kwargs__=named, **own)
