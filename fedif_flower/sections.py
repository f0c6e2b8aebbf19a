"""A registered name's own settings: read off the constructor that makes it, and nowhere else.

``strategy = "fedif"`` is made by ``FedIF``, whose argument ``gamma`` is the run-config key
``fedif.gamma``. An argument is a setting where it is declared ``Annotated[float, Setting(...)]``,
or where it is a plain value with a default; a constructor that takes ``**base`` has those of its
base class as well. Everything else that a constructor names is *offered* to it by whoever makes it:
the model, the validation set, the seed. An argument that is itself an object with settings is named
in the class's ``made_of``: ``{"weighting": Weighting}``; ``None`` there says that an argument is no
setting. A class whose defaults differ by data set says so in ``tuned``:
``{"fashion-mnist": {"gamma": 0.4}}``.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from types import MappingProxyType, SimpleNamespace
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
        if part is not None:
            found |= arguments(part, offered)
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


def constructor_signature(kind: type) -> inspect.Signature:
    """Return what a class is called with: what it passes on is what its bases take."""
    found: dict[str, inspect.Parameter] = {}
    for place, base in enumerate(_constructing(kind)):
        _, *own = inspect.signature(vars(base)["__init__"]).parameters.values()
        for parameter in own:
            if parameter.kind is parameter.VAR_KEYWORD:
                continue
            if place == 0:
                found[parameter.name] = parameter
            elif parameter.default is not parameter.empty:
                found.setdefault(parameter.name, parameter.replace(kind=parameter.KEYWORD_ONLY))
    return inspect.Signature(sorted(found.values(), key=lambda parameter: parameter.kind))


def section_name(name: str) -> str:
    """Return what the keys of a name begin with: the name, or the last part of an import string."""
    return name.rpartition(":")[2].rpartition(".")[2]


def section_names(registry: Registry, name: str) -> tuple[str, ...]:
    """Return all that the keys of a name may begin with; the first is how records have it.

    An entry point's keys may also begin with the name of its object, as if this were named by
    ``module:object``.
    """
    names = [section_name(name)]
    if path := registry.path_of(name):
        names.append(section_name(path))
    return tuple(dict.fromkeys(names))


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
    words = {key.removeprefix(f"{name}."): told for key, told in auto}
    for argument, values in _tuned(maker, fields).items():
        of_data = ", ".join(f"{value} for {dataset}" for dataset, value in values.items())
        words[argument] = f"{of_data}, {fields[argument][1]} otherwise"
    for argument in words.keys() & fields.keys():
        kind, default = fields[argument]
        extra: Any = {"auto": words[argument]}
        fields[argument] = Annotated[kind, Field(json_schema_extra=extra)], default
    return _model(fields, in_section(section_name(name)))


def tuned(registry: Registry, name: str, dataset: str) -> dict[str, Scalar]:
    """Return by key what the class of a name has on a data set in place of its defaults."""
    maker = registry[name]
    return {
        f"{section_name(name)}.{argument.replace('_', '-')}": values[dataset]
        for argument, values in _tuned(maker, arguments(maker, registry.offered)).items()
        if dataset in values
    }


def _tuned(
    maker: Maker, fields: Mapping[str, tuple[Any, Any]]
) -> Mapping[str, Mapping[str, Scalar]]:
    """Return by argument, and by data set, what its default is there.

    A subclass with a default of its own has that one on every data set.
    """
    found: dict[str, dict[str, Scalar]] = {}
    for kind in inspect.getmro(maker) if isinstance(maker, type) else ():
        declared: Mapping[str, Mapping[str, Scalar]] = vars(kind).get("tuned", {})
        usual = _signature(kind).parameters
        for dataset, values in declared.items():
            for argument, value in values.items():
                if argument in fields and fields[argument][1] == usual[argument].default:
                    found.setdefault(argument, {}).setdefault(dataset, value)
    return found


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
        If it needs an argument that is not offered, or its base class does.
    """
    function, bound = _unbound(maker)
    parts, known = _made_of(function), {**offered, **rest}
    parameters = _signature(function).parameters.values()
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
    try:
        return maker(**({**rest, **given} if takes_any else given))
    except TypeError as error:
        lacking = _lacking(function, error)
        if not lacking:
            raise
        raise ConfigError(
            f"{what}: its base class needs {lacking}: name the argument in your constructor, and "
            "hand it on"
        ) from error


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
            for name, given in self._by_recorded_name(own).items():
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

    def completed(self) -> Self:
        """Return a copy that has every setting of the chosen entries, their defaults included.

        Those that are not built in are imported for it; a default of ``None`` has no value.

        Raises
        ------
        ConfigError
            If one cannot be imported, does not have a setting, or has one that lacks a value; or
            if two have settings under the same name.
        """
        usual: dict[str, Scalar] = {}
        owners: dict[str, str] = {}
        for key, registry in self.registries.items():
            name = getattr(self, key)
            if not registry.is_own(name):
                continue
            keys = section(registry, name)
            if not keys.model_fields:
                continue
            prefix = section_name(name)
            other = owners.setdefault(prefix, registry.key)
            if other != registry.key:
                raise ConfigError(
                    f"{registry.key} = {name!r}: {other} has the section [{prefix}] as well; name "
                    "one of the two by an entry point, or rename it"
                )
            given = {k: v for k, v in self._own.items() if k.startswith(f"{prefix}.")}
            usual |= keys(**given).to_mapping()
        copy = self.model_copy()
        copy._own = {**{k: v for k, v in usual.items() if v is not None}, **self._own}
        return copy

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

    def _by_recorded_name(
        self, own: Mapping[str, Mapping[str, Scalar]]
    ) -> dict[str, dict[str, Scalar]]:
        """Return values by section, those of an entry point under the entry point's name."""
        recorded: dict[str, str] = {}
        for field, registry in self.registries.items():
            first, *others = section_names(registry, str(getattr(self, field)))
            recorded |= dict.fromkeys(others, first)
        more = {kind.section_name() for kind in self._more}
        found: dict[str, dict[str, Scalar]] = {}
        for name, given in own.items():
            is_known = name in more or self._field_of(name) is not None
            place = name if is_known else recorded.get(name, name)
            kept = found.setdefault(place, {})
            for key, value in given.items():
                as_recorded = place + key.removeprefix(name)
                if as_recorded in kept:
                    raise ConfigError(f"{key} = {value!r}: {as_recorded} is the same setting")
                kept[as_recorded] = value
        return found

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
    return {name: parts[name] for name in _signature(maker).parameters if name in parts}


