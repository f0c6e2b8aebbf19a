"""Which arrays of a model and of a record are one: by their names, and what to do if none match."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType

from fedif_flower.errors import ConfigError
from fedif_flower.words import enumerated, listed

# From the name under which an array travels to the name that the server's own model has for it.
Names = Mapping[str, str] | Callable[[str], str]

# What wrappers put before the names of the module inside, and who does.
WRAPPERS: Mapping[str, str] = MappingProxyType(
    {
        "module": "DataParallel or DistributedDataParallel",
        "_orig_mod": "torch.compile",
        "_module": "Opacus",
    }
)
_NONE: Mapping[str, str] = MappingProxyType({})
_MOST_PAIRS = 3  # Pairs of names that an error spells out.
_MOST_PARTS = 50  # Parts that the name of a model's array has.


def names_in_model(names: Names | None, arrays: Iterable[str]) -> dict[str, str]:
    """Return what a model calls each array of a record, by the name under which it travels.

    Parameters
    ----------
    names : mapping of str to str, or callable, optional
        From a name in the record to the model's. An array that a mapping leaves out has the same
        name in both; ``None``: all arrays have.
    arrays : iterable of str
        The names in the record.

    Raises
    ------
    ConfigError
        If a mapping names an array that is not there, a name is no string, or two arrays would be
        one.
    """
    sent = list(arrays)
    if names is None:
        return {name: name for name in sent}
    if callable(names):
        in_model = {name: names(name) for name in sent}
    else:
        unknown = names.keys() - set(sent)
        if unknown:
            raise ConfigError(
                f"names has {_quoted(unknown)}, which initial_arrays lack; allowed: {_quoted(sent)}"
            )
        in_model = {name: names.get(name, name) for name in sent}
    _require_different_names(in_model)
    return in_model


def _require_different_names(in_model: Mapping[str, object]) -> None:
    """Raise ConfigError unless every array has a name of its own in the model."""
    sent_as: dict[str, str] = {}
    for name, model_name in in_model.items():
        if not isinstance(model_name, str):
            raise ConfigError(f"names gives {model_name!r} for {name!r}; allowed: a name")
        if model_name in sent_as:
            raise ConfigError(
                f"names calls both {sent_as[model_name]!r} and {name!r} {model_name!r}"
            )
        sent_as[model_name] = name


def matched(sent: Iterable[str], in_model: Collection[str]) -> dict[str, str]:
    """Return which of a model's arrays stand behind the names that were sent, as prefixes tell.

    Two names are one array's if they differ by a wrapper alone, or if one is the end of the other
    and of no other name.

    Parameters
    ----------
    sent : iterable of str
        Names that the model does not have.
    in_model : collection of str
        Names of the model that were not sent.
    """
    by_unwrapped = {_name_without_wrappers(name): name for name in in_model}
    by_end: dict[str, list[str]] = {}
    for name in in_model:
        for end in _ends(name):
            by_end.setdefault(end, []).append(name)
    pairs = {}
    for name in sent:
        same_inside = by_unwrapped.get(_name_without_wrappers(name))
        longer = by_end.get(name, [])
        shorter = [end for end in _ends(name) if end in in_model]
        if same_inside is not None:
            pairs[name] = same_inside
        elif len(longer) == 1:
            pairs[name] = longer[0]
        elif shorter:
            pairs[name] = shorter[0]
    if len(set(pairs.values())) < len(pairs):
        return {}  # Two names would be one array: nothing is clear then.
    return pairs


def wrapper_of(pairs: Mapping[str, str]) -> str | None:
    """Return the wrapper by which alone all pairs of names differ, if there is one."""
    if not pairs:
        return None
    for wrapper in WRAPPERS:
        if all(_differ_by(wrapper, sent, in_model) for sent, in_model in pairs.items()):
            return wrapper
    return None


def _differ_by(wrapper: str, name: str, other: str) -> bool:
    """Tell whether two names are the same without a wrapper's part."""
    return _without(wrapper, name) == _without(wrapper, other)


def prefix_explained(wrapper: str) -> str:
    """Return where names with a wrapper's prefix come from."""
    prefix = f"{wrapper}."
    return f"{prefix!r} is what {WRAPPERS[wrapper]} puts before names"


