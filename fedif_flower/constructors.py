"""Which arguments a constructor takes, and which of them are settings.

``strategy = "fedif"`` makes an object of the class ``FedIF``, whose argument ``gamma`` is the
run-config key ``fedif.gamma``. An argument is a *setting* if it is declared
``Annotated[float, Setting(...)]``, or if it is a plain value with a default. A constructor that
takes ``**base`` has the settings of its base class as well. All other arguments, such as the model,
the validation set and the seed, are *offered* by the code that calls the constructor
(:mod:`fedif_flower.making`).

A class may have two attributes about its settings. ``made_of`` names the arguments that are objects
with settings of their own, with what makes them: ``{"weighting": Weighting}``; ``None`` instead
says that the argument is no setting. ``tuned`` has defaults that differ by data set:
``{"fashion-mnist": {"gamma": 0.4}}``.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, partial
from types import SimpleNamespace
from typing import Annotated, Any, NamedTuple, get_type_hints

from pydantic import create_model
from pydantic.fields import FieldInfo

from fedif_flower.settings import Scalar, Setting, Settings

Maker = Callable[..., Any]  # A class or function that makes an object from arguments.


class Argument(NamedTuple):
    """An argument that is a setting, in the form of a field for pydantic's ``create_model``."""

    annotation: Any  # The type, with the Setting.
    default: Any  # ``...``: there is none.


class CheckedFields:
    """A base of dataclasses: raises ConfigError if a field that is a setting is out of range."""

    def __post_init__(self) -> None:
        """Check the fields."""
        require_settings(type(self), vars(self))


def require_settings(maker: Maker, values: Mapping[str, Any]) -> None:
    """Raise ConfigError if an argument that is declared a setting has a value out of range.

    Parameters
    ----------
    maker : callable
        The class or function that declares them.
    values : mapping
        The arguments that it was called with, by name; only its settings are checked.
    """
    declared = _declared_settings(maker)
    checked = {}
    for name, value in values.items():
        if name not in declared:
            continue
        if value is None and declared[name].default is None:
            continue  # The argument was left out; its type need not allow None.
        # A scalar of NumPy or PyTorch counts as the Python number that it holds.
        checked[name] = value.item() if hasattr(value, "item") else value
    _checking_class(maker)(**checked)


def setting_of(maker: Maker, argument: str) -> Any:
    """Return a constructor's setting as a field of a :class:`~fedif_flower.settings.Settings`."""
    return FieldInfo.from_annotated_attribute(*_declared_settings(maker)[argument])


def arguments(maker: Maker, offered: frozenset[str] = frozenset()) -> dict[str, Argument]:
    """Return type and default of each argument that is a setting, by name.

    Settings of the objects that it is made of are included.

    Parameters
    ----------
    maker : callable
        The class or function; arguments that a ``partial`` binds are left out.
    offered : frozenset of str
        The names of arguments that the caller provides: these are no settings.
    """
    function, bound = unbound(maker)
    parts = makers_of_parts(function)
    settings = direct_settings(function, offered)
    for part_maker in parts.values():
        if part_maker is not None:
            settings |= arguments(part_maker, offered)
    for name in (*offered, *bound, *parts):
        settings.pop(name, None)
    return settings


def tuned_defaults(maker: Maker, fields: Mapping[str, Argument]) -> dict[str, dict[str, Scalar]]:
    """Return the defaults that differ by data set: by argument, and by data set.

    They are declared in ``tuned`` of a class or its bases. Where a subclass has changed the default
    of an argument, that default holds on every data set.

    Parameters
    ----------
    maker : callable
        The class; a function has no such defaults.
    fields : mapping
        Its settings, as :func:`arguments` returns them.
    """
    if not isinstance(maker, type):
        return {}
    by_argument: dict[str, dict[str, Scalar]] = {}
    for kind in inspect.getmro(maker):
        if "tuned" not in vars(kind):
            continue
        tuned: Mapping[str, Mapping[str, Scalar]] = vars(kind)["tuned"]
        parameters = signature_of(kind).parameters
        for dataset, values in tuned.items():
            for argument, value in values.items():
                if argument not in fields:
                    continue
                if fields[argument].default == parameters[argument].default:
                    by_argument.setdefault(argument, {}).setdefault(dataset, value)
    return by_argument


def direct_settings(maker: Maker, offered: frozenset[str]) -> dict[str, Argument]:
    """Return the settings among the arguments, without those of the objects it is made of.

    They are the arguments declared as settings, and the plain values with a default that are not
    offered.
    """
    settings = dict(_declared_settings(maker))
    annotations = _annotations(maker)
    for name, parameter in signature_of(maker).parameters.items():
        default = parameter.default
        if name in settings or name in offered or not isinstance(default, Scalar):
            continue
        kind = annotations.get(name)
        if kind not in (bool, int, float, str):
            kind = type(default)
        settings[name] = Argument(Annotated[kind, Setting("")], default)
    return settings


def settings_class(fields: Mapping[str, Argument], alias: Callable[[str], str]) -> type[Settings]:
    """Return a class of settings with these fields; ``alias`` turns a field's name into a key."""
    definitions: Any = dict(fields)
    keywords = {"alias_generator": alias}
    return create_model("Settings", __base__=Settings, __cls_kwargs__=keywords, **definitions)