def _constructing(kind: type) -> Iterator[type]:
    """Yield the class whose constructor makes a class, and who gets the keywords handed on."""
    for base in kind.__mro__[:-1]:
        if "__init__" not in vars(base):
            continue
        yield base
        parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            return


def _lacking(maker: Maker, error: TypeError) -> str:
    """Return which argument a base class was not given, by what Python says; empty: none."""
    if not isinstance(maker, type):
        return ""
    _, *bases = _constructing(maker)
    for base in bases:
        _, *own = inspect.signature(vars(base)["__init__"]).parameters.values()
        for parameter in own:
            if parameter.default is parameter.empty and repr(parameter.name) in str(error):
                return repr(parameter.name)
    return ""


def _signature(maker: Maker) -> inspect.Signature:
    """Return what a class or function is called with, with what a constructor hands on."""
    signature = inspect.signature(maker)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    if takes_any and isinstance(maker, type):
        return constructor_signature(maker)
    return signature


@cache
def _declared(maker: Maker) -> Mapping[str, tuple[Any, Any]]:
    """Return the arguments that are declared settings."""
    parameters = _signature(maker).parameters
    return {
        name: (hint, _default(parameters[name]))
        for name, hint in _hints(maker).items()
        if name in parameters
        and any(isinstance(extra, FieldInfo) for extra in getattr(hint, "__metadata__", ()))
    }


def _own_arguments(maker: Maker, offered: frozenset[str]) -> dict[str, tuple[Any, Any]]:
    """Return the declared settings, and the plain values that are not offered."""
    found = dict(_declared(maker))
    hints = _hints(maker)
    for name, parameter in _signature(maker).parameters.items():
        default = parameter.default
        if name in found or name in offered or not isinstance(default, Scalar):
            continue
        kind = hints.get(name)
        if kind not in (bool, int, float, str):
            kind = type(default)
        found[name] = Annotated[kind, Setting("")], default
    return found


def _default(parameter: inspect.Parameter) -> Any:
    return ... if parameter.default is parameter.empty else parameter.default


def _hints(maker: Maker) -> dict[str, Any]:
    """Return the annotations of a constructor's or a function's arguments."""
    if not isinstance(maker, type):
        return _resolved(maker)
    found: dict[str, Any] = {}
    for base in _constructing(maker):
        # A dataclass's constructor is made of the annotations of its fields.
        is_made = "__dataclass_fields__" in vars(base)
        hints = _resolved(base if is_made else vars(base)["__init__"])
        found = {**hints, **found}
    return found


def _resolved(annotated: Any) -> dict[str, Any]:
    """Return annotations as what they mean, but for those imported for type checkers alone."""
    with suppress(NameError):
        return get_type_hints(annotated, include_extras=True)
    found: dict[str, Any] = {}
    names = vars(sys.modules[annotated.__module__])
    for name, hint in annotated.__annotations__.items():
        with suppress(NameError):
            alone = SimpleNamespace(__annotations__={name: hint})
            found |= get_type_hints(alone, names, include_extras=True)
    return found


@cache
def _checks(maker: Maker) -> type[Settings]:
    """Return a class of settings that checks what a constructor is called with."""
    return _model({name: (hint, None) for name, (hint, _) in _declared(maker).items()}, str)


def _model(fields: Mapping[str, tuple[Any, Any]], alias: Callable[[str], str]) -> type[Settings]:
    own: Any = dict(fields)
    named = {"alias_generator": alias}
    return create_model("Settings", __base__=Settings, __cls_kwargs__=named, **own)
