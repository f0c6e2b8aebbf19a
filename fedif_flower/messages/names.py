"""Which arrays of a model and of a record are one: by their names, and what to do if none match."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType

from fedif_flower.errors import ConfigError
from fedif_flower.messages.text import enumerated

# From the name under which an array travels to the one that a model of one's own has for it.
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
_MOST_PAIRS = 3  # That an error spells out.
_MOST_PARTS = 50  # That the name of a model's array has.


def names_in_model(names: Names | None, arrays: Iterable[str]) -> dict[str, str]:
    """Return what a model calls each array of a record, by the name under which it travels.

    Parameters
    ----------
    names : mapping of str to str, or callable, optional
        Says so; an array that a mapping leaves out has one name. ``None``: all have.
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
        called = {name: names(name) for name in sent}
    else:
        known = set(sent)
        if strangers := [name for name in names if name not in known]:
            raise ConfigError(
                f"names has {_quoted(strangers)}, which initial_arrays lack; allowed: "
                f"{_quoted(sent)}"
            )
        called = {name: names.get(name, name) for name in sent}
    owners: dict[str, str] = {}
    for name, own in called.items():
        if not isinstance(own, str):
            raise ConfigError(f"names gives {own!r} for {name!r}; allowed: a name")
        if own in owners:
            raise ConfigError(f"names calls both {owners[own]!r} and {name!r} {own!r}")
        owners[own] = name
    return called


def matched(sent: Iterable[str], own: Collection[str]) -> dict[str, str]:
    """Return which of a model's arrays stand behind the names that were sent, as prefixes tell.

    Two names are one array's if a wrapper alone tells them apart, or if one is the end of the other
    and of no other name.

    Parameters
    ----------
    sent : iterable of str
        Names that the model does not have.
    own : collection of str
        Names of the model that were not sent.
    """
    by_inner = {_unwrapped(name): name for name in own}
    by_end: dict[str, list[str]] = {}
    for name in own:
        for end in _ends(name):
            by_end.setdefault(end, []).append(name)
    found = {}
    for name in sent:
        inner = by_inner.get(_unwrapped(name))
        longer = by_end.get(name, [])
        shorter = [end for end in _ends(name) if end in own]
        if inner is not None:
            found[name] = inner
        elif len(longer) == 1:
            found[name] = longer[0]
        elif shorter:
            found[name] = shorter[0]
    is_clear = len(set(found.values())) == len(found)
    return found if is_clear else {}


def wrapper_of(pairs: Mapping[str, str]) -> str | None:
    """Return the wrapper that tells all pairs of names apart, if one does."""
    for wrapper in WRAPPERS:
        tells = all(_without(wrapper, one) == _without(wrapper, own) for one, own in pairs.items())
        if pairs and tells:
            return wrapper
    return None


def said_of(wrapper: str) -> str:
    """Return which names a wrapper makes."""
    return f"{wrapper + '.'!r} is what {WRAPPERS[wrapper]} puts before names"


def mismatch(
    whose: str,
    unknown: Collection[str],
    unsent: Collection[str],
    own: Collection[str],
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
    own : collection of str
        All its arrays that are not sent.
    tied : mapping of str to str
        Those of them that are sent by their second names, by these.
    """
    wrong = []
    if unknown:
        wrong.append(f"without {_quoted(unknown)}, which initial_arrays have")
    if unsent:
        wrong.append(f"that trains {_quoted(unsent)}, which initial_arrays lack")
    pairs = {**tied, **matched(unknown, own), **matched(unknown, unsent)}
    advice = _advice(whose, unknown, unsent, pairs)
    return f"{whose} was given a model {' and '.join(wrong)}: {advice}"


def reply_mismatch(missing: Collection[str], extra: Collection[str]) -> str:
    """Return what is wrong with a reply that does not have the arrays that were sent."""
    wrong = []
    if missing:
        wrong.append(f"arrays missing: {enumerated(missing)}")
    if extra:
        wrong.append(f"unexpected arrays: {enumerated(extra)}")
    if missing and extra:
        # Short: what is told of a client is cut off somewhere.
        wrong = [
            f"arrays missing: {_first_of(missing)}",
            f"unexpected arrays: {_first_of(extra)}",
        ]
        wrapper = wrapper_of(matched(extra, missing))
        if wrapper is not None:
            wrong.append(said_of(wrapper))
    return "; ".join([*wrong, "a reply has the arrays that were sent"])


def _advice(
    whose: str, unknown: Collection[str], unsent: Collection[str], pairs: Mapping[str, str]
) -> str:
    wrapper = wrapper_of(pairs)
    kept = [name for name in unsent if name not in pairs.values()]
    left = [name for name in unknown if name not in pairs]
    todo = []
    if wrapper is not None:
        is_sent = any(f"{wrapper}." in name for name in unknown)
        inside = f"model.{wrapper}"
        remedy = f"send the arrays of {inside}" if is_sent else f"give {whose} {inside}"
        todo.append(f"{said_of(wrapper)}; {remedy}")
    if pairs:
        either = "or say" if todo else "say"
        todo.append(f"{either} which is which by setup=Setup(names={_spelled(pairs)})")
    elif left and all(name.isdecimal() for name in left):
        todo.append(
            "a list of arrays has no names; in the order of the model's own they are "
            "setup=Setup(names=dict(zip(initial_arrays, model.state_dict(), strict=True)))"
        )
        return ", ".join(todo)
    if kept:
        todo.append("freeze what members keep, by requires_grad_(False)")
    if left:
        todo.append(f"give {whose} a model that has what is sent")
    if kept and left:
        todo.append(f"or say which is which by setup=Setup(names={{{left[0]!r}: ...}})")
    return ", ".join(todo)


def _spelled(pairs: Mapping[str, str]) -> str:
    shown = [f"{one!r}: {other!r}" for one, other in pairs.items()]
    more = [] if len(shown) <= _MOST_PAIRS else ["..."]
    return "{" + ", ".join(shown[:_MOST_PAIRS] + more) + "}"


def _quoted(names: Iterable[str]) -> str:
    return enumerated(map(repr, names))


def _first_of(names: Collection[str]) -> str:
    first = min(names)
    return first if len(names) == 1 else f"{first} and {len(names) - 1} more"


def _ends(name: str) -> list[str]:
    """Return what is left of a name without its first parts, the longest first."""
    parts = name.split(".")
    if len(parts) > _MOST_PARTS:  # Of no model: it would take long to write them all down.
        return []
    return [".".join(parts[first:]) for first in range(1, len(parts))]


def _without(wrapper: str, name: str) -> str:
    return ".".join(part for part in name.split(".") if part != wrapper)


def _unwrapped(name: str) -> str:
    """Return a name without what wrappers put into it."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)