def mismatch(
    whose: str,
    unknown: Collection[str],
    unsent: Collection[str],
    all_unsent: Collection[str],
    tied: Mapping[str, str] = _NONE,
) -> str:
    """Return what is wrong where a model and what is sent do not go together, and what to do.

    Parameters
    ----------
    whose : str
        Who was given the model.
    unknown : collection of str
        Arrays that are sent, and that the model does not have.
    unsent : collection of str
        Arrays that it trains, and that are not sent.
    all_unsent : collection of str
        All its arrays that are not sent.
    tied : mapping of str to str
        Arrays of the model that are sent under their second names, by those.
    """
    wrong = []
    if unknown:
        wrong.append(f"without {_quoted(unknown)}, which initial_arrays have")
    if unsent:
        wrong.append(f"that trains {_quoted(unsent)}, which initial_arrays lack")
    pairs = {**tied, **matched(unknown, all_unsent), **matched(unknown, unsent)}
    advice = _advice(whose, unknown, unsent, pairs)
    return f"{whose} was given a model {' and '.join(wrong)}: {advice}"


def reply_mismatch(missing: Collection[str], extra: Collection[str]) -> str:
    """Return what is wrong with a reply that does not have the arrays that were sent."""
    wrong = []
    if missing and extra:
        # Short: a reason of too many characters is cut off, and with it the wrapper.
        wrong.append(f"arrays missing: {_first_of(missing)}")
        wrong.append(f"unexpected arrays: {_first_of(extra)}")
        wrapper = wrapper_of(matched(extra, missing))
        if wrapper is not None:
            wrong.append(prefix_explained(wrapper))
    elif missing:
        wrong.append(f"arrays missing: {enumerated(missing)}")
    elif extra:
        wrong.append(f"unexpected arrays: {enumerated(extra)}")
    wrong.append("a reply has the arrays that were sent")
    return "; ".join(wrong)


def _advice(
    whose: str, unknown: Collection[str], unsent: Collection[str], pairs: Mapping[str, str]
) -> str:
    """Return what to do, where ``pairs`` says which names are one array's as far as it is clear."""
    unpaired = [name for name in unknown if name not in pairs]
    stays_with_members = [name for name in unsent if name not in pairs.values()]
    # The user has sent a plain list of arrays, which Flower calls "0", "1", ...
    if not pairs and unpaired and all(name.isdecimal() for name in unpaired):
        return (
            "a list of arrays has no names; in the order of the model's own they are "
            "setup=Setup(names=dict(zip(initial_arrays, model.state_dict(), strict=True)))"
        )
    todo = []
    # One side's model is wrapped, as by torch.compile, and the other's is not.
    wrapper = wrapper_of(pairs)
    if wrapper is not None:
        todo.append(f"{prefix_explained(wrapper)}; {_advice_on_wrapper(wrapper, whose, unknown)}")
    # The same arrays have other names on the two sides.
    if pairs:
        say = "say"
        if todo:
            say = "or say"
        todo.append(f"{say} which is which by setup=Setup(names={_spelled(pairs)})")
    # What the model trains and nobody sends may be what each member keeps for itself.
    if stays_with_members:
        todo.append("freeze what members keep, by requires_grad_(False)")
    # What is sent and the model does not have needs another model.
    if unpaired:
        todo.append(f"give {whose} a model that has what is sent")
    # Or the two are the same arrays, under names that have nothing in common.
    if stays_with_members and unpaired:
        todo.append(f"or say which is which by setup=Setup(names={{{unpaired[0]!r}: ...}})")
    return ", ".join(todo)


def _advice_on_wrapper(wrapper: str, whose: str, unknown: Collection[str]) -> str:
    """Return what to do about a wrapper, on the side that has it."""
    is_sent = any(f"{wrapper}." in name for name in unknown)
    if is_sent:
        return f"send the arrays of model.{wrapper}"
    return f"give {whose} model.{wrapper}"


def _spelled(pairs: Mapping[str, str]) -> str:
    """Return the first few pairs as Python writes a dict."""
    items = [f"{sent!r}: {in_model!r}" for sent, in_model in pairs.items()]
    if len(items) > _MOST_PAIRS:
        items = [*items[:_MOST_PAIRS], "..."]
    return "{" + ", ".join(items) + "}"


def _quoted(names: Iterable[str]) -> str:
    return enumerated(map(repr, names))


def _first_of(names: Collection[str]) -> str:
    return listed(sorted(names), most=1)


def _ends(name: str) -> list[str]:
    """Return what is left of a name without its first parts, the longest first."""
    parts = name.split(".")
    if len(parts) > _MOST_PARTS:  # No model has it, and all its ends would take much memory.
        return []
    return [".".join(parts[first:]) for first in range(1, len(parts))]


def _without(wrapper: str, name: str) -> str:
    return ".".join(part for part in name.split(".") if part != wrapper)


def _name_without_wrappers(name: str) -> str:
    """Return a name without what wrappers put into it."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)
