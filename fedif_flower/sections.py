"""A registered name's section of the run config: ``fedif.gamma`` is a setting of ``FedIF``.

What a name's settings are is read off the constructor that makes it (see
:mod:`fedif_flower.constructors`), and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, TypeVar

from pydantic import Field, PrivateAttr

from fedif_flower.constructors import (
    Argument,
    Maker,
    arguments,
    settings_class,
    tuned_defaults,
)
from fedif_flower.errors import ConfigError
from fedif_flower.making import make, require_offered
from fedif_flower.registry import Registry
from fedif_flower.settings import AUTO, Scalar, Settings, extra_of, in_section, unknown_key

_T = TypeVar("_T")
_Part = TypeVar("_Part", bound=Settings)


def section_name(name: str) -> str:
    """Return what the keys of a name begin with: the name, or the last part of an import string."""
    path_in_module = name.split(":")[-1]
    return path_in_module.split(".")[-1]


def section_names(registry: Registry, name: str) -> tuple[str, ...]:
    """Return all that the keys of a name may begin with; the first is how records have it.

    An entry point's keys may also begin with the name of its object, as if this were named by
    ``module:object``.
    """
    first = section_name(name)
    path = registry.path_of(name)
    if path and section_name(path) != first:
        return first, section_name(path)
    return (first,)


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
    # By argument: what "auto" stands for, by the registry and then by the class itself.
    meanings: dict[str, str] = {}
    for key, meaning in auto:
        meanings[key.removeprefix(f"{name}.")] = meaning
    for argument, values in tuned_defaults(maker, fields).items():
        by_dataset = ", ".join(f"{value} for {dataset}" for dataset, value in values.items())
        meanings[argument] = f"{by_dataset}, {fields[argument].default} otherwise"
    for argument, meaning in meanings.items():
        if argument in fields:
            fields[argument] = _with_auto(fields[argument], meaning)
    return settings_class(fields, in_section(section_name(name)))


def _with_auto(argument: Argument, meaning: str) -> Argument:
    """Return an argument that may be ``"auto"`` in a run config."""
    kind, default = argument
    extra: Any = {"auto": meaning}
    return Argument(Annotated[kind, Field(json_schema_extra=extra)], default)


def tuned(registry: Registry, name: str, dataset: str) -> dict[str, Scalar]:
    """Return by key what the class of a name has on a data set in place of its defaults."""
    maker = registry[name]
    key_of = in_section(section_name(name))
    by_argument = tuned_defaults(maker, arguments(maker, registry.offered))
    return {
        key_of(argument): values[dataset]
        for argument, values in by_argument.items()
        if dataset in values
    }


@contextmanager
def named_by_key(registry: Registry, name: str) -> Iterator[None]:
    """Let what a name's constructor refuses be called as the run config calls it."""
    try:
        yield
    except ConfigError as error:
        argument, _, rest = str(error).partition(" = ")
        field = section(registry, name).model_fields.get(argument)
        if field is None:
            raise
        raise ConfigError(f"{field.alias} = {rest}") from error


