"""A registered name's section of the run config: ``fedif.gamma`` is a setting of ``FedIF``.

The settings of a name are read off the constructor that makes it
(:mod:`fedif_flower.constructors`); they are declared nowhere else.
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
    """Return the section of a name: the name itself, or the last part of ``module:object``."""
    path_in_module = name.split(":")[-1]
    return path_in_module.split(".")[-1]


def section_names(registry: Registry, name: str) -> tuple[str, ...]:
    """Return all sections that the keys of a name may have; records have the first one.

    The keys of an entry point may also have the section of its object, as if the object were named
    by ``module:object``.
    """
    first = section_name(name)
    path = registry.path_of(name)
    if path and section_name(path) != first:
        return first, section_name(path)
    return (first,)


def section(registry: Registry, name: str) -> type[Settings]:
    """Return the class of settings of a name, with keys such as ``fedif.gamma``.

    A name that is not built in is imported for it.
    """
    return _section(registry[name], name, registry.offered, tuple(registry.auto.items()))


@cache
def _section(
    maker: Maker, name: str, offered: frozenset[str], auto: tuple[tuple[str, str], ...]
) -> type[Settings]:
    """Return what :func:`section` does; the arguments can be hashed for the cache."""
    fields = arguments(maker, offered)
    # What "auto" stands for, by argument: as the registry says, or as the class says by ``tuned``.
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
    """Return the argument as one that may be ``"auto"`` in a run config.

    ``meaning`` says in words what ``"auto"`` stands for.
    """
    kind, default = argument
    extra: Any = {"auto": meaning}
    return Argument(Annotated[kind, Field(json_schema_extra=extra)], default)


def tuned(registry: Registry, name: str, dataset: str) -> dict[str, Scalar]:
    """Return the defaults, by key, that differ on a data set from the usual ones."""
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
    """Rename a constructor's argument to its run-config key in errors within the context."""
    try:
        yield
    except ConfigError as error:
        # errors.require writes "argument = value; allowed: ...".
        argument, _, rest = str(error).partition(" = ")
        field = section(registry, name).model_fields.get(argument)
        if field is None:
            raise
        raise ConfigError(f"{field.alias} = {rest}") from error


