"""Which array of a record is which array of a model, by their names; advice if names differ."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType

from fedif_flower.errors import ConfigError
from fedif_flower.words import enumerated, listed

# From an array's name in a message to its name in the server's own model.
Names = Mapping[str, str] | Callable[[str], str]

# The part that wrappers put before the names of the module inside, and the wrappers that do so.
WRAPPERS: Mapping[str, str] = MappingProxyType(
    {
        "module": "DataParallel or DistributedDataParallel",
        "_orig_mod": "torch.compile",
        "_module": "Opacus",
    }
)
_NONE: Mapping[str, str] = MappingProxyType({})
_MOST_PAIRS = 3  # Pairs of names that an error spells out.
_MOST_PARTS = 50  # No model's array has a name of more parts; a hostile reply's may have.


def names_in_model(names: Names | None, arrays: Iterable[str]) -> dict[str, str]:
    """Return each array's name in the model, by its name in the record.

    Parameters
    ----------
    names : mapping of str to str, or callable, optional
        From a name in the record to the name in the model. An array that a mapping leaves out has
        the same name in both. ``None``: all arrays have.
    arrays : iterable of str
        The names in the record.

    Raises
    ------
    ConfigError
        If a mapping names an array that is not in the record, a name in the model is no string, or
        two arrays get the same name.
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
    """Raise ConfigError unless the arrays' names in the model are strings and all different."""
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
    """Guess which sent name is which name of the model, where the two differ by a prefix.

    Two names belong together if they are equal without the parts that wrappers add. They also do if
    one ends in the other: a sent name that is the end of several names of the model is left out.

    Parameters
    ----------
    sent : iterable of str
        Names that the model does not have.
    in_model : collection of str
        Names of the model that were not sent.

    Returns
    -------
    dict of str to str
        Names in the model by sent names; empty if two sent names would get the same one.
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
        return {}  # Two sent names would be one array, so the guess is wrong somewhere.
    return pairs


def wrapper_of(pairs: Mapping[str, str]) -> str | None:
    """Return the wrapper whose part in a name makes the only difference in all pairs, if any."""
    if not pairs:
        return None
    for wrapper in WRAPPERS:
        if all(_differ_by(wrapper, sent, in_model) for sent, in_model in pairs.items()):
            return wrapper
    return None


def _differ_by(wrapper: str, name: str, other: str) -> bool:
    """Return whether two names are equal without the part that a wrapper adds."""
    return _without(wrapper, name) == _without(wrapper, other)


def prefix_explained(wrapper: str) -> str:
    """Return words that say which wrapper puts a prefix before names."""
    prefix = f"{wrapper}."
    return f"{prefix!r} is what {WRAPPERS[wrapper]} puts before names"


def mismatch(
    whose: str,
    unknown: Collection[str],
    unsent: Collection[str],
    all_unsent: Collection[str],
    tied: Mapping[str, str] = _NONE,
) -> str:
    """Return an error message for a model that does not have the arrays that are sent.

    The message says which arrays differ, and what to do about it.

    Parameters
    ----------
    whose : str
        Who was given the model, such as a validation set.
    unknown : collection of str
        Arrays that are sent, and that the model does not have.
    unsent : collection of str
        Arrays that the model trains, and that are not sent.
    all_unsent : collection of str
        All of the model's arrays that are not sent.
    tied : mapping of str to str
        From the name under which an array is sent to its name in ``unsent``, for tied arrays that
        are sent under their second names.
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
    """Return an error message for a reply that does not have exactly the arrays that were sent."""
    wrong = []
    if missing and extra:
        # Only the first names: long reasons are cut off, and the wrapper stands at their end.
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
    """Return what the user can do; ``pairs`` has the model's name by sent name, where known."""
    unpaired = [name for name in unknown if name not in pairs]
    stays_with_members = [name for name in unsent if name not in pairs.values()]
    # The user sent a plain list of arrays; Flower gives these the names "0", "1", ...
    if not pairs and unpaired and all(name.isdecimal() for name in unpaired):
        return (
            "a list of arrays has no names; in the order of the model's own they are "
            "setup=Setup(names=dict(zip(initial_arrays, model.state_dict(), strict=True)))"
        )
    todo = []
    # One side's model is wrapped, for example by torch.compile, and the other side's is not.
    wrapper = wrapper_of(pairs)
    if wrapper is not None:
        todo.append(f"{prefix_explained(wrapper)}; {_advice_on_wrapper(wrapper, whose, unknown)}")
    # Some arrays have one name on one side and another name on the other.
    if pairs:
        say = "say"
        if todo:
            say = "or say"
        todo.append(f"{say} which is which by setup=Setup(names={_spelled(pairs)})")
    # An array that the model trains and nobody sends may be one that each member keeps for itself.
    if stays_with_members:
        todo.append("freeze what members keep, by requires_grad_(False)")
    # An array that is sent needs a model that has it.
    if unpaired:
        todo.append(f"give {whose} a model that has what is sent")
    # Or both are the same arrays, under names that have nothing in common.
    if stays_with_members and unpaired:
        todo.append(f"or say which is which by setup=Setup(names={{{unpaired[0]!r}: ...}})")
    return ", ".join(todo)


def _advice_on_wrapper(wrapper: str, whose: str, unknown: Collection[str]) -> str:
    """Return how to take the wrapper off: from what is sent, or else from ``whose`` model."""
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
    """Return a dotted name's proper ends, the longest first: of "a.b.c", "b.c" and "c"."""
    parts = name.split(".")
    if len(parts) > _MOST_PARTS:  # All ends of a hostile reply's name would take much memory.
        return []
    return [".".join(parts[first:]) for first in range(1, len(parts))]


def _without(wrapper: str, name: str) -> str:
    return ".".join(part for part in name.split(".") if part != wrapper)


def _name_without_wrappers(name: str) -> str:
    """Return a name without the parts that wrappers add."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)