class SectionedSettings(Settings):
    """Settings some of whose keys belong to what others name: ``fedif.gamma`` to ``fedif``.

    A key of a section that is not the chosen one is refused, unless its value is the default:
    ``flwr run`` sends every key that it knows along.
    """

    # By the field that names an entry: its choices.
    registries: ClassVar[Mapping[str, Registry]] = MappingProxyType({})
    # By such a key: the name with which the choice is left to others, and all sections count.
    undecided: ClassVar[Mapping[str, str]] = MappingProxyType({})
    # Sections that no field names: a run's parts have such.
    _free_sections: tuple[type[Settings], ...] = PrivateAttr(default=())
    # By key: what is set in a section, and is not its default.
    _in_sections: dict[str, Scalar] = PrivateAttr(default_factory=dict)

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        registries: dict[str, Registry] = {}
        for base in cls.__bases__:
            registries |= getattr(base, "registries", {})
        for name, field in cls.model_fields.items():
            choices = extra_of(field, "choices")
            if isinstance(choices, Registry):
                registries[name] = choices
        cls.registries = registries

    if not TYPE_CHECKING:

        def __init__(self, *, sections: Sequence[type[Settings]] = (), **values: Any) -> None:
            by_section: dict[str, dict[str, Scalar]] = {}
            for key in list(values):
                if "." in key:
                    by_section.setdefault(_section_of(key), {})[key] = values.pop(key)
            super().__init__(**values)
            self._free_sections = tuple(sections)
            for field, registry in self.registries.items():
                registry.require_one(getattr(self, field))
            self._require_free_names()
            for name, section_values in self._by_recorded_name(by_section).items():
                self._in_sections |= self._checked(name, section_values)

    def settings_of(self, key: str) -> dict[str, Any]:
        """Return what the chosen entry is set to, by the names of its constructor's arguments.

        Parameters
        ----------
        key : str
            The field that names the entry: ``"strategy"``.

        Raises
        ------
        ConfigError
            If an entry that is not built in does not have a setting, or a value is not allowed.
        """
        registry = self.registries[key]
        name = getattr(self, key)
        values = self._values_in(section_name(name))
        if not values:
            return {}  # Nothing is imported for it.
        return section(registry, name)(**values).model_dump(exclude_unset=True)

    def completed(self) -> Self:
        """Return a copy that has every setting of the chosen entries, their defaults included.

        Those that are not built in are imported for it; a default of ``None`` has no value.

        Raises
        ------
        ConfigError
            If one cannot be imported, does not have a setting, has one that lacks a value, or needs
            what nobody offers; or if two have settings under the same name.
        """
        values: dict[str, Scalar] = {}
        owners: dict[str, str] = {}  # By section, the key that names its entry.
        for field, registry in self.registries.items():
            name = getattr(self, field)
            if not registry.is_own(name):
                continue
            require_offered(f"{registry.key} {name!r}", registry[name], sorted(registry.offered))
            settings = section(registry, name)
            if not settings.model_fields:
                continue
            prefix = section_name(name)
            owner = owners.setdefault(prefix, registry.key)
            if owner != registry.key:
                raise ConfigError(
                    f"{registry.key} = {name!r}: {owner} has the section [{prefix}] as well; name "
                    "one of the two by an entry point, or rename it"
                )
            values |= settings(**self._values_in(prefix)).to_mapping()
        with_value = {key: value for key, value in values.items() if value is not None}
        copy = self.model_copy()
        copy._in_sections = {**with_value, **self._in_sections}
        return copy

    def build(self, key: str, kind: type[_T], offered: Mapping[str, Any]) -> _T:
        """Return what the chosen entry makes.

        Parameters
        ----------
        key : str
            The field that names the entry: ``"attack"``.
        kind : type
            Of what it has to make.
        offered : mapping
            As :func:`~fedif_flower.making.make` takes it.

        Raises
        ------
        ConfigError
            If it makes something else, needs more, or has no such setting.
        """
        registry = self.registries[key]
        name = getattr(self, key)
        words = f"{registry.key} {name!r}"
        settings = self.settings_of(key)
        with named_by_key(registry, name):
            instance = make(words, registry[name], offered, settings)
        if not isinstance(instance, kind):
            raise ConfigError(
                f"{registry.key} = {name!r} is of type {type(instance).__name__}; allowed: a "
                f"{kind.__module__}.{kind.__name__}, or a function that returns one"
            )
        return instance

    def replace(self, **changes: Scalar) -> Self:
        """Return a copy with other values, checked; sections that are no longer chosen go."""
        values: dict[str, Any] = self.model_dump(exclude_unset=True)
        for key, value in self._in_sections.items():
            field = self._field_of(key)
            if field in changes and section_name(str(changes[field])) != _section_of(key):
                continue
            values[key] = value
        values |= changes
        return type(self)(sections=self._free_sections, **values)  # type: ignore[call-arg]

    def part(self, wanted: type[_Part]) -> _Part:
        """Return the values that ``wanted``, another class of settings, declares."""
        values = {name: getattr(self, name) for name in wanted.model_fields}
        if issubclass(wanted, SectionedSettings):
            fields = wanted.registries
            in_sections = self._in_sections.items()
            values |= {key: value for key, value in in_sections if self._field_of(key) in fields}
        return wanted(**values)

    def section(self, kind: type[_Part]) -> _Part:
        """Return a section that nothing names; its defaults where there is none."""
        keys = kind.key_names()
        return kind(**{key: value for key, value in self._in_sections.items() if key in keys})

    def to_mapping(self) -> dict[str, Scalar]:
        """Return the values by run-config key, the chosen sections' included."""
        values = super().to_mapping()
        for kind in (*self._chosen_built_in(), *self._free_sections):
            values |= kind().to_mapping()
        return values | self._in_sections

    def identity(self) -> dict[str, Scalar]:
        """Return the values by key on which a result depends; of sections, what is no default."""
        quiet: set[str] = set()  # Keys on which no result depends.
        for kind in self._free_sections:
            defaults = kind()
            quiet |= defaults.to_mapping().keys() - defaults.identity().keys()
        values = super().identity()
        for key, value in self._in_sections.items():
            if key not in quiet:
                values[key] = value
        return values

    @classmethod
    def defaults(cls) -> dict[str, Scalar]:
        """Return the run config's defaults by key, every built-in section's included."""
        values = super().defaults()
        for kind in cls.sections().values():
            values |= kind.defaults()
        return values

    @classmethod
    def sections(cls) -> dict[str, type[Settings]]:
        """Return the built-in sections that have settings, by name."""
        by_name = {}
        for registry in cls.registries.values():
            for name in registry.built_in:
                kind = section(registry, name)
                if kind.model_fields:
                    by_name[name] = kind
        return by_name

    def _refuse_unknown(self, key: str, value: Scalar) -> None:  # noqa: ARG002
        """Raise ConfigError for a key of a section that nothing has."""
        raise ConfigError(unknown_key(key, list(self.defaults())))

    def _require_free_names(self) -> None:
        """Raise ConfigError where a section of one's own has the name of one that is there.

        ``flwr run`` sends all defaults along: nobody can tell whose a key of both would be.
        """
        chosen = {field: getattr(self, field) for field in self.registries}
        for field, registry in self.registries.items():
            name = chosen[field]
            if not registry.is_own(name):
                continue
            section = section_name(name)
            others = [chosen[other] for other in chosen if other != field]
            is_part = self._free_section(section) is not None
            if is_part or section in self.sections() or section in others:
                raise ConfigError(
                    f"{registry.key} = {name!r}: there is a section [{section}] already; rename "
                    "it, or name it by an entry point"
                )

    def _values_in(self, name: str) -> dict[str, Scalar]:
        """Return by key what is set in a section."""
        prefix = f"{name}."
        return {key: value for key, value in self._in_sections.items() if key.startswith(prefix)}

    def _chosen_built_in(self) -> list[type[Settings]]:
        """Return the sections of those chosen entries that are built in."""
        kinds = []
        for field, registry in self.registries.items():
            name = getattr(self, field)
            if name in registry.built_in:
                kinds.append(section(registry, name))
        return kinds

    def _by_recorded_name(
        self, by_section: Mapping[str, Mapping[str, Scalar]]
    ) -> dict[str, dict[str, Scalar]]:
        """Return values by section; an entry point's stand under its own name."""
        recorded_names: dict[str, str] = {}
        for field, registry in self.registries.items():
            recorded, *others = section_names(registry, str(getattr(self, field)))
            for other in others:
                recorded_names[other] = recorded
        renamed: dict[str, dict[str, Scalar]] = {}
        for name, values in by_section.items():
            place = name
            # A section that goes by its own name is not taken for another's second name.
            if self._free_section(name) is None and self._field_of(name) is None:
                place = recorded_names.get(name, name)
            section_values = renamed.setdefault(place, {})
            for key, value in values.items():
                recorded_key = place + key.removeprefix(name)
                if recorded_key in section_values:
                    raise ConfigError(f"{key} = {value!r}: {recorded_key} is the same setting")
                section_values[recorded_key] = value
        return renamed

    def _free_section(self, name: str) -> type[Settings] | None:
        """Return a section that no field names."""
        for kind in self._free_sections:
            if kind.section_name() == name:
                return kind
        return None

    def _field_of(self, key: str) -> str | None:
        """Return the field that names the entry to which a section, or a key of it, belongs.

        What is chosen of one's own comes first: a built-in name without settings needs no section.
        """
        name = _section_of(key)
        for field in self.registries:
            if self._is_own_section(field, name):
                return field
        for field, registry in self.registries.items():
            if name in registry.built_in:
                return field
        return None

    def _is_own_section(self, field: str, name: str) -> bool:
        """Return whether a field names an entry of one's own that has this section."""
        chosen = getattr(self, field)
        return self.registries[field].is_own(chosen) and name == section_name(chosen)

    def _checked(self, name: str, values: Mapping[str, Scalar]) -> Mapping[str, Scalar]:
        """Return those keys of a section that are not their defaults, or raise ConfigError."""
        free_section = self._free_section(name)
        if free_section is not None:
            return _without_defaults(free_section, values)
        field = self._field_of(name)
        if field is None:
            for key, value in values.items():
                self._refuse_unknown(key, value)
            return {}
        registry = self.registries[field]
        if self._is_own_section(field, name):
            return values  # Nothing is imported before it is made.
        changed = _without_defaults(section(registry, name), values)
        is_chosen = getattr(self, field) in (name, self.undecided.get(field))
        if changed and not is_chosen:
            key, value = next(iter(changed.items()))
            raise ConfigError(f"{key} = {value!r}; allowed: only with {registry.key} {name!r}")
        return changed


def _section_of(key: str) -> str:
    """Return the section of a key; a section's name is its own."""
    return key.split(".")[0]


def _without_defaults(kind: type[Settings], values: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return by key, checked, those values of a section that are not its defaults."""
    run_config = kind.defaults()
    explicit = {}
    for key, value in values.items():
        stands_for_default = value == AUTO and run_config.get(key) == AUTO
        if not stands_for_default:
            explicit[key] = value
    defaults = kind().to_mapping()
    checked = kind(**explicit).to_mapping()
    return {key: value for key, value in checked.items() if value != defaults[key]}