def unbound(maker: Maker) -> tuple[Maker, frozenset[str]]:
    """Return the function that a ``partial`` calls, and the names of the arguments that it binds.

    Anything else is returned as it is, with no names.
    """
    if not isinstance(maker, partial):
        return maker, frozenset()
    names = list(inspect.signature(maker.func).parameters)
    bound_by_place = names[: len(maker.args)]
    return maker.func, frozenset([*maker.keywords, *bound_by_place])


def makers_of_parts(maker: Maker) -> dict[str, Maker | None]:
    """Return what makes each argument that is an object with settings of its own, by name.

    It is read from ``made_of``; ``None``: the argument is no setting.
    """
    made_of: Mapping[str, Maker | None] = getattr(maker, "made_of", {})
    return {name: made_of[name] for name in signature_of(maker).parameters if name in made_of}


def signature_of(maker: Maker) -> inspect.Signature:
    """Return a signature, in which ``**keywords`` of a constructor are its bases' arguments."""
    signature = inspect.signature(maker)
    if isinstance(maker, type) and takes_any_keyword(signature.parameters.values()):
        return constructor_signature(maker)
    return signature


def takes_any_keyword(parameters: Iterable[inspect.Parameter]) -> bool:
    """Return whether one of the parameters is ``**keywords``."""
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def constructor_signature(kind: type) -> inspect.Signature:
    """Return the signature of a class that passes keywords on to its bases' constructors.

    Arguments of the bases are included if they have a default, as arguments by keyword.
    """
    parameters: dict[str, inspect.Parameter] = {}
    for place, base in enumerate(_constructing_classes(kind)):
        for parameter in _constructor_parameters(base):
            if parameter.kind is parameter.VAR_KEYWORD:
                continue  # The bases that follow in the loop have these arguments.
            if place == 0:
                parameters[parameter.name] = parameter
            elif parameter.default is not parameter.empty:
                handed_on = parameter.replace(kind=parameter.KEYWORD_ONLY)
                parameters.setdefault(parameter.name, handed_on)
    return inspect.Signature(sorted(parameters.values(), key=lambda parameter: parameter.kind))


def required_by_bases(kind: type) -> list[str]:
    """Return the arguments without a default of the bases to which a class passes keywords on."""
    names: list[str] = []
    _, *bases = _constructing_classes(kind)
    for base in bases:
        parameters = _constructor_parameters(base)
        required = [each for each in parameters if each.default is each.empty]
        names += [parameter.name for parameter in required]
    return names


def _constructing_classes(kind: type) -> Iterator[type]:
    """Yield the classes whose constructors are called, from the class itself upwards.

    The last one does not pass keywords on.
    """
    for base in kind.__mro__[:-1]:
        if "__init__" not in vars(base):
            continue
        yield base
        if not takes_any_keyword(_constructor_parameters(base)):
            return


def _constructor_parameters(kind: type) -> list[inspect.Parameter]:
    """Return the parameters of a class's own ``__init__``, without ``self``."""
    _, *parameters = inspect.signature(vars(kind)["__init__"]).parameters.values()
    return parameters


@cache
def _checking_class(maker: Maker) -> type[Settings]:
    """Return a class of settings that checks a constructor's arguments; none is required."""
    optional = {}
    for name, argument in _declared_settings(maker).items():
        optional[name] = Argument(argument.annotation, None)
    return settings_class(optional, alias=str)


@cache
def _declared_settings(maker: Maker) -> Mapping[str, Argument]:
    """Return the arguments that are declared ``Annotated[..., Setting(...)]``."""
    parameters = signature_of(maker).parameters
    settings = {}
    for name, annotation in _annotations(maker).items():
        if name in parameters and _is_declared_setting(annotation):
            settings[name] = Argument(annotation, _default(parameters[name]))
    return settings


def _is_declared_setting(annotation: Any) -> bool:
    """Return whether an annotation is ``Annotated[..., Setting(...)]``."""
    metadata = getattr(annotation, "__metadata__", ())
    return any(isinstance(extra, FieldInfo) for extra in metadata)


def _default(parameter: inspect.Parameter) -> Any:
    """Return a parameter's default, or pydantic's ``...`` if it has none."""
    return ... if parameter.default is parameter.empty else parameter.default


def _annotations(maker: Maker) -> dict[str, Any]:
    """Return the annotations of a constructor's or a function's arguments."""
    if not isinstance(maker, type):
        return _resolved(maker)
    annotations: dict[str, Any] = {}
    for base in _constructing_classes(maker):
        # A dataclass's constructor is generated: the annotations are those of its fields.
        is_dataclass = "__dataclass_fields__" in vars(base)
        annotated = base if is_dataclass else vars(base)["__init__"]
        annotations = {**_resolved(annotated), **annotations}
    return annotations


def _resolved(annotated: Any) -> dict[str, Any]:
    """Return annotations as objects, without those that are imported for type checkers only."""
    with suppress(NameError):
        return get_type_hints(annotated, include_extras=True)
    # A name in one of them does not exist at run time. Each is resolved by itself, so that all
    # others are returned.
    resolved: dict[str, Any] = {}
    names = vars(sys.modules[annotated.__module__])
    for name, hint in annotated.__annotations__.items():
        with suppress(NameError):
            alone = SimpleNamespace(__annotations__={name: hint})
            resolved |= get_type_hints(alone, names, include_extras=True)
    return resolved
