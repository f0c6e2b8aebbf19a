"""A griffe extension: reStructuredText roles and formulas of docstrings become Markdown."""

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
    text = _QUOTE.sub(lambda match: f"{match[1]}{'≥' if match[2] else '&gt;'}", docstring)
    text = _BLOCK.sub(_block, text)
    text = _INLINE.sub(lambda match: f"${_one_line(match.group(1))}$", text)
    return _ROLE.sub(lambda match: _link(match, names), text)


def _block(match: re.Match[str]) -> str:
    formula = textwrap.indent(f"$$\n{_one_line(match['formula'])}\n$$", match["indent"])
    return f"\n{formula}\n"


def _one_line(formula: str) -> str:
    return " ".join(formula.split())


def _link(match: re.Match[str], names: Mapping[str, str]) -> str:
    short, path = match.groups()
    shown = path.rsplit(".", 1)[-1] if short else path
    return f'<autoref identifier="{names.get(path, path)}" optional><code>{shown}</code></autoref>'