class SectionedSettings(Settings):
    """Settings with sections: ``fedif.gamma`` counts if ``strategy`` is ``"fedif"``.

    A field such as ``strategy`` names one of several entries, each of which may have a section. A
    key in the section of an entry that is not chosen is refused, unless its value is the default:
    ``flwr run`` sends all keys that it knows with every run.
    """

    # The entries that may be chosen, by the field that names one.
    registries: ClassVar[Mapping[str, Registry]] = MappingProxyType({})
    # By field, a name that leaves the choice to others: then keys of all its sections are allowed.
    undecided: ClassVar[Mapping[str, str]] = MappingProxyType({})
    # Sections that belong to no field, but to parts of a run.
    _free_sections: tuple[type[Settings], ...] = PrivateAttr(default=())
    # The values that are set in sections, by key; in built-in sections only if no default.
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
        """Return the values that are set for the chosen entry, by its constructor's arguments.

        Parameters
        ----------
        key : str
            The field that names the entry: ``"strategy"``.

        Raises
        ------
        ConfigError
            If a key is no setting of an entry that is not built in, or its value is not allowed.
        """
        registry = self.registries[key]
        name = getattr(self, key)
        values = self._values_in(section_name(name))
        if not values:
            return {}  # The entry need not be imported.
        return section(registry, name)(**values).model_dump(exclude_unset=True)

    def completed(self) -> Self:
        """Return a copy with every setting of the chosen entries that are not built in.

        These entries are imported to get their defaults. Settings whose default is ``None`` are
        left out.

        Raises
        ------
        ConfigError
            If an entry cannot be imported, or needs an argument that is not offered; if a key is no
            setting of it, or a setting without a default has no value; or if two entries have the
            same section.
        """
        values: dict[str, Scalar] = {}
        owners: dict[str, str] = {}  # The key that names a section's entry, by section.
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
        """Make the object that the chosen entry stands for, and return it.

        Parameters
        ----------
        key : str
            The field that names the entry: ``"attack"``.
        kind : type
            The type that the object has to have.
        offered : mapping
            Arguments that it may take, as in :func:`~fedif_flower.making.make`.

        Raises
        ------
        ConfigError
            If the object is of another type, if its constructor needs an argument that is not
            offered, or if a setting does not exist or is not allowed.
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
        """Return a checked copy with other values, without sections that are no longer chosen."""
        values: dict[str, Any] = self.model_dump(exclude_unset=True)
        for key, value in self._in_sections.items():
            field = self._field_of(key)
            if field in changes and section_name(str(changes[field])) != _section_of(key):
                continue
            values[key] = value
        values |= changes
        return type(self)(sections=self._free_sections, **values)  # type: ignore[call-arg]

    def extract(self, wanted: type[_Part]) -> _Part:
        """Return the values that ``wanted``, another class of settings, declares."""
        values = {name: getattr(self, name) for name in wanted.model_fields}
        if issubclass(wanted, SectionedSettings):
            fields = wanted.registries
            in_sections = self._in_sections.items()
            values |= {key: value for key, value in in_sections if self._field_of(key) in fields}
        return wanted(**values)

    def section(self, kind: type[_Part]) -> _Part:
        """Return the values of a section that belongs to no field; what is not set has its default.

        ``kind`` is its class of settings.
        """
        keys = kind.key_names()
        return kind(**{key: value for key, value in self._in_sections.items() if key in keys})

    def to_mapping(self) -> dict[str, Scalar]:
        """Return the values by run-config key, including those of the chosen sections."""
        values = super().to_mapping()
        for kind in (*self._chosen_built_in(), *self._free_sections):
            values |= kind().to_mapping()
        return values | self._in_sections

    def identity(self) -> dict[str, Scalar]:
        """Return the values by key on which a result depends.

        In sections of built-in entries, only values that are not the default are included.
        """
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
        """Return the run config's defaults by key, including those of every built-in section."""
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
        """Raise ConfigError for a key in a section that does not exist."""
        raise ConfigError(unknown_key(key, list(self.defaults())))

    def _require_free_names(self) -> None:
        """Raise ConfigError if the section of an entry from another package has a name in use.

        Since ``flwr run`` sends all defaults with a run, it would not be clear to which of the two
        sections a key belongs.
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
        """Return the values that are set in a section, by key."""
        prefix = f"{name}."
        return {key: value for key, value in self._in_sections.items() if key.startswith(prefix)}

    def _chosen_built_in(self) -> list[type[Settings]]:
        """Return the sections of the chosen entries that are built in."""
        kinds = []
        for field, registry in self.registries.items():
            name = getattr(self, field)
            if name in registry.built_in:
                kinds.append(section(registry, name))
        return kinds

    def _by_recorded_name(
        self, by_section: Mapping[str, Mapping[str, Scalar]]
    ) -> dict[str, dict[str, Scalar]]:
        """Return values by section, under the section's first name (:func:`section_names`)."""
        recorded_names: dict[str, str] = {}
        for field, registry in self.registries.items():
            recorded, *others = section_names(registry, str(getattr(self, field)))
            for other in others:
                recorded_names[other] = recorded
        renamed: dict[str, dict[str, Scalar]] = {}
        for name, values in by_section.items():
            place = name
            # The name of an existing section is never taken for another section's second name.
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
        """Return the section of this name that belongs to no field, if there is one."""
        for kind in self._free_sections:
            if kind.section_name() == name:
                return kind
        return None

    def _field_of(self, key: str) -> str | None:
        """Return the field that names the entry of a section, or of a key in it.

        A chosen entry of another package comes first, since a built-in entry without settings may
        have the same name and has no section. ``None``: there is no such entry.
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
        """Return whether a field names an entry of another package that has this section."""
        chosen = getattr(self, field)
        return self.registries[field].is_own(chosen) and name == section_name(chosen)

    def _checked(self, name: str, values: Mapping[str, Scalar]) -> Mapping[str, Scalar]:
        """Return the values of a section that are not the defaults, by key.

        Raises
        ------
        ConfigError
            If a key does not exist, a value is not allowed, or the section's entry is not chosen.
        """
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
            return values  # Checking them would import the entry: build() does that.
        changed = _without_defaults(section(registry, name), values)
        is_chosen = getattr(self, field) in (name, self.undecided.get(field))
        if changed and not is_chosen:
            key, value = next(iter(changed.items()))
            raise ConfigError(f"{key} = {value!r}; allowed: only with {registry.key} {name!r}")
        return changed


def _section_of(key: str) -> str:
    """Return the section of a key; the section itself for a section's name."""
    return key.split(".")[0]


def _without_defaults(kind: type[Settings], values: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Check the values of a section, and return by key those that are not the defaults."""
    run_config = kind.defaults()  # With "auto", unlike the defaults below.
    explicit = {}
    for key, value in values.items():
        stands_for_default = value == AUTO and run_config.get(key) == AUTO
        if not stands_for_default:
            explicit[key] = value
    defaults = kind().to_mapping()
    checked = kind(**explicit).to_mapping()
    return {key: value for key, value in checked.items() if value != defaults[key]}
