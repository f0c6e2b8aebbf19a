"""A griffe extension: docstrings become Markdown, with an entry for each parameter."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from typing import Any

import griffe

_BLOCK = re.compile(
    r"^(?P<indent> *)\.\. math::(?P<formula>.*?)(?=\n *\n|\Z)", flags=re.DOTALL | re.MULTILINE
)
_INLINE = re.compile(r":math:`([^`]+)`")
_QUOTE = re.compile(r"^( *)>(=?)(?= )", flags=re.MULTILINE)  # Markdown would quote "> 0"
# Names that share one entry, its type and its lines, which are indented further or empty.
_SHARED = re.compile(
    r"^(?P<indent> *)(?P<names>\w+(?:, \w+)+)(?P<entry> : .*(?:\n(?:(?P=indent) +.*| *$))*)\n?",
    flags=re.MULTILINE,
)
_PARAMETERS = re.compile(
    r"(?<=^Parameters\n----------\n).*?(?=^\S[^\n]*\n---|\Z)", re.DOTALL | re.MULTILINE
)
_ROLE = re.compile(r":(?:class|func|meth|attr|data|mod|exc):`(~?)([\w.]+)`")


class MarkdownDocstrings(griffe.Extension):
    """Rewrites every docstring before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the docstring of one module, class, function or attribute."""
        del kwargs
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value, _scopes(obj))


def _scopes(obj: griffe.Object) -> dict[str, str]:
    """Return the paths of the names that ``obj`` can see: of its module, then of its class."""
    scope = obj if obj.is_class or obj.is_module else obj.parent
    names = {name: f"{obj.module.path}.{name}" for name in obj.module.members}
    if scope is not None and scope.is_class:
        names |= {name: f"{scope.path}.{name}" for name in scope.members}
    return names


def to_markdown(docstring: str, names: Mapping[str, str]) -> str:
    """Return ``docstring`` with Markdown's formulas and links.

    ``names`` are the paths of names without dots. What the reference does not hold becomes plain
    code.
    """
    text = _PARAMETERS.sub(lambda match: _SHARED.sub(_entry_each, match[0]), docstring)
    text = _QUOTE.sub(lambda match: f"{match[1]}{'≥' if match[2] else '&gt;'}", text)
    text = _BLOCK.sub(_block, text)
    text = _INLINE.sub(lambda match: f"${_one_line(match.group(1))}$", text)
    return _ROLE.sub(lambda match: _link(match, names), text)


def _entry_each(match: re.Match[str]) -> str:
    """Return an entry for each name: one of several would show the first name's default for all."""
    entries = [f"{match['indent']}{name}{match['entry']}" for name in match["names"].split(", ")]
    return "\n".join(entries) + "\n"


def _block(match: re.Match[str]) -> str:
    formula = textwrap.indent(f"$$\n{_one_line(match['formula'])}\n$$", match["indent"])
    return f"\n{formula}\n"


def _one_line(formula: str) -> str:
    return " ".join(formula.split())


def _link(match: re.Match[str], names: Mapping[str, str]) -> str:
    short, path = match.groups()
    shown = path.rsplit(".", 1)[-1] if short else path
    return f'<autoref identifier="{names.get(path, path)}" optional><code>{shown}</code></autoref>'
