"""The extra ``consortium``: packages that this one needs beside those of the library.

Where one of them is missing, a run has the library's own parts alone and its log says so; whoever
asks for more is told what to install.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from importlib.util import find_spec
from typing import ParamSpec, TypeVar

from fedif_flower.errors import ConfigError

# What is imported of the packages in pyproject.toml. Flower and PyTorch bring some of them too, in
# the versions that they want; only with all of them is the extra there.
MODULES = (
    "annotated_types",
    "anyio",
    "cryptography",
    "dp_accounting",
    "jinja2",
    "markupsafe",
    "prometheus_client",
    "starlette",
    "tomli_w",
    "uvicorn",
)
INSTALL = "pip install 'fedif-flower[consortium]'"

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def missing_modules() -> list[str]:
    """Return the modules of the extra that are not installed here."""
    return [name for name in MODULES if find_spec(name) is None]


def what_it_needs(subject: str) -> str:
    """Return the sentence that says what to install for a key or a command."""
    missing = ", ".join(missing_modules())
    return f"{subject} needs {INSTALL}; not installed here: {missing}"


def require_extra(subject: str) -> None:
    """Raise ConfigError, which says what to install for a key or a command, where it is missing."""
    if missing_modules():
        raise ConfigError(what_it_needs(subject))


def needs_extra(command: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Return a command that calls :func:`require_extra` before anything else."""

    @wraps(command)
    def checked(*args: _Arguments.args, **options: _Arguments.kwargs) -> _Result:
        require_extra("this command")
        return command(*args, **options)

    return checked
